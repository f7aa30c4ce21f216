package picker

import (
	"math"
	"slices"

	"github.com/zeebo/xxh3"
)

// The legs of a request; the random policy chooses for each alone.
const (
	decodeLeg  = 0
	prefillLeg = 1
)

// choose fills in the choice among the candidates that [picking.price] found.
// PolicyKV takes the least total; a pair must be cheaper than staying local by
// more than the set-up of a transfer, since the hand-off is one more thing that
// can fail. The other policies use prefill workers wherever there are any.
func (k *picking) choose() {
	c := &k.choice
	switch k.policy {
	case PolicyRoundRobin, PolicyRandom:
		c.local, c.prefill = k.byTurn(decodeLeg, notOut), k.byTurn(prefillLeg, outPrefill)
	case PolicyLeastRequests:
		c.local, c.prefill = k.leastRequests(notOut), k.leastRequests(outPrefill)
	default: // PolicyKV: the prices say it
	}
	if k.req.Model == "" {
		c.prefill = -1
	}
	c.target = c.local
	switch {
	case c.prefill < 0:
	case k.policy != PolicyKV:
		c.paired, c.from, c.remote = c.local, c.prefill, true
	default:
		paired, total := k.bestPair()
		c.paired = paired
		c.from, _, _ = k.partner(paired)
		if total+k.fleet.Transfer.SetupMs < k.totals[c.local]+k.miss(c.local) {
			c.target, c.remote = c.paired, true
		}
	}
	c.handOff = k.handOff()
	c.reason = k.reason()
	k.backUp()
}

// byTurn is the target, or the prefill worker, whose turn it is.
func (k *picking) byTurn(leg byte, out exclusion) int {
	n := uint64(0)
	for _, o := range k.out {
		if o == out {
			n++
		}
	}
	if n == 0 {
		return -1
	}
	turn := k.turn
	if k.policy == PolicyRandom {
		turn = xxh3.HashSeed([]byte{leg}, k.seed)
	}
	turn %= n
	return slices.IndexFunc(k.out, func(o exclusion) bool {
		if o != out {
			return false
		}
		turn--
		return turn == math.MaxUint64
	})
}

func (k *picking) leastRequests(out exclusion) int {
	b := noBest()
	for i := range k.board.candidates {
		if c := &k.board.candidates[i]; k.out[i] == out {
			b.offer(c.requests, i, c.key, k.seed)
		}
	}
	return b.at
}

func (k *picking) reason() Reason {
	c := &k.choice
	switch {
	case k.policy != PolicyKV:
		return ReasonPolicy
	case c.remote:
		return ReasonRemote
	case k.spoiled():
		return ReasonSLO
	case c.most >= 0 && k.cached[c.most] > k.cached[c.target]:
		return ReasonSpill
	case k.cached[c.target] > 0:
		return ReasonCached
	default:
		return ReasonLeastCost
	}
}

// leaders are the best targets of as many sites as a plan can name, each site's
// best, in order.
type leaders struct {
	list [maxFallbacks + 1]leader
	n    int
	want int
	// bar is what has to be beaten to get in.
	bar best
}

type leader struct {
	best

	site uint64
}

func (l *leaders) begin(want int) { l.n, l.want, l.bar = 0, want, noBest() }

func (l *leaders) first() int {
	if l.n == 0 {
		return -1
	}
	return l.list[0].at
}

// lead lets target i into the leaders if it is good enough.
func (k *picking) lead(i int, total float64) {
	l := &k.leaders
	total += k.miss(i)
	in := leader{best{at: i, value: total, tie: tie(k.board.candidates[i].key, k.seed)}, k.board.site(i)}
	at, end := 0, l.n // its place, and that of who has to go
	for at < l.n && l.list[at].before(&in.best) {
		if l.list[at].site == in.site {
			return
		}
		at++
	}
	for j := at; j < l.n; j++ {
		if l.list[j].site == in.site {
			end = j
			break
		}
	}
	if at == l.want {
		return
	}
	if end == l.n {
		l.n = min(l.n+1, l.want)
		end = l.n - 1
	}
	copy(l.list[at+1:end+1], l.list[at:end])
	l.list[at] = in
	if l.n == l.want {
		l.bar = l.list[l.n-1].best
	}
}

func (b *best) before(o *best) bool { return b.value < o.value || b.value == o.value && b.tie < o.tie }

// backUp finds the next best addresses for when the target does not answer:
// hosts not named yet come first, since a dead node takes all its ports with it.
func (k *picking) backUp() {
	c, l := &k.choice, &k.leaders
	target := k.board.site(c.target)
	for i := range l.list[:l.n] {
		if c.backups < l.want-1 && l.list[i].site != target {
			c.fallbacks[c.backups] = int32(l.list[i].at)
			c.backups++
		}
	}
	for c.backups < l.want-1 {
		next := k.nextAddress()
		if next < 0 {
			return
		}
		c.fallbacks[c.backups] = int32(next)
		c.backups++
	}
}

// nextAddress is the best target whose address is not named.
func (k *picking) nextAddress() int {
	b := noBest()
	for i, total := range k.totals {
		if total <= b.value && k.out[i] == notOut && !k.named(k.board.places[i].address) {
			b.offer(total+k.miss(i), i, k.board.candidates[i].key, k.seed)
		}
	}
	return b.at
}

func (k *picking) named(address uint64) bool {
	c := &k.choice
	if k.board.places[c.target].address == address {
		return true
	}
	return slices.ContainsFunc(c.fallbacks[:c.backups], func(i int32) bool { return k.board.places[i].address == address })
}
