package picker

// fullRetryMs is the time to come back to an endpoint at its limit of requests or
// KV: it may have nothing to prefill and yet be full of answers of unknown length. One
// second is the shortest that a Retry-After header can say.
const fullRetryMs = 1000

// refusal is why no endpoint can be chosen; empty if one can.
//
// A model that nobody in the pool has is said first. Nothing is said of a model
// while the pool is empty: it may be starting. Then limits, since they mean that
// a candidate was there; then the subset.
func (k *picking) refusal() Reason {
	members, serving, limited := 0, 0, 0
	for i := range k.board.candidates {
		c := &k.board.candidates[i]
		if k.full(i) {
			limited++
		}
		if c.out == outRelay {
			continue
		}
		members++
		if k.offers[c.menu].out == notOut {
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

// retryAfter is, if the pool is overloaded, when the first of the full endpoints
// is predicted to have emptied its queue; ms, else 0.
func (k *picking) retryAfter() float64 {
	after := 0.0
	if k.choice.reason != ReasonOverloaded {
		return 0
	}
	for i := range k.out {
		if !k.full(i) {
			continue
		}
		drain := k.board.candidates[i].queue
		switch k.out[i] { //nolint:exhaustive // k.full says which they can be
		case outKV, outRequests:
			drain = max(drain, fullRetryMs)
		case outShare:
			drain = max(drain, k.board.candidates[i].owes(k.req))
		}
		if after == 0 || drain < after {
			after = drain
		}
	}
	return after
}

// full reports whether candidate i would be a target but for its limits.
func (k *picking) full(i int) bool {
	target := k.board.candidates[i].out != outPrefill || k.req.Model == ""
	return target && k.out[i] >= outQueue && k.out[i] <= outRequests
}
