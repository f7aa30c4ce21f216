package picker

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// naive is the plan as the definition says it: every endpoint and every pair is
// priced, the cheapest wins. It shares no code with Pick but the types and the
// timing model.
type naive struct {
	reason  Reason
	target  *Endpoint
	prefill *Endpoint
	total   float64
	cached  int
}

func naiveCached(req *Request, e *Endpoint) int {
	blocks := 0
	for _, m := range req.Matches {
		if m.Worker == e.Worker && m.Rank == e.Rank {
			blocks = int(m.Depth[0])
		}
	}
	for blocks > 0 && blocks*e.BlockSize >= req.ISL {
		blocks--
	}
	return blocks * e.BlockSize
}

func naiveAdapter(req *Request, f *Fleet, e *Endpoint) float64 {
	loadedSomewhere := false
	for _, o := range f.Endpoints {
		loadedSomewhere = loadedSomewhere || slices.Contains(o.Adapters, req.Model)
	}
	if loadedSomewhere && !slices.Contains(e.Adapters, req.Model) {
		return f.AdapterMs
	}
	return 0
}

// naivePrefill is the compute and the total of a prefill on e.
func naivePrefill(req *Request, f *Fleet, e *Endpoint) float64 {
	c := naiveCached(req, e)
	u := max(1, req.ISL-c)
	ms := math.Ceil(float64(u)/float64(f.ChunkTokens))*e.Timing.Prefill.A +
		e.Timing.Prefill.B*float64(u) + e.Timing.Prefill.G*float64(u)*(float64(c)+float64(u)/2)
	return e.QueueMs + ms + f.Alpha*ms*float64(e.Requests) + naiveAdapter(req, f, e)
}

func naiveDecode(req *Request, e *Endpoint) float64 {
	d := e.Timing.Decode
	return d.D + d.E*float64(e.Decoding+1) + d.F*float64(e.ContextTokens+req.ISL)
}

func naiveOver(f *Fleet, e *Endpoint) bool {
	return f.MaxRequests > 0 && e.Requests >= f.MaxRequests || f.MaxQueueMs > 0 && e.QueueMs > f.MaxQueueMs
}

func naivePick(req *Request, f *Fleet) naive {
	serves := func(e *Endpoint) bool {
		return req.Model == "" || slices.Contains(e.Served, req.Model) || slices.Contains(e.Adapters, req.Model)
	}
	var targets, prefills, over []*Endpoint
	members, serving := 0, 0
	for i := range f.Endpoints {
		e := &f.Endpoints[i]
		if e.Role == kvindex.RoleRelay {
			continue
		}
		members++
		if !serves(e) {
			continue
		}
		serving++
		isTarget := e.Role != kvindex.RolePrefill
		switch {
		case !e.Ready || req.HasSubset && !slices.Contains(req.Subset, e.Address):
		case naiveOver(f, e):
			if isTarget || req.Model == "" {
				over = append(over, e)
			}
		case isTarget:
			targets = append(targets, e)
		default:
			prefills = append(prefills, e)
		}
	}
	if req.Model == "" {
		if len(targets) == 0 {
			targets = prefills
		}
		prefills = nil
	}
	switch {
	case len(targets) > 0:
		return naiveBest(req, f, targets, prefills)
	case members > 0 && serving == 0:
		return naive{reason: ReasonNoModel}
	case len(over) > 0:
		return naive{reason: ReasonOverloaded}
	case req.HasSubset:
		return naive{reason: ReasonSubset}
	default:
		return naive{reason: ReasonNoEndpoint}
	}
}

func naivePair(req *Request, f *Fleet, p, d *Endpoint) float64 {
	transfer := 0.0
	if move := req.ISL - naiveCached(req, d); move > 0 {
		transfer = f.Transfer.SetupMs + float64(move)*float64(d.KVBytesPerToken)/f.Transfer.BytesPerSecond*1000
	}
	return max(naivePrefill(req, f, p)+transfer, d.QueueMs) + naiveAdapter(req, f, d) + naiveDecode(req, d)
}

func naiveBest(req *Request, f *Fleet, targets, prefills []*Endpoint) naive {
	local := naive{total: math.Inf(1), reason: ReasonLeastCost}
	most := 0
	for _, d := range targets {
		most = max(most, naiveCached(req, d))
		if total := naivePrefill(req, f, d) + naiveDecode(req, d); total < local.total {
			local.target, local.total, local.cached = d, total, naiveCached(req, d)
		}
	}
	pair := naive{total: math.Inf(1), reason: ReasonRemote}
	for _, p := range prefills {
		for _, d := range targets {
			if total := naivePair(req, f, p, d); total < pair.total {
				pair.target, pair.prefill, pair.total, pair.cached = d, p, total, naiveCached(req, p)
			}
		}
	}
	if pair.total+f.Transfer.SetupMs < local.total {
		return pair
	}
	if local.cached > 0 {
		local.reason = ReasonCached
	}
	if local.cached < most {
		local.reason = ReasonSpill
	}
	return local
}

