package picker

// plan writes the choice down, with at most keep of its candidates in full: all
// of them if there are no more; else the one chosen, then what it was chosen
// over: the best alone, the best pair, the fallbacks and the one that holds
// most of the prompt.
func (k *picking) plan(keep int) Plan {
	c := &k.choice
	p := Plan{Request: k.req.ID, ISL: k.req.ISL, Reason: c.reason}
	n := len(k.out)
	if c.target < 0 {
		p.RetryAfterMs = k.retryAfter()
		p.Costs = make([]Cost, 0, min(n, keep))
		for i := range min(n, keep) {
			p.Costs = k.listAlone(p.Costs, i)
		}
		p.Omitted = n - len(p.Costs)
		return p
	}
	p.Decode, p.Cached = k.board.places[c.target].Target, int(k.cached[c.target])
	if c.prefill >= 0 {
		n += k.targets()
	}
	if n <= keep {
		p.Costs = k.listAll(make([]Cost, 0, n))
	} else {
		p.Costs = k.listSome(make([]Cost, 0, min(keep, 4+c.backups)))
	}
	if c.remote {
		p.Prefill, p.Cached = p.Costs[0].Prefill, int(k.cached[c.from])
	}
	p.Omitted = n - len(p.Costs)
	p.TTFTMs = p.Costs[0].TTFT()
	if c.backups > 0 {
		p.Fallbacks = make([]Target, c.backups)
		for i, at := range c.fallbacks[:c.backups] {
			p.Fallbacks[i] = k.board.places[at].Target
		}
	}
	return p
}

func (k *picking) targets() int {
	n := 0
	for _, o := range k.out {
		if o == notOut {
			n++
		}
	}
	return n
}

// listSome appends the chosen one and what it was chosen over, as far as there is
// room.
func (k *picking) listSome(dst []Cost) []Cost {
	c := &k.choice
	if c.remote {
		dst = k.listPair(dst, c.paired)
	}
	dst = k.listAlone(dst, c.local)
	if c.paired >= 0 && !c.remote {
		dst = k.listPair(dst, c.paired)
	}
	most := c.most
	for _, i := range c.fallbacks[:c.backups] {
		if at := int(i); at != c.local && len(dst) < cap(dst) {
			dst = k.listAlone(dst, at)
		}
		if int(i) == most {
			most = -1
		}
	}
	if most >= 0 && most != c.local && len(dst) < cap(dst) {
		dst = k.listAlone(dst, most)
	}
	return dst
}

// listAll appends the chosen one, the other targets, the pairs, and those that
// are out.
func (k *picking) listAll(dst []Cost) []Cost {
	c := &k.choice
	if c.remote {
		dst = k.listPair(dst, c.target)
	} else {
		dst = k.listAlone(dst, c.target)
	}
	for i, o := range k.out {
		if o == notOut && (i != c.target || c.remote) {
			dst = k.listAlone(dst, i)
		}
	}
	for i, o := range k.out {
		if c.prefill >= 0 && o == notOut && (i != c.target || !c.remote) {
			dst = k.listPair(dst, i)
		}
	}
	for i, o := range k.out {
		if o != notOut {
			dst = k.listAlone(dst, i)
		}
	}
	return dst
}

// listAlone appends candidate i in full; of a prefill-only worker its prefill leg.
func (k *picking) listAlone(dst []Cost, i int) []Cost {
	dst = append(dst, Cost{})
	c, at, out := &dst[len(dst)-1], &k.board.candidates[i], k.out[i]
	c.Target, c.Excluded = k.board.places[i].Target, out.String()
	if out == outAdjust {
		c.Excluded = k.why(c.Target)
	}
	if k.choice.target < 0 {
		return dst // refused: nothing was priced
	}
	c.Cached = int(k.cached[i])
	if out > outPrefill {
		return dst
	}
	k.terms(c, i)
	c.Total = k.leg(i)
	if out == notOut {
		c.Decode, c.Miss = at.decode+k.rates[at.class].decode, k.miss(i)
		c.Total = k.totals[i] + c.Miss
	}
	return dst
}

// terms are those of a prefill on i.
func (k *picking) terms(c *Cost, i int) {
	at := &k.board.candidates[i]
	c.Queue, c.Load, c.Compute, c.Adapter = at.queue, k.loads[i], k.compute(i), k.offers[at.menu].adapter
	c.Carry, c.Delay, c.Adjust = k.steps(i)*at.step(&k.rates[at.class]), c.Compute*(at.weight-1), k.extra[i]-k.loads[i]
}

// listPair appends decoding on d after its best prefill worker.
//
// What the price of the prefill has beside time, the delay to others and the
// adjustments, counts only as far as d would not have waited anyway.
func (k *picking) listPair(dst []Cost, d int) []Cost {
	p, leg, far := k.partner(d)
	from := &k.board.places[p].Target
	if n := len(dst); n > 0 && dst[n-1].Prefill != nil && *dst[n-1].Prefill == *from {
		from = dst[n-1].Prefill
	} else {
		from = new(*from)
	}
	dst = append(dst, Cost{Target: k.board.places[d].Target, Prefill: from, Cached: int(k.cached[p])})
	c, at := &dst[len(dst)-1], &k.board.candidates[d]
	k.terms(c, p)
	c.Carry = k.takeOver(at)
	c.Transfer = k.transfer(d, far)
	ready := c.TTFT() - c.Carry
	c.Queue += max(0, at.queue-ready)
	if at.queue > min(ready, leg+c.Transfer) {
		spared := c.Delay + c.Adjust - (max(leg+c.Transfer, at.queue) - max(ready, at.queue))
		cut := min(c.Delay, max(0, spared))
		c.Delay, c.Adjust = c.Delay-cut, c.Adjust-(spared-cut)
	}
	c.Adjust += k.extra[d] - k.loads[d]
	c.Load += k.loads[d]
	c.Adapter += k.offers[at.menu].adapter
	c.Decode, c.Miss = at.decode+k.rates[at.class].decode, k.missPair(p, far, d)
	c.Total = k.pair(leg, far, d) + c.Miss
	return dst
}

// why is the first reason that the request gives for ruling out t.
func (k *picking) why(t Target) string {
	for i := range k.req.Adjust {
		if a := &k.req.Adjust[i]; a.Exclude != "" && a.Worker == t.Worker && a.Rank == t.Rank {
			return a.Exclude
		}
	}
	return outAdjust.String()
}
