package extproc

import (
	"strings"
	"sync"
	"time"

	"github.com/kvlane/kvlane/picker"
)

// maxShown is the most that is kept of each text of a client in an entry,
// bytes: a path or a model's name may be as long as headers or bodies may be.
const maxShown = 256

// Entry is one answered request as `kvlane explain` shows it.
type Entry struct {
	// At is when the request was answered.
	At   time.Time
	Path string
	// Decision is what the router made of the request, with the plan.
	Decision Decision
	// Refusal is why the client got an error; empty if the request was sent on.
	Refusal string
	// Served is the address that served; empty until the gateway reports it.
	Served string
	// Outcome is how the request ended; empty while it is under way.
	Outcome string
	// Reported is what the worker said of the answer by its end; nil if nothing.
	Reported *picker.Report
}

// Plans keeps the last requests by id. It is safe for concurrent use.
type Plans struct {
	mu   sync.Mutex
	ring []Entry // fixed length
	next int
	byID map[string]int // place in ring of the newest entry of that id
}

// NewPlans keeps the last n entries; n may be 0.
func NewPlans(n int) *Plans {
	return &Plans{ring: make([]Entry, n), byID: make(map[string]int, n)}
}

// Get returns the newest entry of a request id.
func (p *Plans) Get(id string) (Entry, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.byID[id]
	if !ok {
		return Entry{}, false
	}
	return p.ring[i], true
}

// Last returns up to n entries, the newest first.
func (p *Plans) Last(n int) []Entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Entry
	for i := range len(p.ring) {
		e := p.ring[((p.next-1-i)%len(p.ring)+len(p.ring))%len(p.ring)]
		if len(out) == n || e.At.IsZero() {
			break
		}
		out = append(out, e)
	}
	return out
}

func (p *Plans) add(e Entry) {
	if len(p.ring) == 0 {
		return
	}
	e.Path, e.Refusal, e.Decision.Model = shown(e.Path), shown(e.Refusal), shown(e.Decision.Model)
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.ring[p.next].id()
	if i, ok := p.byID[old]; ok && i == p.next {
		delete(p.byID, old)
	}
	p.ring[p.next] = e
	p.byID[e.id()] = p.next
	p.next = (p.next + 1) % len(p.ring)
}

// shown is the beginning of a text, and nothing of the memory of the rest.
func shown(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + "..."
}

// update changes the newest entry of an id, if it is still kept.
func (p *Plans) update(id string, change func(*Entry)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i, ok := p.byID[id]; ok {
		change(&p.ring[i])
	}
}

func (e Entry) id() string { return e.Decision.Plan.Request }

// ids hands out request ids that are unique among the requests under way: a
// client may send one id twice, a booking may not be shared.
type ids struct {
	mu   sync.Mutex
	open map[string]struct{}
}

// take returns want, or want with a suffix if another request has it: one whose
// stream is here, or one that is booked although its stream has left.
func (s *ids) take(want string, booked func(string) bool, fresh func() string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := want
	for id == "" || s.has(id) || booked(id) {
		id = fresh()
		if want != "" {
			id = want + "-" + id
		}
	}
	s.open[id] = struct{}{}
	return id
}

func (s *ids) has(id string) bool { _, ok := s.open[id]; return ok }

func (s *ids) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, id)
}
