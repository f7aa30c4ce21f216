package picker

// missMs is what a predicted miss of a target costs beside the price: more than
// any price, so that those who meet the targets come first, and so little that
// prices keep a precision of 1 us.
const missMs = 1 << 40

// judge is the price of target i as it is compared under the request's targets:
// first of those that are predicted to keep them, else of all. first and decode are
// its times to first token, without loads, and between later ones.
func (k *picking) judge(i int, total, first, decode float64) float64 {
	return k.judged(total, k.misses(first+k.loads[i], decode))
}

func (k *picking) judged(total float64, misses bool) float64 {
	if !misses {
		return total
	}
	k.missing = min(k.missing, total)
	return total + missMs
}

func (k *picking) misses(first, decode float64) bool {
	return k.slo.TTFTMs > 0 && first > k.slo.TTFTMs || k.slo.TPOTMs > 0 && decode > k.slo.TPOTMs
}

// judgePair is the same of decoding on d after a prefill on p.
func (k *picking) judgePair(p int, l link, d int, total float64) float64 {
	c := &k.board.candidates[d]
	first := max(k.prefilled(p)+k.transfer(d, l), c.queue) + k.takeOver(c) + k.offers[c.menu].adapter + k.loads[d]
	return k.judged(total, k.misses(first, c.decode+k.rates[c.class].decode))
}

// prefilled is the time until a prefill on p is done. Workers that prefill for
// others decode next to nothing.
func (k *picking) prefilled(p int) float64 {
	c := &k.board.candidates[p]
	compute := k.rates[c.class].compute
	if k.cached[p] > 0 {
		compute, _ = k.compute(p)
	}
	return c.queue + k.loads[p] + compute + k.offers[c.menu].adapter
}
