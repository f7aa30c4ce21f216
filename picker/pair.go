package picker

import "math"

// link is how far two workers are apart; a greater one is no faster.
type link uint8

const (
	linkDomain link = iota
	linkRack
	linkZone // or unknown
	linkFar
	numLinks = 4
)

// links are the prefill workers of a picking by where they are.
type links struct {
	// speeds are multiples of the transfer's bandwidth.
	speeds [numLinks]float64
	// many: the workers are in several places; else one is how far any two are apart.
	many bool
	one  link
	// all is the best prefill worker.
	all best
	// The best prefill worker of each place, by the numbers of the names.
	zones, racks, domains []best
}

func (l *links) begin(b *board, f *Links) {
	l.speeds = [numLinks]float64{f.Domain, f.Rack, 1, f.Far}
	for i, s := range l.speeds {
		if s <= 0 {
			l.speeds[i] = 1
		}
	}
	l.many, l.one = b.split && len(b.spots) > 1, linkZone
	if len(b.spots) == 1 {
		l.one = b.spots[0].to(b.spots[0])
	}
	if l.many {
		l.zones, l.racks, l.domains = none(l.zones, len(b.names.zones)), none(l.racks, len(b.names.racks)), none(l.domains, len(b.names.domains))
	}
}

// none are n bests without any, in the list's memory if they fit.
func none(list []best, n int) []best {
	list = list[:0]
	for range n {
		list = append(list, noBest())
	}
	return list
}

// to is how far o is from s.
func (s spot) to(o spot) link {
	switch {
	case s.domain != 0 && s.domain == o.domain:
		return linkDomain
	case s.rack != 0 && s.rack == o.rack:
		return linkRack
	case s.zone == 0 || o.zone == 0 || s.zone == o.zone:
		return linkZone
	default:
		return linkFar
	}
}

// offer notes a prefill worker in s.
func (l *links) offer(s spot, value float64, i int, tie uint64) {
	in := best{at: i, value: value, tie: tie}
	for _, b := range [...]*best{&l.zones[s.zone], &l.racks[s.rack], &l.domains[s.domain]} {
		if in.before(b) {
			*b = in
		}
	}
}

// charges fills in what sending a token costs.
func (k *picking) charges(r *rate, kvBytes int) {
	if k.fleet.Transfer.BytesPerSecond > 0 {
		ms := 1000 * float64(kvBytes) / k.fleet.Transfer.BytesPerSecond
		for l, speed := range k.links.speeds {
			r.token[l] = ms / speed
		}
	}
}

// leg is the price of a prefill on i alone: queue, loads, prefill with its delay to
// others, adapter, adjustments.
func (k *picking) leg(i int) float64 {
	c := &k.board.candidates[i]
	return c.queue + k.compute(i)*c.weight + k.offers[c.menu].adapter + k.extra[i]
}

// transfer is the time to bring the KV to d from that far. What d holds already is
// not sent.
func (k *picking) transfer(d int, l link) float64 {
	tokens := k.req.ISL - int(k.cached[d])
	if tokens <= 0 {
		return 0
	}
	return k.fleet.Transfer.SetupMs + float64(tokens)*k.rates[k.board.candidates[d].class].token[l]
}

// pair is the price of decoding on d after a prefill that far away that costs leg:
//
//	max(leg + transfer, queue on d) + adapter + decode + adjustments on d
//
// The queue on d drains while the other works, so only what is left of it by
// then counts.
func (k *picking) pair(leg float64, l link, d int) float64 {
	c := &k.board.candidates[d]
	return max(leg+k.transfer(d, l), c.queue) + k.after(d)
}

// after is what comes after the transfer to d and the queue there.
func (k *picking) after(d int) float64 {
	c := &k.board.candidates[d]
	return (k.offers[c.menu].adapter + (c.decode + k.rates[c.class].decode)) + k.extra[d]
}

// far is how far two candidates are apart.
func (k *picking) far(p, d int) link {
	if !k.links.many {
		return k.links.one
	}
	b := k.board
	return b.spots[b.candidates[p].spot].to(b.spots[b.candidates[d].spot])
}

// takeOver is the step in which a decode worker computes a prompt's last token.
func (k *picking) takeOver(c *candidate) float64 {
	p := &k.board.classes[c.class].timing.Prefill
	return p.A + p.B + c.step(&k.rates[c.class])
}

// partner is the best prefill worker for d, and how far away it is. A price never
// falls when the leg grows, so of those that are equally far the one with the least
// leg is best; of equal prices the nearest's is taken.
func (k *picking) partner(d int) (p int, leg float64, l link) {
	p = k.choice.prefill
	if !k.links.many || k.policy != PolicyKV {
		return p, k.leg(p), k.far(p, d)
	}
	s := k.board.spots[k.board.candidates[d].spot]
	least := math.Inf(1)
	try := func(b *best, far link) {
		if b.at < 0 {
			return
		}
		if price := k.pair(b.value, far, d); price < least {
			p, leg, l, least = b.at, b.value, far, price
		}
	}
	if s.domain != 0 {
		try(&k.links.domains[s.domain], linkDomain)
	}
	if s.rack != 0 {
		try(&k.links.racks[s.rack], linkRack)
	}
	if s.zone == 0 {
		try(&k.links.all, linkZone)
		return p, leg, l
	}
	same := &k.links.zones[s.zone]
	if unknown := &k.links.zones[0]; unknown.before(same) {
		same = unknown
	}
	try(same, linkZone)
	try(&k.links.all, linkFar)
	return p, leg, l
}

// bestPair is the best target after a prefill elsewhere, and its price. Most need not
// be priced: a pair costs at least its leg, or the target's queue, and what comes
// after either.
func (k *picking) bestPair() (int, float64) {
	b := noBest()
	candidates, outs := k.board.candidates, k.out[:len(k.board.candidates)]
	slo, leg := k.slo != (SLO{}), k.links.all.value
	for i := range candidates {
		if outs[i] != notOut {
			continue
		}
		c := &candidates[i]
		after := k.offers[c.menu].adapter + (c.decode + k.rates[c.class].decode) + k.extra[i]
		if leg+after > b.value || c.queue+after > b.value {
			continue
		}
		p, leg, l := k.links.all.at, leg, k.links.one
		if k.links.many {
			p, leg, l = k.partner(i)
		}
		total := max(leg+k.transfer(i, l), c.queue) + after
		if slo {
			total += k.missPair(p, l, i)
		}
		b.offer(total, i, c.key, k.seed)
	}
	return b.at, b.value
}
