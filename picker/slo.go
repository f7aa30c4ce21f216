package picker

import (
	"cmp"
	"math"
)

// target sets the request's targets, its own or the fleet's; a missing one is out of
// reach where the other is there.
func (k *picking) target() {
	k.slo = SLO{TTFTMs: cmp.Or(k.req.SLO.TTFTMs, k.fleet.SLO.TTFTMs), TPOTMs: cmp.Or(k.req.SLO.TPOTMs, k.fleet.SLO.TPOTMs)}
	switch {
	case k.slo == SLO{}:
	case k.slo.TTFTMs == 0:
		k.slo.TTFTMs = math.Inf(1)
	case k.slo.TPOTMs == 0:
		k.slo.TPOTMs = math.Inf(1)
	}
}

// miss is what it costs that target i is predicted to miss a target of the request.
func (k *picking) miss(i int) float64 {
	if k.slo == (SLO{}) {
		return 0
	}
	c := &k.board.candidates[i]
	rate := &k.rates[c.class]
	first := c.queue + k.compute(i) + k.steps(i)*c.step(rate) + k.offers[c.menu].adapter + k.loads[i]
	return k.missing(first, c.decode+rate.decode)
}

// missPair is the same of decoding on d after a prefill on p that far away.
func (k *picking) missPair(p int, far link, d int) float64 {
	if k.slo == (SLO{}) {
		return 0
	}
	c := &k.board.candidates[d]
	first := max(k.prefilled(p)+k.transfer(d, far), c.queue) + k.takeOver(c) + k.offers[c.menu].adapter + k.loads[d]
	return k.missing(first, c.decode+k.rates[c.class].decode)
}

// missing is what it costs if a request that has targets misses one with a first token
// after first and a later one every decode.
func (k *picking) missing(first, decode float64) float64 {
	if first > k.slo.TTFTMs || decode > k.slo.TPOTMs {
		return k.fleet.MissMs
	}
	return 0
}

// prefilled is the time until a prefill on p is done. Workers that prefill for
// others decode next to nothing.
func (k *picking) prefilled(p int) float64 {
	c := &k.board.candidates[p]
	return c.queue + k.loads[p] + k.compute(p) + k.offers[c.menu].adapter
}

// spoiled reports whether a target that would cost less than the chosen one was passed
// over as it is predicted to miss a target of the request.
func (k *picking) spoiled() bool {
	c := k.choice.target
	if k.slo == (SLO{}) || k.miss(c) > 0 {
		return false
	}
	for _, total := range k.totals {
		if total < k.totals[c] {
			return true
		}
	}
	return false
}
