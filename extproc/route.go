package extproc

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kvlane/kvlane/extproc/scoring"
	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// Ask is a request as the router sees it.
type Ask struct {
	// Hints are what the client says of the request.
	Hints

	// ID names the request and its booking; never empty for Route.
	ID string
	// Method and Path are the request line; a query is ignored.
	Method, Path string
	// Body is the whole body; nil where it is empty, unreadable or not waited for:
	// then only the load counts.
	Body []byte
	// Subset is what the gateway allows, if HasSubset.
	Subset    []string
	HasSubset bool
	// Policy overrides the pool's; empty for none.
	Policy picker.Policy
	// clients are the rules for what the body says of its priority; nil: it is not
	// read.
	clients *clients
	// headers are those that scorers may see.
	headers []scoring.Header
	// gate knows whose requests get less room; nil without flow control.
	gate *gate
}

// Decision is what the router made of a request.
type Decision struct {
	Plan picker.Plan
	// Model is the name in the body; empty if there is none.
	Model string
	// Rewrite is the name that the worker is asked for in its place; empty for the
	// same.
	Rewrite string
	// Prompts is how many prompts were read; 0 if the body was not.
	Prompts int
	// Bytes is the length of the canonical prompt text; 0 for token ids.
	Bytes int
	// KnownTokens is how many leading tokens of the prompts were known, over all
	// prompts: exactly for token ids, else as far as the text was learned.
	KnownTokens int
	// Exact says that the plan's ISL was counted and not estimated.
	Exact bool
	// Priority is the request's, higher first.
	Priority int
	// Waited is how long it waited for room.
	Waited time.Duration
}

// Router turns requests into plans. It is safe for concurrent use and does no I/O,
// but for what its scorers do.
type Router struct {
	index    *kvindex.Index
	prefixes *kvindex.PrefixMap
	pool     *picker.Pool
	secret   string
	density  density
	rewrites picker.Rewrites
	// rewritten counts; nil for none.
	rewritten *RewriteMetrics
	scorers   *scoring.Set // nil: there are none
	scratch   sync.Pool    // of *scratch
}

// NewRouter joins the index, the map of learned prefixes and the pool. secret
// is the pool's, the same as its agents have: it keeps clients from guessing
// which chunks others have used.
func NewRouter(index *kvindex.Index, prefixes *kvindex.PrefixMap, pool *picker.Pool, secret string) *Router {
	return &Router{index: index, prefixes: prefixes, pool: pool, secret: secret}
}

// Route plans a request and books it under its id; [Router.Close] ends the
// booking. A refusal books nothing.
func (r *Router) Route(now time.Time, a Ask) (Decision, *Refusal) {
	return r.plan(now, a, false)
}

// Explain is Route without the booking.
func (r *Router) Explain(now time.Time, a Ask) (Decision, *Refusal) {
	return r.plan(now, a, true)
}

// Served moves a booking to the worker at the address that served.
func (r *Router) Served(now time.Time, id, address string) { r.pool.Served(id, address, now) }

// Reported is what the worker said of a request that is under way; false if nothing.
func (r *Router) Reported(id string) (picker.Report, bool) { return r.pool.Reported(id) }

// reports is true where an agent tells of a booking's end.
func (r *Router) reports(id string) bool { return r.pool.Reports(id) }

func (r *Router) booked(id string) bool { return r.pool.Booked(id) }

// Close ends a booking; closing one that is not open does nothing.
func (r *Router) Close(now time.Time, id string) { r.pool.Close(id, now) }

func (r *Router) plan(now time.Time, a Ask, explain bool) (Decision, *Refusal) {
	s, _ := r.scratch.Get().(*scratch)
	if s == nil {
		s = new(scratch)
	}
	_, d, refusal := r.begin(now, &a, s)
	if refusal != nil {
		return d, refusal
	}
	if a.gate != nil {
		s.request.Room = a.gate.room(now, a.Tenant, r.lane(&d))
	}
	if explain {
		d.Plan = r.pool.Explain(&s.request, now)
	} else {
		d.Plan = r.pool.Pick(&s.request, now)
	}
	s.request = picker.Request{} // the client's texts are not kept
	r.scratch.Put(s)             // not after a panic: nothing is known of it then
	if !d.Plan.OK() {
		refusal = refusalOf(&d)
		return d, refusal
	}
	if !explain {
		r.noteRewrite(&d)
	}
	return d, nil
}

// begin reads a request for a pick and asks the scorers. parsed is nil if its body
// says nothing.
func (r *Router) begin(now time.Time, a *Ask, s *scratch) (parsed *openai.Request, d Decision, refusal *Refusal) {
	s.request = picker.Request{
		ID: a.ID, Subset: a.Subset, HasSubset: a.HasSubset, Policy: a.Policy, SLO: a.SLO, Session: a.Session,
		Unlimited: light(a.Method),
	}
	parsed, err := r.parse(a, s, &d)
	if err != nil {
		return nil, Decision{}, malformed(err)
	}
	r.score(now, a, &d, &s.request)
	return parsed, d, nil
}

