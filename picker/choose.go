package picker

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"
)

// The legs of a request; the random policy chooses for each alone.
const (
	decodeLeg  = 0
	prefillLeg = 1
)

// choosePrefill is the place in costs of the worker for the prefill leg; -1 if
// there is none.
func (k *picking) choosePrefill() int {
	return k.byPolicy(prefillLeg, func(c *Cost) bool { return c.Excluded == outPrefill })
}

// choose is the place in costs of the target, alone or with the prefill worker.
// PolicyKV takes the least total; a pair must be cheaper than staying local by
// more than the set-up of a transfer, since the hand-off is one more thing that
// can fail. The other policies use prefill workers wherever there are any.
func (k *picking) choose() int {
	local := k.byPolicy(decodeLeg, func(c *Cost) bool { return c.Excluded == "" && c.Prefill == nil })
	pairs := k.costs[len(k.fleet.Endpoints):]
	if len(pairs) == 0 {
		return local
	}
	if k.policy != PolicyKV {
		target := k.costs[local].Target
		return len(k.fleet.Endpoints) + slices.IndexFunc(pairs, func(c Cost) bool { return c.Target == target })
	}
	pair := k.byPolicy(decodeLeg, func(c *Cost) bool { return c.Prefill != nil })
	if k.costs[pair].Total+k.fleet.Transfer.SetupMs < k.costs[local].Total {
		return pair
	}
	return local
}

// byPolicy applies the policy to the costs for which in is true; -1 if there
// are none.
func (k *picking) byPolicy(leg byte, in func(*Cost) bool) int {
	switch k.policy {
	case PolicyRoundRobin:
		return k.nth(k.req.Turn, in)
	case PolicyRandom:
		return k.nth(xxh3.HashSeed([]byte{leg}, k.seed), in)
	case PolicyLeastRequests:
		return k.least(in, func(i int) float64 { return float64(k.fleet.Endpoints[i].Requests) })
	default:
		return k.least(in, func(i int) float64 { return k.costs[i].Total })
	}
}

// nth is the (turn mod n)-th of the n costs for which in is true.
func (k *picking) nth(turn uint64, in func(*Cost) bool) int {
	n := uint64(0)
	for i := range k.costs {
		if in(&k.costs[i]) {
			n++
		}
	}
	if n == 0 {
		return -1
	}
	turn %= n
	for i := range k.costs {
		if !in(&k.costs[i]) {
			continue
		}
		if turn == 0 {
			return i
		}
		turn--
	}
	return -1
}

// least is the place of the smallest value among the costs for which in is
// true; equal ones are ordered by a hash of the request's ID and the target.
func (k *picking) least(in func(*Cost) bool, value func(int) float64) int {
	best, bestValue := -1, 0.0
	for i := range k.costs {
		if !in(&k.costs[i]) {
			continue
		}
		v := value(i)
		if best < 0 || v < bestValue || v == bestValue && k.tie(i) < k.tie(best) {
			best, bestValue = i, v
		}
	}
	return best
}

// tie is the rank of a candidate among equals: the hash of the request's ID,
// the worker and its rank.
func (k *picking) tie(i int) uint64 {
	t := &k.costs[i].Target
	var rank [2]byte
	binary.LittleEndian.PutUint16(rank[:], t.Rank)
	return xxh3.HashSeed(rank[:], xxh3.HashStringSeed(string(t.Worker), k.seed))
}

// plan is the answer with costs[best] chosen.
func (k *picking) plan(best int) Plan {
	c := k.costs[best]
	p := Plan{
		Request: k.req.ID, Decode: c.Target, Prefill: c.Prefill,
		ISL: k.req.ISL, Cached: c.Cached, TTFTMs: c.TTFT(), Reason: k.reason(&c),
	}
	p.Fallbacks = k.fallbacks(c.Target)
	copy(k.costs[1:best+1], k.costs[:best])
	k.costs[0] = c
	p.Costs = excludedLast(k.costs)
	return p
}

func (k *picking) reason(chosen *Cost) Reason {
	if k.policy != PolicyKV {
		return ReasonPolicy
	}
	if chosen.Prefill != nil {
		return ReasonRemote
	}
	for i := range k.fleet.Endpoints {
		if k.costs[i].Excluded == "" && k.costs[i].Cached > chosen.Cached {
			return ReasonSpill
		}
	}
	if chosen.Cached > 0 {
		return ReasonCached
	}
	return ReasonLeastCost
}

// fallbacks are the next best addresses for when the target does not answer:
// hosts not named yet come first, since a dead node takes all its ports with it.
func (k *picking) fallbacks(target Target) []Target {
	if k.fleet.Fallbacks < 1 {
		return nil
	}
	named := make([]Target, 1, k.fleet.Fallbacks+1)
	named[0] = target
	unnamed := func(c *Cost) bool {
		return c.Excluded == "" && c.Prefill == nil &&
			!slices.ContainsFunc(named, func(t Target) bool { return t.Address == c.Target.Address })
	}
	otherHost := func(c *Cost) bool {
		return unnamed(c) && !slices.ContainsFunc(named, func(t Target) bool { return host(t.Address) == host(c.Target.Address) })
	}
	total := func(i int) float64 { return k.costs[i].Total }
	for len(named) <= k.fleet.Fallbacks {
		next := k.least(otherHost, total)
		if next < 0 {
			next = k.least(unnamed, total)
		}
		if next < 0 {
			break
		}
		named = append(named, k.costs[next].Target)
	}
	return named[1:]
}

// host is an address without its port.
func host(address string) string {
	for i := len(address) - 1; i >= 0; i-- {
		if address[i] == ':' {
			return address[:i]
		}
	}
	return address
}

// excludedLast moves the excluded costs to the end and keeps the order otherwise.
func excludedLast(costs []Cost) []Cost {
	first := slices.IndexFunc(costs, func(c Cost) bool { return c.Excluded != "" })
	if first < 0 {
		return costs
	}
	var out []Cost
	in := costs[:first]
	for i := first; i < len(costs); i++ {
		if costs[i].Excluded == "" {
			in = append(in, costs[i])
			continue
		}
		out = append(out, costs[i])
	}
	return append(in, out...)
}
