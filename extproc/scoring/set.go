package scoring

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvlane/kvlane/picker"
)

// maxInFlight bounds the calls of one scorer that have not returned: one that does
// not heed its context leaves them behind.
const maxInFlight = 256

// Set are the scorers of a picker. It is safe for concurrent use.
type Set struct {
	members []*member
	headers map[string]bool // that any of them may see
	metrics *Metrics
	clock   func() time.Time
	ctx     context.Context //nolint:containedctx // of all calls: they belong to the set, not to a request's stream
	stop    context.CancelFunc
	calls   sync.WaitGroup
}

// member is one scorer of a set.
type member struct {
	Named

	slots chan struct{} // one for each call in flight

	mu      sync.Mutex
	breaker breaker
}

// NewSet checks the scorers and makes a set of them. It starts nothing.
func NewSet(list []Named, m *Metrics, clock func() time.Time) (*Set, error) {
	var faults []error
	if len(list) > maxScorers {
		faults = append(faults, fmt.Errorf("%d scorers are more than %d", len(list), maxScorers))
	}
	s := &Set{headers: make(map[string]bool), metrics: m, clock: clock}
	s.ctx, s.stop = context.WithCancel(context.Background())
	for i, n := range list {
		for _, err := range n.faults() {
			faults = append(faults, fmt.Errorf("scorers[%d].%w", i, err))
		}
		if slices.ContainsFunc(s.members, func(o *member) bool { return o.Name == n.Name }) {
			faults = append(faults, fmt.Errorf("scorers[%d].name: %q is given twice", i, n.Name))
		}
		n.Headers = slices.Clone(n.Headers)
		for j, h := range n.Headers {
			n.Headers[j] = strings.ToLower(h)
			s.headers[n.Headers[j]] = true
		}
		s.members = append(s.members, &member{Named: n, slots: make(chan struct{}, maxInFlight)})
		m.prepare(n.Name)
	}
	return s, errors.Join(faults...)
}

// Wants reports whether a scorer may see a header; name is lower case.
func (s *Set) Wants(name string) bool { return s.headers[name] }

// Empty reports whether there is no scorer; so is a nil set.
func (s *Set) Empty() bool { return s == nil || len(s.members) == 0 }

// Score asks all scorers at once and appends to dst what they say, in their order.
// It returns when all have answered or are late. facts is called if there is anybody to
// ask.
func (s *Set) Score(facts func() (*Request, []Candidate), dst []picker.Adjust) []picker.Adjust {
	var asked []*member
	for _, m := range s.members {
		if s.mayAsk(m) {
			asked = append(asked, m)
		}
	}
	if len(asked) == 0 {
		return dst
	}
	r, candidates := facts()
	open := make([]*call, 0, len(asked))
	for _, m := range asked {
		if c := s.begin(m, r, candidates); c != nil {
			open = append(open, c)
		}
	}
	for _, c := range open {
		dst = append(dst, s.finish(c, len(candidates))...)
	}
	return dst
}

// call is one question to one scorer.
type call struct {
	member *member
	ctx    context.Context //nolint:containedctx // the call is what it is the context of
	cancel context.CancelFunc
	began  time.Time
	answer chan answer // has room for it
}

type answer struct {
	adjust []picker.Adjust
	err    error
}

func (s *Set) mayAsk(m *member) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.breaker.ask(s.clock()) {
		s.metrics.count(m.Name, outcomeOpen)
		return false
	}
	return true
}

// begin asks a scorer; nil if too many of its calls have not returned.
func (s *Set) begin(m *member, r *Request, candidates []Candidate) *call {
	select {
	case m.slots <- struct{}{}:
	default:
		s.end(m, outcomeBusy, 0)
		return nil
	}
	c := &call{member: m, began: s.clock(), answer: make(chan answer, 1)}
	c.ctx, c.cancel = context.WithTimeout(s.ctx, m.Deadline)
	own := m.own(r)
	s.calls.Go(func() {
		defer func() { <-m.slots }()
		c.answer <- m.ask(c.ctx, own, candidates)
	})
	return c
}

// own is the request with the headers that this scorer may see.
func (m *member) own(r *Request) *Request {
	own := *r
	own.Headers = slices.DeleteFunc(slices.Clone(r.Headers), func(h Header) bool { return !slices.Contains(m.Headers, h.Name) })
	return &own
}

var errPanic = errors.New("panicked")

// ask is the scorer's own code, which may be anything.
func (m *member) ask(ctx context.Context, r *Request, candidates []Candidate) (a answer) {
	defer func() {
		if p := recover(); p != nil {
			a = answer{err: fmt.Errorf("%w: %v", errPanic, p)}
		}
	}()
	// Each scorer has a list of its own: it may be late and still read it.
	a.adjust, a.err = m.Scorer.Score(ctx, r, slices.Clone(candidates))
	return a
}

// finish waits for an answer until it is late.
func (s *Set) finish(c *call, candidates int) []picker.Adjust {
	defer c.cancel()
	m := c.member
	var a answer
	select {
	case a = <-c.answer:
	case <-c.ctx.Done():
		s.end(m, outcomeLate, s.clock().Sub(c.began))
		return nil
	}
	if a.err == nil {
		a.adjust, a.err = checked(m.Name, a.adjust, candidates)
	}
	s.end(m, outcomeOf(a.err), s.clock().Sub(c.began))
	if a.err != nil {
		return nil
	}
	return a.adjust
}

// end takes over how a question ended.
func (s *Set) end(m *member, o outcome, took time.Duration) {
	now := s.clock()
	m.mu.Lock()
	m.breaker.tell(o == outcomeOK, now)
	m.mu.Unlock()
	s.metrics.count(m.Name, o)
	if took > 0 {
		s.metrics.observe(m.Name, took)
	}
}

// Close ends all calls and the connections. It waits for calls until ctx ends; no
// Score may come after it.
func (s *Set) Close(ctx context.Context) error {
	s.stop()
	returned := make(chan struct{})
	go func() { // ends with the last call
		s.calls.Wait()
		close(returned)
	}()
	var err error
	select {
	case <-returned:
	case <-ctx.Done():
		err = fmt.Errorf("wait for scorers: %w", ctx.Err())
	}
	for _, m := range s.members {
		if c, ok := m.Scorer.(io.Closer); ok {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}
