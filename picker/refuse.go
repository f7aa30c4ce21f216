package picker

import "github.com/kvlane/kvlane/kvindex"

// fullRetryMs is the time to come back to an endpoint at its request limit: it
// may have nothing to prefill and yet be full of answers of unknown length. One
// second is the shortest that a Retry-After header can say.
const fullRetryMs = 1000

// refusal is why no endpoint can be chosen; empty if one can.
//
// A model that nobody in the pool has is said first. Nothing is said of a model
// while the pool is empty: it may be starting. Then limits, since they mean that
// a candidate was there; then the subset.
func (k *picking) refusal() Reason {
	members, serving, limited := 0, 0, 0
	for i := range k.fleet.Endpoints {
		e := &k.fleet.Endpoints[i]
		if k.costs[i].Excluded == "" {
			return ""
		}
		if k.full(i) {
			limited++
		}
		if e.Role == kvindex.RoleRelay {
			continue
		}
		members++
		if k.req.Model == "" || e.serves(k.req.Model) {
			serving++
		}
	}
	switch {
	case members > 0 && serving == 0:
		return ReasonNoModel
	case limited > 0:
		return ReasonOverloaded
	case k.req.HasSubset:
		return ReasonSubset
	default:
		return ReasonNoEndpoint
	}
}

// refuse is the plan without a target. If the pool is overloaded it says when
// the first of the full endpoints is predicted to have emptied its queue.
func (k *picking) refuse(reason Reason) Plan {
	p := Plan{Request: k.req.ID, ISL: k.req.ISL, Reason: reason, Costs: k.costs}
	if reason != ReasonOverloaded {
		return p
	}
	for i := range k.costs {
		if !k.full(i) {
			continue
		}
		drain := k.fleet.Endpoints[i].QueueMs
		if k.costs[i].Excluded == outRequests {
			drain = max(drain, fullRetryMs)
		}
		if p.RetryAfterMs == 0 || drain < p.RetryAfterMs {
			p.RetryAfterMs = drain
		}
	}
	return p
}

// full reports whether endpoint i would be a target but for its limits.
func (k *picking) full(i int) bool {
	out := k.costs[i].Excluded
	target := k.fleet.Endpoints[i].Role != kvindex.RolePrefill || k.req.Model == ""
	return target && (out == outRequests || out == outQueue)
}