// near allows for sums in another order.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*(1+math.Abs(a)+math.Abs(b)) }

// TestPickAgainstNaive compares 100,000 random states with the naive pick. Most
// figures come from short lists, so that ties are frequent.
func TestPickAgainstNaive(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	table, reasons := timing.Known(), map[Reason]int{}
	for i := range 100_000 {
		f, req := randomState(r, table, i)
		plan := Pick(&req, &f)
		if err := checkPlan(&req, &f, &plan); err != nil {
			t.Fatalf("seed %d state %d: %v\nrequest %+v\nfleet %+v\n%s", seed, i, err, req, f, describe(&plan))
		}
		reasons[plan.Reason]++
	}
	t.Logf("reasons: %v", reasons)
	for _, reason := range []Reason{
		ReasonCached, ReasonLeastCost, ReasonSpill, ReasonRemote, ReasonNoEndpoint, ReasonSubset, ReasonNoModel, ReasonOverloaded,
	} {
		if reasons[reason] < 100 {
			t.Errorf("reason %s came up %d times: the states do not cover it", reason, reasons[reason])
		}
	}
}

func oneOf[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

func randomState(r *rand.Rand, table timing.Table, i int) (Fleet, Request) {
	f := Fleet{
		Policy: PolicyKV, Alpha: oneOf(r, 0, 0.1, 0.25), ChunkTokens: oneOf(r, 512, 8192), Fallbacks: r.IntN(4),
		Transfer: table.Transfer, AdapterMs: oneOf(r, 0, 100.0),
		MaxRequests: oneOf(r, 0, 0, 0, 5), MaxQueueMs: oneOf(r, 0, 0, 0, 400.0),
	}
	roles := oneOf(r,
		[]kvindex.Role{kvindex.RoleAggregated}, []kvindex.Role{kvindex.RoleDecode, kvindex.RolePrefill},
		[]kvindex.Role{kvindex.RoleAggregated, kvindex.RolePrefill, kvindex.RoleDecode, kvindex.RoleRelay})
	up := oneOf(r, 0.3, 0.9, 1)
	for n := range r.IntN(9) {
		d := oneOf(r, table.Deployments[0], table.Deployments[0], table.Deployments[6])
		f.Endpoints = append(f.Endpoints, Endpoint{
			Worker: kvindex.WorkerID(fmt.Sprintf("w%d", n/2)), Rank: uint16(n % 2),
			Address: fmt.Sprintf("10.0.0.%d:800%d", n/3, n%3), Role: oneOf(r, roles...), Ready: r.Float64() < up,
			Served: oneOf(r, []string{"m"}, []string{"m"}, []string{"m", "lora"}, []string{"x"}), Adapters: oneOf(r, nil, nil, []string{"lora"}),
			BlockSize: 16, Timing: d.Timing(), KVBytesPerToken: d.KVBytesPerToken,
			QueueMs: oneOf(r, 0, 0, 10, 300, 500*r.Float64()), Requests: oneOf(r, 0, 0, 1, 5, 20),
			ContextTokens: oneOf(r, 0, 0, 5000, 100000), Decoding: oneOf(r, 0, 1, 8), KVFree: -1,
		})
	}
	req := randomRequest(r, i, &f)
	return f, req
}

func randomRequest(r *rand.Rand, i int, f *Fleet) Request {
	req := Request{
		ID: fmt.Sprintf("r%d", i), Model: oneOf(r, "m", "m", "m", "m", "lora", "none", ""), ISL: oneOf(r, 0, 1, 16, 17, 100, 2000, 8192, 30000),
		HasSubset: r.IntN(5) == 0, Turn: r.Uint64N(100),
	}
	for _, e := range f.Endpoints {
		if r.IntN(2) == 0 {
			depth := oneOf(r, 0, 1, uint32(req.ISL/32), uint32(req.ISL/16), uint32(req.ISL))
			req.Matches = append(req.Matches, kvindex.Match{Worker: e.Worker, Rank: e.Rank, Depth: [kvindex.NumTiers]uint32{depth, depth + 5, depth + 5, depth + 9}})
		}
		if r.IntN(2) == 0 {
			req.Subset = append(req.Subset, e.Address, e.Address)
		}
	}
	req.Matches = append(req.Matches, kvindex.Match{Worker: "gone", Depth: [kvindex.NumTiers]uint32{9, 9, 9, 9}})
	r.Shuffle(len(req.Matches), func(i, j int) { req.Matches[i], req.Matches[j] = req.Matches[j], req.Matches[i] })
	return req
}

func checkPlan(req *Request, f *Fleet, p *Plan) error {
	want := naivePick(req, f)
	if p.OK() != (want.target != nil) {
		return fmt.Errorf("target: got %v, want %v", p.OK(), want)
	}
	if !p.OK() {
		if p.Reason != want.reason || (p.RetryAfterMs > 0) != (p.Reason == ReasonOverloaded) || len(p.Costs) != len(f.Endpoints) {
			return fmt.Errorf("refusal: got %s, want %s", p.Reason, want.reason)
		}
		return nil
	}
	chosen := p.Costs[0]
	if chosen.Target != p.Decode || (chosen.Prefill == nil) != (p.Prefill == nil) {
		return errors.New("first cost is not the chosen one")
	}
	if !near(chosen.Total, want.total) {
		// At the edge of the margin the two may choose differently.
		if !near(min(chosen.Total, want.total)+f.Transfer.SetupMs, max(chosen.Total, want.total)) {
			return fmt.Errorf("total: got %v, want %v", chosen.Total, want.total)
		}
		return nil
	}
	if (p.Prefill != nil) != (want.prefill != nil) {
		return fmt.Errorf("prefill: got %v, want %v", p.Prefill, want.prefill)
	}
	if err := checkReason(p, &want); err != nil {
		return err
	}
	if err := checkCosts(req, f, p); err != nil {
		return err
	}
	return checkFallbacks(req, f, p)
}

// checkReason compares the reason with the naive one's, where both chose the same worker.
func checkReason(p *Plan, want *naive) error {
	if p.Decode.Worker != want.target.Worker || p.Decode.Rank != want.target.Rank {
		return nil
	}
	if p.Prefill == nil && p.Cached != want.cached {
		return fmt.Errorf("cached: got %d, want %d", p.Cached, want.cached)
	}
	if p.Reason != want.reason {
		return fmt.Errorf("reason: got %s, want %s", p.Reason, want.reason)
	}
	return nil
}

// checkCosts holds that every endpoint is listed, that totals are sums, that the
// excluded ones come last, and that a tie went to the least hash.
func checkCosts(req *Request, f *Fleet, p *Plan) error {
	listed, pairs, excluded := 0, 0, false
	for _, c := range p.Costs {
		if c.Prefill == nil {
			listed++
		} else {
			pairs++
		}
		if excluded && c.Excluded == "" {
			return fmt.Errorf("candidate %v after an excluded one", c.Target)
		}
		excluded = c.Excluded != ""
		if sum := c.Queue + c.Load + c.Compute + c.Transfer + c.Adapter + c.Delay + c.Decode; !near(sum, c.Total) {
			return fmt.Errorf("cost %v: total %v, sum %v", c.Target, c.Total, sum)
		}
		if !near(c.TTFT(), c.Total-c.Delay) {
			return fmt.Errorf("cost %v: TTFT %v", c.Target, c.TTFT())
		}
		same := c
		same.Target, same.Prefill = p.Decode, p.Costs[0].Prefill
		if (c.Prefill == nil) == (p.Prefill == nil) && same == p.Costs[0] && naiveTie(req, c.Target) < naiveTie(req, p.Decode) {
			return fmt.Errorf("tie of %v and %v went to the greater hash", p.Decode, c.Target)
		}
	}
	if listed != len(f.Endpoints) {
		return fmt.Errorf("%d endpoints listed, want %d", listed, len(f.Endpoints))
	}
	return nil
}

func naiveTie(req *Request, t Target) uint64 { return tie(tieKey(&t), xxh3.HashString(req.ID)) }

// checkFallbacks sorts the other candidates and takes new hosts first, then new
// addresses.
func checkFallbacks(req *Request, f *Fleet, p *Plan) error {
	var rest []Cost
	for _, c := range p.Costs {
		if c.Excluded == "" && c.Prefill == nil {
			rest = append(rest, c)
		}
	}
	slices.SortFunc(rest, func(a, b Cost) int {
		if a.Total < b.Total || a.Total == b.Total && naiveTie(req, a.Target) < naiveTie(req, b.Target) {
			return -1
		}
		return 1
	})
	hostOf := func(address string) string { return address[:len("10.0.0.0")] }
	addresses, hosts := map[string]bool{p.Decode.Address: true}, map[string]bool{hostOf(p.Decode.Address): true}
	var want []Target
	for _, sameHost := range []bool{false, true} {
		for _, c := range rest {
			a := c.Target.Address
			if len(want) == f.Fallbacks || addresses[a] || hosts[hostOf(a)] && !sameHost {
				continue
			}
			addresses[a], hosts[hostOf(a)] = true, true
			want = append(want, c.Target)
		}
	}
	if !slices.Equal(p.Fallbacks, want) {
		return fmt.Errorf("fallbacks: got %v, want %v", p.Fallbacks, want)
	}
	return nil
}
