package picker

import (
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/internal/timing"
)

// Pick chooses where a request goes. It is pure: equal arguments give an equal
// plan, whatever order Matches and Subset are in. It does not keep its arguments.
//
// Endpoints are ruled out by the subset, as relays, as not ready, by the model,
// by their limits, by the request's adjustments and, as targets, as prefill-only workers, in that order. What
// is left is priced and the policy chooses. With prefill workers, one that
// prefills for another is a candidate too (see [picking.pair]).
//
// The plan lists every candidate. [Pool.Pick] decides by the same code over
// figures that it keeps up to date.
func Pick(req *Request, fleet *Fleet) Plan {
	b := board{
		candidates: make([]candidate, 0, len(fleet.Endpoints)), places: make([]place, 0, len(fleet.Endpoints)),
		classes: make([]class, 0, maxShare), menus: make([]menu, 0, maxShare),
	}
	for i := range fleet.Endpoints {
		b.add(&fleet.Endpoints[i], fleet)
	}
	k := picking{board: &b}
	k.begin(req, fleet, req.Turn)
	if req.HasSubset {
		for i := range b.places {
			k.in[i] = slices.Contains(req.Subset, b.places[i].Address)
		}
	}
	k.decide()
	return k.plan(math.MaxInt)
}

// picking is one call of Pick. Its slices are used again by the next.
type picking struct {
	board *board
	req   *Request
	// fleet is what holds for all candidates; its Endpoints are not read.
	fleet  *Fleet
	policy Policy
	turn   uint64
	seed   uint64 // of the ties

	// in are the candidates within the subset, if the request has one.
	in []bool
	// cached are tokens that need no prefill, credited the places that have any.
	cached   []int32
	credited []int32
	// computes are the prefills of those, ms, and loads the ms to bring a part of what
	// they hold from slower tiers.
	computes, loads []float64
	// extra is what loads and the request's adjustments add, ms, infinite for those
	// that are ruled out so; adjusted the places of those that are adjusted.
	extra    []float64
	adjusted []int32
	rates    []rate  // of each class
	offers   []offer // of each menu
	out      []exclusion
	// totals are the prices alone but for what a predicted miss costs, which few have to
	// be asked for; infinite for those that are no targets.
	totals  []float64
	leaders leaders
	slo     SLO
	links   links

	choice choice
}

// rate is what a class charges for the whole prompt, in ms.
type rate struct {
	compute, decode float64
	// steps is the number of its prefill's steps, single what it takes in one step.
	steps, single float64
	// sequence is what one more makes a decode step longer.
	sequence float64
	// token is the time to send a token so far.
	token [numLinks]float64
	// most is the credit of a worker that holds all of it, tokens.
	most int
}

// loadingShare is the part of an adapter's load that is left, on average, where it is
// under way.
const loadingShare = 0.5

// offer is what a menu has for the request's model.
type offer struct {
	out     exclusion // outModel if it does not have it
	adapter float64   // ms to load it
}

// choice is what was decided; places of candidates, -1 for none.
type choice struct {
	reason Reason
	target int // -1: refused
	// remote: the prompt is prefilled on from.
	remote bool
	// prefill is the best worker for a prefill leg, local the best target alone,
	// paired the best one after a prefill elsewhere and from where that is.
	prefill, local, paired, from int
	// most is the target that holds most of the prompt.
	most int
	// fallbacks are further targets; no more than there are.
	fallbacks [maxFallbacks]int32
	backups   int
	// handOff is why the prompt is prefilled elsewhere or not.
	handOff HandOff
}

// maxFallbacks is the most addresses that a plan names beside its target.
const maxFallbacks = 16

// begin sets the picking up for a request; the caller fills in.
func (k *picking) begin(req *Request, fleet *Fleet, turn uint64) {
	k.req, k.fleet, k.turn = req, fleet, turn
	k.seed = xxh3.HashString(req.ID)
	if k.policy = req.Policy; k.policy == "" {
		if k.policy = fleet.Policy; k.policy == "" {
			k.policy = PolicyKV
		}
	}
	k.target()
	for _, i := range k.credited {
		k.cached[i], k.loads[i], k.extra[i] = 0, 0, 0
	}
	for _, i := range k.adjusted {
		k.extra[i] = 0
	}
	k.credited, k.adjusted = k.credited[:0], k.adjusted[:0]
	n := len(k.board.candidates)
	if len(k.totals) != n {
		k.totals, k.cached, k.out, k.extra = make([]float64, n), make([]int32, n), make([]exclusion, n), make([]float64, n)
		k.loads, k.computes = make([]float64, n), make([]float64, n)
		k.credited, k.adjusted = make([]int32, 0, n), make([]int32, 0, n)
	}
	if req.HasSubset {
		k.in = append(k.in[:0], make([]bool, n)...)
	}
}

// decide makes the choice. It allocates nothing once its slices are long enough.
func (k *picking) decide() {
	k.choice = choice{target: -1, prefill: -1, local: -1, paired: -1, from: -1, most: -1}
	k.links.begin(k.board, &k.fleet.Links)
	k.charge()
	k.credit()
	k.adjust()
	k.price(outPrefill)
	if k.choice.local < 0 && k.req.Model == "" {
		k.price(outQueue) // a path without a model needs no decode worker
	}
	if k.choice.local < 0 {
		k.choice.reason = k.refusal()
		return
	}
	k.choose()
}

// adjust fills in extra from the request's adjustments.
func (k *picking) adjust() {
	for j := range k.req.Adjust {
		a := &k.req.Adjust[j]
		i := k.board.find(a.Worker, a.Rank)
		if i < 0 {
			continue
		}
		k.adjusted = append(k.adjusted, int32(i))
		switch {
		case a.Exclude != "":
			k.extra[i] = math.Inf(1)
		case !math.IsNaN(a.Ms) && !math.IsInf(a.Ms, 0):
			k.extra[i] += min(max(a.Ms, -MaxAdjustMs), MaxAdjustMs)
		}
	}
}

