package extproc

import (
	"errors"
	"strings"
	"time"

	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// Ask is a request as the router sees it.
type Ask struct {
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
}

// Decision is what the router made of a request.
type Decision struct {
	Plan picker.Plan
	// Model is the name in the body; empty if there is none.
	Model string
	// Prompts is how many prompts were read; 0 if the body was not.
	Prompts int
	// Bytes is the length of the canonical prompt text; 0 for token ids.
	Bytes int
	// KnownTokens is how many leading tokens of the prompts were known, over all
	// prompts: exactly for token ids, else as far as the text was learned.
	KnownTokens int
	// Exact says that the plan's ISL was counted and not estimated.
	Exact bool
}

// Router turns requests into plans. It is safe for concurrent use and does no
// I/O.
type Router struct {
	index    *kvindex.Index
	prefixes *kvindex.PrefixMap
	pool     *picker.Pool
	secret   string
	density  density
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
	return r.plan(now, a, r.pool.Pick)
}

// Explain is Route without the booking.
func (r *Router) Explain(now time.Time, a Ask) (Decision, *Refusal) {
	return r.plan(now, a, r.pool.Explain)
}

// Served moves a booking to the worker at the address that served.
func (r *Router) Served(now time.Time, id, address string) { r.pool.Served(id, address, now) }

func (r *Router) booked(id string) bool { return r.pool.Booked(id) }

// Close ends a booking; closing one that is not open does nothing.
func (r *Router) Close(now time.Time, id string) { r.pool.Close(id, now) }

func (r *Router) plan(now time.Time, a Ask, pick func(*picker.Request, time.Time) picker.Plan) (Decision, *Refusal) {
	req := &picker.Request{ID: a.ID, Subset: a.Subset, HasSubset: a.HasSubset, Policy: a.Policy}
	var d Decision
	if api := apiOf(a.Method, a.Path); api != openai.APINone && len(a.Body) > 0 {
		parsed, err := openai.Parse(api, a.Body)
		if err != nil {
			return Decision{}, malformed(err)
		}
		d = r.read(parsed, req)
	}
	d.Plan = pick(req, now)
	if !d.Plan.OK() {
		return d, refusalOf(d.Plan, d.Model)
	}
	return d, nil
}

func malformed(err error) *Refusal {
	r := &Refusal{Cause: CauseMalformed, Detail: err.Error()}
	if e, ok := errors.AsType[*openai.Error](err); ok {
		r.Detail, r.Code, r.Param = e.Message, e.Code, e.Param
	}
	return r
}

// read fills the pick's request from a body: length, matches, output bound.
func (r *Router) read(parsed *openai.Request, req *picker.Request) Decision {
	d := Decision{Model: parsed.Model}
	req.Model, req.OSL = parsed.Model, parsed.MaxTokens
	model, ok := r.pool.Model(parsed.Model)
	if !ok {
		return d // the pick says whether it is unknown or away
	}
	var sum matches
	if parsed.TokenPrompts != nil {
		d.Prompts, d.Exact = len(parsed.TokenPrompts), true
		ns := kvindex.Namespace{Model: model.Base, LoRA: model.LoRA, Salt: parsed.CacheSalt, BlockSize: model.BlockSize}
		for _, ids := range parsed.TokenPrompts {
			req.ISL += len(ids)
			sum.add(r.index.Overlap(kvindex.AppendChain(nil, ns.Root(), ids, model.BlockSize), nil))
		}
		d.KnownTokens = req.ISL
	} else {
		for _, h := range parsed.Hashers(parsed.Seed(r.secret, model.Base, model.LoRA)) {
			known := r.prefixes.Lookup(h.Chunks(), nil)
			r.density.learn(known)
			d.Prompts++
			d.Bytes += h.Len()
			d.KnownTokens += known.Tokens
			req.ISL += known.Tokens + r.density.tokens(h.Len()-known.Chunks*kvindex.ChunkSize)
			if known.BlockSize == model.BlockSize {
				sum.add(r.index.Overlap(known.Blocks, nil))
			}
		}
	}
	req.Matches = sum.list
	return d
}

// matches sums the matches of several prompts by worker and rank.
type matches struct{ list []kvindex.Match }

func (m *matches) add(more []kvindex.Match) {
	if m.list == nil {
		m.list = more
		return
	}
next:
	for _, n := range more {
		for i := range m.list {
			have := &m.list[i]
			if have.Worker == n.Worker && have.Rank == n.Rank {
				for t := range have.Depth {
					have.Depth[t] += n.Depth[t]
				}
				continue next
			}
		}
		m.list = append(m.list, n)
	}
}

// apiOf is openai.APIOf for a path with a query.
func apiOf(method, path string) openai.API {
	path, _, _ = strings.Cut(path, "?")
	return openai.APIOf(method, path)
}

// hasPrompt reports whether a request's body can say where it should go.
func hasPrompt(h head) bool { return apiOf(h.method, h.path) != openai.APINone }
