package picker

import (
	"cmp"
	"slices"
	"sort"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/kvindex"
)

// Pick chooses where a request goes. It is pure: equal arguments give an equal
// plan, whatever order Matches and Subset are in. It does not keep its arguments.
//
// Endpoints are ruled out by the subset, as relays, as not ready, by the model,
// by their limits and, as targets, as prefill-only workers, in that order. What
// is left is priced and the policy chooses. With prefill workers, one that
// prefills for another is a candidate too (see [picking.pair]).
func Pick(req *Request, fleet *Fleet) Plan {
	k := picking{req: req, fleet: fleet, policy: cmp.Or(req.Policy, fleet.Policy, PolicyKV), seed: xxh3.HashString(req.ID)}
	k.costs = make([]Cost, len(fleet.Endpoints), k.room())
	k.filter()
	if reason := k.refusal(); reason != "" {
		return k.refuse(reason)
	}
	k.credit()
	k.adapter = k.isAdapter()
	for i := range fleet.Endpoints {
		k.price(i)
	}
	k.addPairs()
	return k.plan(k.choose())
}

// picking is one call of Pick.
type picking struct {
	req    *Request
	fleet  *Fleet
	policy Policy
	seed   uint64 // of the ties
	// adapter: the request's model is an adapter that workers may have to load.
	adapter bool
	// costs[i] is fleet.Endpoints[i] alone; pairs of a prefill worker and a
	// target follow.
	costs []Cost
}

// Why a candidate is out. The prefill-only workers that nothing else rules out
// are the candidates for the prefill leg.
const (
	outSubset   = "not in the subset"
	outRelay    = "relay"
	outNotReady = "not ready"
	outModel    = "other model"
	outRequests = "request limit"
	outQueue    = "queue limit"
	outPrefill  = "prefill only"
)

// room is the most costs there can be: every endpoint alone, and after a prefill
// worker if there is one.
func (k *picking) room() int {
	n := len(k.fleet.Endpoints)
	for i := range k.fleet.Endpoints {
		if k.fleet.Endpoints[i].Role == kvindex.RolePrefill {
			return 2 * n
		}
	}
	return n
}

func (k *picking) filter() {
	targets := false
	for i := range k.fleet.Endpoints {
		e := &k.fleet.Endpoints[i]
		out := k.ruledOut(e)
		k.costs[i].Target = Target{Worker: e.Worker, Rank: e.Rank, Address: e.Address}
		k.costs[i].Excluded = out
		targets = targets || out == ""
	}
	if targets || k.req.Model != "" {
		return
	}
	// A path without a model needs no decode worker.
	for i := range k.costs {
		if k.costs[i].Excluded == outPrefill {
			k.costs[i].Excluded = ""
		}
	}
}

func (k *picking) ruledOut(e *Endpoint) string {
	switch f := k.fleet; {
	case k.req.HasSubset && !slices.Contains(k.req.Subset, e.Address):
		return outSubset
	case e.Role == kvindex.RoleRelay:
		return outRelay
	case !e.Ready:
		return outNotReady
	case k.req.Model != "" && !e.serves(k.req.Model):
		return outModel
	case f.MaxRequests > 0 && e.Requests >= f.MaxRequests:
		return outRequests
	case f.MaxQueueMs > 0 && e.QueueMs > f.MaxQueueMs:
		return outQueue
	case e.Role == kvindex.RolePrefill:
		return outPrefill
	default:
		return ""
	}
}

// credit fills in Cached from the request's matches. An engine computes the last
// token of a prompt again even if all of it is cached, so the credit ends with
// the last whole block before it. Blocks in slower tiers give no credit: nothing
// moves them up before the prefill yet, so they cost as much as absent ones.
func (k *picking) credit() {
	eps := k.fleet.Endpoints
	for j := range k.req.Matches {
		m := &k.req.Matches[j]
		i := sort.Search(len(eps), func(i int) bool {
			return eps[i].Worker > m.Worker || eps[i].Worker == m.Worker && eps[i].Rank >= m.Rank
		})
		if i == len(eps) || eps[i].Worker != m.Worker || eps[i].Rank != m.Rank || eps[i].BlockSize < 1 || k.req.ISL < 1 {
			continue
		}
		blocks := min(int(m.Depth[kvindex.Device]), (k.req.ISL-1)/eps[i].BlockSize)
		k.costs[i].Cached = blocks * eps[i].BlockSize
	}
}

// price sets the terms of endpoint i alone. For a prefill-only worker these are
// the terms of a prefill leg.
func (k *picking) price(i int) {
	e, c := &k.fleet.Endpoints[i], &k.costs[i]
	if c.Excluded != "" && c.Excluded != outPrefill {
		return
	}
	uncached := max(1, k.req.ISL-c.Cached)
	c.Queue = e.QueueMs
	c.Compute = e.Timing.PrefillMs(uncached, c.Cached, k.fleet.ChunkTokens)
	c.Delay = k.fleet.Alpha * c.Compute * float64(e.Requests)
	if k.adapter && !slices.Contains(e.Adapters, k.req.Model) {
		c.Adapter = k.fleet.AdapterMs
	}
	if c.Excluded == "" {
		c.Decode = e.Timing.DecodeMs(e.Decoding+1, e.ContextTokens+k.req.ISL)
	}
	c.sum()
}

// isAdapter reports whether any worker lists the request's model as an adapter.
// If none does and it is one all the same, every worker has to load it and the
// choice does not change.
func (k *picking) isAdapter() bool {
	if k.req.Model == "" {
		return false
	}
	for i := range k.fleet.Endpoints {
		if slices.Contains(k.fleet.Endpoints[i].Adapters, k.req.Model) {
			return true
		}
	}
	return false
}

// addPairs appends the best pair for each target if there are prefill workers
// to choose from. Which of them is best does not depend on the target.
func (k *picking) addPairs() {
	p := k.choosePrefill()
	if p < 0 || k.req.Model == "" {
		return
	}
	prefill := k.costs[p].Target
	for d := range k.fleet.Endpoints {
		if k.costs[d].Excluded == "" {
			k.costs = append(k.costs, k.pair(p, d))
			k.costs[len(k.costs)-1].Prefill = &prefill
		}
	}
}

// pair is the cost of prefilling on p and decoding on d:
//
//	max(queue + prefill + adapter + delay on p, + transfer, queue on d) + adapter + decode on d
//
// The queue on d drains while p works, so only what is left of it by then
// counts. As the total never falls when the first four terms grow, the p with
// the least sum of them is best for every d, and finding the best pair takes one
// pass over each side. What d holds already is not transferred.
func (k *picking) pair(p, d int) Cost {
	c, local, e := k.costs[p], &k.costs[d], &k.fleet.Endpoints[d]
	c.Target, c.Excluded = local.Target, ""
	c.Transfer = k.fleet.Transfer.Ms(k.req.ISL-local.Cached, e.KVBytesPerToken)
	c.Queue += max(0, e.QueueMs-c.Total-c.Transfer)
	c.Adapter += local.Adapter
	c.Decode = local.Decode
	c.sum()
	return c
}

func (c *Cost) sum() {
	c.Total = c.Queue + c.Load + c.Compute + c.Transfer + c.Adapter + c.Delay + c.Decode
}

func (e *Endpoint) serves(model string) bool {
	return slices.Contains(e.Served, model) || slices.Contains(e.Adapters, model)
}
