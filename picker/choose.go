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
	if k.policy == PolicyRoundRobin || k.policy == PolicyRandom {
		c.local, c.prefill = k.byTurn(decodeLeg, notOut), k.byTurn(prefillLeg, outPrefill)
	}
	if k.req.Model == "" {
		c.prefill = -1
	}
	c.target = c.local
	switch {
	case c.prefill < 0:
	case k.policy != PolicyKV:
		c.paired, c.remote = c.local, true
	default:
		leg := k.leg(c.prefill)
		c.paired = k.bestPair(leg)
		if k.pair(leg, c.paired)+k.fleet.Transfer.SetupMs < k.totals[c.local] {
			c.target, c.remote = c.paired, true
		}
	}
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

// bestPair is the best target after the prefill leg.
func (k *picking) bestPair(leg float64) int {
	b := noBest()
	for i := range k.board.candidates {
		if k.out[i] == notOut {
			b.offer(k.pair(leg, i), i, k.board.candidates[i].key, k.seed)
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
	case c.most >= 0 && k.cached[c.most] > k.cached[c.target]:
		return ReasonSpill
	case k.cached[c.target] > 0:
		return ReasonCached
	default:
		return ReasonLeastCost
	}
}

// backUp finds the next best addresses for when the target does not answer:
// hosts not named yet come first, since a dead node takes all its ports with it.
func (k *picking) backUp() {
	c := &k.choice
	sameHost := false
	for c.backups < min(k.fleet.Fallbacks, maxFallbacks) {
		next := k.nextBest(sameHost)
		switch {
		case next >= 0:
			c.fallbacks[c.backups] = int32(next)
			c.backups++
		case sameHost:
			return
		default:
			sameHost = true
		}
	}
}

// nextBest is the best target whose host, or else whose address, is not named.
func (k *picking) nextBest(sameHost bool) int {
	b := noBest()
	for i, total := range k.totals {
		if total > b.value || k.out[i] != notOut || k.named(i, sameHost) {
			continue
		}
		b.offer(total, i, k.board.candidates[i].key, k.seed)
	}
	return b.at
}

func (k *picking) named(i int, sameHost bool) bool {
	p, c := &k.board.places[i], &k.choice
	same := func(other int) bool {
		o := &k.board.places[other]
		return o.address == p.address || !sameHost && o.host == p.host
	}
	if same(c.target) {
		return true
	}
	for _, other := range c.fallbacks[:c.backups] {
		if same(int(other)) {
			return true
		}
	}
	return false
}