// charge fills in rates and offers.
func (k *picking) charge() {
	k.rates, k.offers = k.rates[:0], k.offers[:0]
	steps := float64(timing.Steps(max(1, k.req.ISL), k.fleet.ChunkTokens))
	for i := range k.board.classes {
		c := &k.board.classes[i]
		single := c.timing.PrefillMs(max(1, k.req.ISL), 0, 0)
		k.rates = append(k.rates, rate{
			decode: c.timing.Decode.F * float64(k.req.ISL),
			steps:  steps,
			single: single,

			sequence: c.timing.Decode.E,
			compute:  single + c.timing.Prefill.A*(steps-1),
			most:     max(0, k.req.ISL-1) / max(1, c.blockSize) * c.blockSize,
		})
		if k.board.split {
			k.charges(&k.rates[i], c.kvBytes)
		}
	}
	model, adapter := k.req.Model, 0.0
	// If no worker lists the model as an adapter and it is one all the same, every
	// worker has to load it and the choice does not change.
	if model != "" && slices.ContainsFunc(k.board.menus, func(m menu) bool {
		return slices.Contains(m.adapters, model) || slices.Contains(m.loading, model)
	}) {
		adapter = k.fleet.AdapterMs
	}
	for i := range k.board.menus {
		m := &k.board.menus[i]
		o := offer{adapter: adapter}
		switch {
		case slices.Contains(m.adapters, model):
			o.adapter = 0
		case slices.Contains(m.loading, model):
			o.adapter = adapter * loadingShare
		case model != "" && !slices.Contains(m.served, model):
			o.out = outModel
		}
		k.offers = append(k.offers, o)
	}
}

// price goes once over the candidates. It sets out and totals, and finds the best
// target alone, the best prefill worker and the target that holds most. Who is
// out for less than limit is a target.
func (k *picking) price(limit exclusion) {
	prefill, most := noBest(), int32(0)
	k.leaders.begin(min(k.fleet.Fallbacks, maxFallbacks) + 1)
	candidates := k.board.candidates
	cached, outs, totals := k.cached[:len(candidates)], k.out[:len(candidates)], k.totals[:len(candidates)]
	extra := k.extra[:len(candidates)]
	computes := k.computes[:len(candidates)]
	bar := math.Inf(1)
	strict := k.req.HasSubset || k.fleet.MaxRequests > 0 || k.fleet.MaxQueueMs > 0 || k.fleet.MaxKV > 0
	for i := range candidates {
		c := &candidates[i]
		rate, offer := &k.rates[c.class], &k.offers[c.menu]
		out := max(c.out, offer.out)
		if strict {
			out = max(out, k.limits(i, c))
		}
		if out > outPrefill {
			outs[i], totals[i] = out, math.Inf(1)
			continue
		}
		compute := rate.compute
		if cached[i] > 0 {
			compute = computes[i]
		}
		total := c.queue + compute*c.weight + offer.adapter + extra[i]
		if total > math.MaxFloat64 {
			outs[i], totals[i] = outAdjust, total
			continue
		}
		if out >= limit {
			outs[i], totals[i] = out, math.Inf(1)
			prefill.offer(total, i, c.key, k.seed)
			if k.links.many {
				k.links.offer(k.board.spots[c.spot], total, i, tie(c.key, k.seed))
			}
			continue
		}
		total += c.decode + rate.decode
		outs[i], totals[i] = notOut, total
		if total < bar || total == bar && tie(c.key, k.seed) < k.leaders.bar.tie {
			k.lead(i, total)
			bar = k.leaders.bar.value
		}
		if cached[i] > most {
			most, k.choice.most = cached[i], i
		}
	}
	k.choice.local, k.choice.prefill, k.links.all = k.leaders.first(), prefill.at, prefill
}

// limits is what the request's subset and adjustments and the fleet's limits rule
// out.
func (k *picking) limits(i int, c *candidate) exclusion {
	f := k.fleet
	switch {
	case k.req.HasSubset && !k.in[i]:
		return outSubset
	case k.extra[i] > math.MaxFloat64:
		return outAdjust
	case k.req.Unlimited:
		return notOut
	case f.MaxRequests > 0 && c.requests >= float64(f.MaxRequests):
		return outRequests
	case float64(k.req.ISL) > c.room:
		return outKV
	case f.MaxQueueMs > 0 && c.owes(k.req) > k.req.QueueMs(f.MaxQueueMs):
		return outShare
	case f.MaxQueueMs > 0 && c.queue > k.req.QueueMs(f.MaxQueueMs):
		return outQueue
	default:
		return notOut
	}
}

// QueueMs is the part of a limit of queues that the request may use.
func (r *Request) QueueMs(limit float64) float64 {
	if r.Room > 0 {
		return r.Room * limit
	}
	return limit
}

// owes is what a worker owes as far as the request is concerned, ms.
func (c *candidate) owes(r *Request) float64 {
	if r.Room > 0 {
		return c.spare
	}
	return c.owed
}

// best is the least value so far; equal ones are ordered by their ties.
type best struct {
	at    int
	value float64
	tie   uint64
}

func noBest() best { return best{at: -1, value: math.Inf(1), tie: math.MaxUint64} }

func (b *best) offer(value float64, i int, key, seed uint64) {
	if value <= b.value {
		b.take(value, i, tie(key, seed))
	}
}

func (b *best) take(value float64, i int, tie uint64) {
	if value < b.value || tie < b.tie {
		*b = best{at: i, value: value, tie: tie}
	}
}
