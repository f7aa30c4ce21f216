package picker

import (
	"cmp"
	"math"
)

// missMs is what a predicted miss of a target costs beside the price: more than
// any price, so that those who meet the targets come first, and so little that
// prices keep a precision of 1 us.
const missMs = 1 << 40

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

// judgePair is the price of decoding on d after a prefill on p as it is compared
// under the targets: first of those that are predicted to keep them, else of all.
func (k *picking) judgePair(p int, l link, d int, total float64) float64 {
	c := &k.board.candidates[d]
	first := max(k.prefilled(p)+k.transfer(d, l), c.queue) + k.takeOver(c) + k.offers[c.menu].adapter + k.loads[d]
	if first > k.slo.TTFTMs || c.decode+k.rates[c.class].decode > k.slo.TPOTMs {
		return total + missMs
	}
	return total
}

// prefilled is the time until a prefill on p is done. Workers that prefill for
// others decode next to nothing.
func (k *picking) prefilled(p int) float64 {
	c := &k.board.candidates[p]
	return c.queue + k.loads[p] + k.compute(p) + k.offers[c.menu].adapter
}

// spoiled reports whether a target that costs less than the chosen one was passed
// over as it is predicted to miss a target.
func (k *picking) spoiled() bool {
	if k.slo == (SLO{}) || k.totals[k.choice.target] > missMs/2 {
		return false
	}
	bar := k.totals[k.choice.target] + missMs
	for i, total := range k.totals {
		if total > missMs/2 && total < bar && k.out[i] == notOut {
			return true
		}
	}
	return false
}