// parse reads the body, if it says where the request should go.
func (r *Router) parse(a *Ask, s *scratch, d *Decision) (*openai.Request, error) {
	d.Priority = a.Priority
	api := apiOf(a.Method, a.Path)
	if api == openai.APINone || len(a.Body) == 0 {
		return nil, nil //nolint:nilnil // a request without a body that counts is no error
	}
	parsed, err := openai.Parse(api, a.Body)
	if err != nil {
		return nil, err
	}
	*d = r.read(parsed, s)
	d.Priority = a.Priority
	if a.clients != nil {
		d.Priority = a.clients.priorityOf(parsed, a.Hints)
	}
	return parsed, nil
}

// scratch is the memory for one request, used again by the next. A plan refers
// to nothing in it.
type scratch struct {
	request picker.Request
	chain   []kvindex.BlockHash
	matches matches
}

func malformed(err error) *Refusal {
	r := &Refusal{Cause: CauseMalformed, Detail: err.Error()}
	if e, ok := errors.AsType[*openai.Error](err); ok {
		r.Detail, r.Code, r.Param = e.Message, e.Code, e.Param
	}
	return r
}

// read fills the pick's request from a body: length, matches, output bound.
func (r *Router) read(parsed *openai.Request, s *scratch) Decision {
	d, req := Decision{Model: parsed.Model}, &s.request
	d.Rewrite = r.rewrite(parsed.Model, req)
	req.Model, req.OSL = d.served(), parsed.MaxTokens
	model, ok := r.pool.Model(req.Model)
	if !ok {
		return d // the pick says whether it is unknown or away
	}
	s.matches.clear()
	if parsed.TokenPrompts != nil {
		d.Prompts, d.Exact = len(parsed.TokenPrompts), true
		ns := kvindex.Namespace{Model: model.Base, LoRA: model.LoRA, Salt: parsed.CacheSalt, BlockSize: model.BlockSize}
		for _, ids := range parsed.TokenPrompts {
			req.ISL += len(ids)
			if model.BlockSize < 1 {
				continue // the engine has not said it yet
			}
			s.matches.add(func(dst []kvindex.Match) []kvindex.Match {
				s.chain, dst = r.index.OverlapTokens(ns.Root(), ids, model.BlockSize, s.chain, dst)
				return dst
			})
		}
		d.KnownTokens = req.ISL
	} else {
		for _, h := range parsed.Hashers(parsed.Seed(r.secret, model.Base, model.LoRA)) {
			known := r.prefixes.Lookup(h.Chunks(), s.chain)
			s.chain = known.Blocks
			r.density.learn(known.Chunks*kvindex.ChunkSize, known.Tokens)
			d.Prompts++
			d.Bytes += h.Len()
			d.KnownTokens += known.Tokens
			req.ISL += known.Tokens + r.density.tokens(h.Len()-known.Chunks*kvindex.ChunkSize)
			if known.BlockSize == model.BlockSize {
				s.matches.add(func(dst []kvindex.Match) []kvindex.Match { return r.index.Overlap(known.Blocks, dst) })
			}
		}
	}
	req.Matches = s.matches.list
	return d
}

// matches sums the matches of several prompts by worker and rank.
type matches struct {
	list []kvindex.Match
	// more are those of one prompt, places those of list by their seats, plus 1, as
	// far as they were needed.
	more   []kvindex.Match
	places []int32
}

func (m *matches) clear() {
	m.list = m.list[:0]
	clear(m.places)
	m.places = m.places[:0]
}

// add looks a prompt up and adds what there is of it. overlap appends the
// prompt's own matches.
func (m *matches) add(overlap func(dst []kvindex.Match) []kvindex.Match) {
	if len(m.list) == 0 {
		m.list = overlap(m.list)
		return
	}
	if len(m.places) == 0 {
		for i := range m.list {
			m.note(i)
		}
	}
	m.more = overlap(m.more[:0])
	for i := range m.more {
		n := &m.more[i]
		have := m.find(n)
		if have == nil {
			m.list = append(m.list, *n)
			m.note(len(m.list) - 1)
			continue
		}
		for t := range have.Depth {
			have.Depth[t] += n.Depth[t]
		}
	}
}

func (m *matches) note(i int) {
	seat := int(m.list[i].Seat)
	for len(m.places) <= seat {
		m.places = append(m.places, 0)
	}
	m.places[seat] = int32(i) + 1
}

// find is the match of the same worker and rank; nil if there is none. A seat may
// have changed hands between two lookups.
func (m *matches) find(n *kvindex.Match) *kvindex.Match {
	if int(n.Seat) < len(m.places) {
		if at := m.places[n.Seat]; at > 0 && m.list[at-1].Worker == n.Worker && m.list[at-1].Rank == n.Rank {
			return &m.list[at-1]
		}
	}
	return nil
}

// apiOf is openai.APIOf for a path with a query.
func apiOf(method, path string) openai.API {
	path, _, _ = strings.Cut(path, "?")
	return openai.APIOf(method, path)
}

// light reports whether a request computes nothing on an engine: it is read, and has no
// body that asks for anything.
func light(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// hasPrompt reports whether a request's body can say where it should go.
func hasPrompt(h head) bool { return apiOf(h.method, h.path) != openai.APINone }
