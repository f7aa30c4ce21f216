package picker

import "slices"

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
		p.Costs = make([]Cost, min(n, keep))
		for i := range p.Costs {
			p.Costs[i] = k.cost(i)
		}
		p.Omitted = n - len(p.Costs)
		return p
	}
	p.Decode, p.Cached = k.board.places[c.target].Target, int(k.cached[c.target])
	if c.prefill >= 0 {
		prefill := k.board.places[c.prefill].Target
		if c.remote {
			p.Prefill, p.Cached = &prefill, int(k.cached[c.prefill])
		}
		n += k.targets()
		p.Costs = k.list(n, keep, &prefill)
	} else {
		p.Costs = k.list(n, keep, nil)
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

// list is the chosen candidate and then others, as plan says: n is their number
// and prefill the worker of the pairs, nil if there are none.
func (k *picking) list(n, keep int, prefill *Target) []Cost {
	if n <= keep {
		return k.listAll(make([]Cost, 0, n), prefill)
	}
	c := &k.choice
	costs := make([]Cost, 0, min(keep, 4+c.backups))
	costs = append(costs, k.either(c.target, c.remote, prefill))
	if c.paired >= 0 {
		costs = k.addNew(costs, c.paired, true, prefill)
	}
	costs = k.addNew(costs, c.local, false, nil)
	for _, at := range c.fallbacks[:c.backups] {
		costs = k.addNew(costs, int(at), false, nil)
	}
	if c.most >= 0 {
		costs = k.addNew(costs, c.most, false, nil)
	}
	return costs
}

// addNew appends a candidate that is not there, if there is room.
func (k *picking) addNew(costs []Cost, at int, remote bool, prefill *Target) []Cost {
	t := &k.board.places[at].Target
	listed := func(c Cost) bool { return (c.Prefill != nil) == remote && c.Target == *t }
	if len(costs) == cap(costs) || slices.ContainsFunc(costs, listed) {
		return costs
	}
	return append(costs, k.either(at, remote, prefill))
}

// listAll appends the chosen one, the other targets, the pairs, and those that
// are out.
func (k *picking) listAll(dst []Cost, prefill *Target) []Cost {
	c := &k.choice
	dst = append(dst, k.either(c.target, c.remote, prefill))
	for i, o := range k.out {
		if o == notOut && (i != c.target || c.remote) {
			dst = append(dst, k.cost(i))
		}
	}
	for i, o := range k.out {
		if prefill != nil && o == notOut && (i != c.target || !c.remote) {
			dst = append(dst, k.pairCost(i, prefill))
		}
	}
	for i, o := range k.out {
		if o != notOut {
			dst = append(dst, k.cost(i))
		}
	}
	return dst
}

func (k *picking) either(i int, remote bool, prefill *Target) Cost {
	if remote {
		return k.pairCost(i, prefill)
	}
	return k.cost(i)
}

// cost is candidate i alone in full; for a prefill-only worker its prefill leg.
func (k *picking) cost(i int) Cost {
	out := k.out[i]
	c := Cost{Target: k.board.places[i].Target, Excluded: out.String()}
	if k.choice.target < 0 {
		return c
	}
	c.Cached = int(k.cached[i])
	if out > outPrefill {
		return c
	}
	at := &k.board.candidates[i]
	c.Queue, c.Compute, c.Adapter = at.queue, k.rates[at.class].compute, k.offers[at.menu].adapter
	if c.Cached > 0 {
		c.Compute = k.compute(i)
	}
	c.Delay = k.fleet.Alpha * c.Compute * at.requests
	if out == outPrefill {
		c.Total = k.leg(i)
		return c
	}
	c.Decode, c.Total = at.decode+k.rates[at.class].decode, k.totals[i]
	return c
}

// pairCost is decoding on d after the chosen prefill worker.
func (k *picking) pairCost(d int, prefill *Target) Cost {
	c, at := k.cost(k.choice.prefill), &k.board.candidates[d]
	leg := c.Total
	c.Target, c.Prefill, c.Excluded = k.board.places[d].Target, prefill, ""
	c.Transfer = k.transfer(d)
	c.Queue += max(0, at.queue-leg-c.Transfer)
	c.Adapter += k.offers[at.menu].adapter
	c.Decode, c.Total = at.decode+k.rates[at.class].decode, k.pair(leg, d)
	return c
}
