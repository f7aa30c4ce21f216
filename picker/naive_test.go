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
	// first is its time to first token, miss whether it misses a target.
	first float64
	miss  bool
	// plain is the total without what a miss costs; of a pair leg is the price of the
	// prefill and far how far it is away.
	plain, leg float64
	far        int
}

// naiveTerms are the terms of a prefill on e, in ms, and what it need not compute.
type naiveTerms struct {
	cached                                              int
	queue, load, compute, delay, adapter, adjust, steps float64
}

func (t naiveTerms) total() float64 {
	return t.queue + t.load + t.compute + t.delay + t.adapter + t.adjust
}

// naivePrefill are the terms where the blocks of the slower tiers count up to the
// one at whose end the total is least.
func naivePrefill(req *Request, f *Fleet, e *Endpoint) naiveTerms {
	var depth [kvindex.NumTiers]uint32
	for _, m := range req.Matches {
		if m.Worker == e.Worker && m.Rank == e.Rank {
			depth = m.Depth
		}
	}
	tokens := func(blocks uint32) int {
		n := int(blocks)
		for n > 0 && n*e.BlockSize >= req.ISL {
			n--
		}
		return n * e.BlockSize
	}
	best := naiveWith(req, f, e, tokens(depth[0]), 0)
	load := 0.0
	for tier := 1; tier < kvindex.NumTiers; tier++ {
		more := tokens(depth[tier]) - tokens(depth[tier-1])
		if more == 0 {
			continue
		}
		if e.LoadBytesPerSecond[tier] == 0 {
			break
		}
		load += float64(more) * float64(e.KVBytesPerToken) / e.LoadBytesPerSecond[tier] * 1000
		if with := naiveWith(req, f, e, tokens(depth[tier]), load); with.total() < best.total() {
			best = with
		}
	}
	return best
}

func naiveWith(req *Request, f *Fleet, e *Endpoint, c int, load float64) naiveTerms {
	u := max(1, req.ISL-c)
	t := naiveTerms{cached: c, load: load, queue: e.QueueMs, adapter: naiveAdapter(req, f, e), adjust: naiveAdjust(req, e)}
	t.steps = math.Ceil(float64(u) / float64(f.ChunkTokens))
	t.compute = t.steps*e.Timing.Prefill.A + e.Timing.Prefill.B*float64(u) + e.Timing.Prefill.G*float64(u)*(float64(c)+float64(u)/2)
	t.delay = f.Alpha * t.compute * float64(e.Requests)
	if f.MaxDelay > 0 {
		t.delay = min(t.delay, f.MaxDelay*t.compute)
	}
	return t
}

func naiveAdapter(req *Request, f *Fleet, e *Endpoint) float64 {
	somewhere := false
	for _, o := range f.Endpoints {
		somewhere = somewhere || slices.Contains(o.Adapters, req.Model) || slices.Contains(o.Loading, req.Model)
	}
	switch {
	case !somewhere || slices.Contains(e.Adapters, req.Model):
		return 0
	case slices.Contains(e.Loading, req.Model):
		return f.AdapterMs / 2
	default:
		return f.AdapterMs
	}
}

func naiveAdjust(req *Request, e *Endpoint) float64 {
	sum := 0.0
	for _, a := range req.Adjust {
		if a.Worker == e.Worker && a.Rank == e.Rank && a.Ms > -1e12 && a.Ms < 1e12 {
			sum += a.Ms
		}
	}
	return sum
}

func naiveBarred(req *Request, e *Endpoint) bool {
	return slices.ContainsFunc(req.Adjust, func(a Adjust) bool {
		return a.Worker == e.Worker && a.Rank == e.Rank && a.Exclude != ""
	})
}

func naiveDecode(req *Request, e *Endpoint) float64 {
	d := e.Timing.Decode
	return d.D + d.E*float64(e.Decoding+1) + d.F*float64(e.ContextTokens+req.ISL)
}

// naiveStep is the decode step that runs on e.
func naiveStep(e *Endpoint) float64 {
	d := e.Timing.Decode
	if e.Decoding == 0 {
		return 0
	}
	return d.D + d.E*float64(e.Decoding) + d.F*float64(e.ContextTokens)
}

// naiveMiss is whether times miss the targets.
func naiveMiss(req *Request, f *Fleet, first, decode float64) bool {
	slo := f.SLO
	if req.SLO.TTFTMs != 0 {
		slo.TTFTMs = req.SLO.TTFTMs
	}
	if req.SLO.TPOTMs != 0 {
		slo.TPOTMs = req.SLO.TPOTMs
	}
	return slo.TTFTMs > 0 && first > slo.TTFTMs || slo.TPOTMs > 0 && decode > slo.TPOTMs
}

// naiveAlone is all on e, naivePair decoding on d after a prefill on p.
func naiveAlone(req *Request, f *Fleet, e *Endpoint) naive {
	t, decode := naivePrefill(req, f, e), naiveDecode(req, e)
	n := naive{target: e, total: t.total() + decode, cached: t.cached}
	n.first = t.queue + t.load + t.compute + t.steps*naiveStep(e) + t.adapter
	n.plain = n.total
	if n.miss = naiveMiss(req, f, n.first, decode); n.miss {
		n.total += f.MissMs
	}
	return n
}

func naivePair(req *Request, f *Fleet, p, d *Endpoint) naive {
	tp, td, decode := naivePrefill(req, f, p), naivePrefill(req, f, d), naiveDecode(req, d)
	transfer := 0.0
	n := naive{target: d, prefill: p, cached: tp.cached, leg: tp.total(), far: 3}
	speed := f.Links.Far
	switch {
	case p.Domain != "" && p.Domain == d.Domain:
		speed, n.far = f.Links.Domain, 0
	case p.Rack != "" && p.Rack == d.Rack:
		speed, n.far = f.Links.Rack, 1
	case p.Zone == "" || d.Zone == "" || p.Zone == d.Zone:
		speed, n.far = 1, 2
	}
	if speed == 0 {
		speed = 1
	}
	if move := req.ISL - td.cached; move > 0 {
		transfer = f.Transfer.SetupMs + float64(move)*float64(d.KVBytesPerToken)/(f.Transfer.BytesPerSecond*speed)*1000
	}
	after := td.load + td.adapter
	n.total = max(tp.total()+transfer, td.queue) + after + td.adjust + decode
	n.first = max(tp.total()-tp.delay-tp.adjust+transfer, td.queue) + after + d.Timing.Prefill.A + d.Timing.Prefill.B + naiveStep(d)
	n.plain = n.total
	if n.miss = naiveMiss(req, f, n.first, decode); n.miss {
		n.total += f.MissMs
	}
	return n
}

func naiveOver(req *Request, f *Fleet, e *Endpoint) bool {
	limit, owed := f.MaxQueueMs, e.OwedMs
	if req.Room > 0 {
		limit, owed = f.MaxQueueMs*req.Room, e.SpareMs
	}
	full := float64(e.Pledged+req.ISL) > f.MaxKV*float64(e.KVTokens)
	return f.MaxQueueMs > 0 && owed > limit || f.MaxKV > 0 && e.KVTokens > 0 && e.Requests > 0 && full || f.MaxRequests > 0 && e.Requests >= f.MaxRequests || f.MaxQueueMs > 0 && e.QueueMs > limit
}

func naivePick(req *Request, f *Fleet) naive {
	serves := func(e *Endpoint) bool {
		return req.Model == "" || slices.Contains(e.Served, req.Model) || slices.Contains(e.Adapters, req.Model) ||
			slices.Contains(e.Loading, req.Model)
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
		case !e.Ready || req.HasSubset && !slices.Contains(req.Subset, e.Address) || naiveBarred(req, e):
		case naiveOver(req, f, e):
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

func naiveBest(req *Request, f *Fleet, targets, prefills []*Endpoint) naive {
	local, pair := naive{total: math.Inf(1)}, naive{total: math.Inf(1)}
	most, missing := 0, math.Inf(1) // what those cost that miss a target, but for that
	for _, d := range targets {
		alone := naiveAlone(req, f, d)
		most = max(most, alone.cached)
		if alone.miss {
			missing = min(missing, alone.total-f.MissMs)
		}
		if alone.total < local.total {
			local = alone
		}
	}
	for _, d := range targets {
		// Of the prefill workers the cheapest for d; of equal ones the nearest.
		best := naive{total: math.Inf(1), plain: math.Inf(1)}
		for _, p := range prefills {
			n := naivePair(req, f, p, d)
			if n.plain < best.plain || n.plain == best.plain && (n.far < best.far || n.far == best.far && n.leg < best.leg) {
				best = n
			}
		}
		if best.total < pair.total {
			pair = best
		}
	}
	best := local
	best.reason = ReasonLeastCost
	switch {
	case pair.total+f.Transfer.SetupMs < local.total:
		best = pair
		best.reason = ReasonRemote
	case !local.miss && missing < local.total:
		best.reason = ReasonSLO
	case local.cached < most:
		best.reason = ReasonSpill
	case local.cached > 0:
		best.reason = ReasonCached
	}
	return best
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
		ReasonCached, ReasonLeastCost, ReasonSpill, ReasonRemote, ReasonSLO, ReasonNoEndpoint, ReasonSubset, ReasonNoModel, ReasonOverloaded,
	} {
		if reasons[reason] < 20 {
			t.Errorf("reason %s came up %d times: the states do not cover it", reason, reasons[reason])
		}
	}
}

func oneOf[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

func randomState(r *rand.Rand, table timing.Table, i int) (Fleet, Request) {
	f := Fleet{
		Policy: PolicyKV, Alpha: oneOf(r, 0, 0.1, 0.25), ChunkTokens: oneOf(r, 512, 8192), Fallbacks: r.IntN(4),
		MaxDelay: oneOf(r, 0, 0, 1.0), MissMs: oneOf(r, 0, 200, 1000.0), SLO: oneOf(r, SLO{}, SLO{}, SLO{TTFTMs: 400}, SLO{TTFTMs: 1000, TPOTMs: 20}),
		Links: oneOf(r, Links{}, Links{Domain: 10, Rack: 2, Far: 0.25}), Transfer: table.Transfer, AdapterMs: oneOf(r, 0, 100.0),
		MaxRequests: oneOf(r, 0, 0, 0, 5), MaxQueueMs: oneOf(r, 0, 0, 0, 400.0), MaxKV: oneOf(r, 0, 0, 0.5),
	}
	roles := oneOf(r,
		[]kvindex.Role{kvindex.RoleAggregated}, []kvindex.Role{kvindex.RoleDecode, kvindex.RolePrefill},
		[]kvindex.Role{kvindex.RoleAggregated, kvindex.RolePrefill, kvindex.RoleDecode, kvindex.RoleRelay})
	up := oneOf(r, 0.3, 0.9, 1)
	zones, racks, domains, speeds := []string{""}, []string{""}, []string{""}, [][kvindex.NumTiers]float64{{}}
	if r.IntN(2) == 0 {
		zones, racks, domains = []string{"", "a", "b"}, []string{"", "r", "s", "t"}, []string{"", "n", "o"}
	}
	if r.IntN(2) == 0 {
		speeds = append(speeds, [kvindex.NumTiers]float64{0, 4e10, 0, 1e9}, [kvindex.NumTiers]float64{0, 1e10, 5e9, 1e9})
	}
	for n := range r.IntN(9) {
		d := oneOf(r, table.Deployments[0], table.Deployments[0], table.Deployments[6])
		f.Endpoints = append(f.Endpoints, Endpoint{
			Worker: kvindex.WorkerID(fmt.Sprintf("w%d", n/2)), Rank: uint16(n % 2),
			Address: fmt.Sprintf("10.0.0.%d:800%d", n/3, n%3), Role: oneOf(r, roles...), Ready: r.Float64() < up,
			Served: oneOf(r, []string{"m"}, []string{"m"}, []string{"m", "lora"}, []string{"x"}), Adapters: oneOf(r, nil, nil, []string{"lora"}),
			Loading: oneOf(r, nil, nil, []string{"lora"}), Zone: oneOf(r, zones...), Rack: oneOf(r, racks...), Domain: oneOf(r, domains...),
			LoadBytesPerSecond: oneOf(r, speeds...),
			BlockSize:          16, Timing: d.Timing(), KVBytesPerToken: d.KVBytesPerToken,
			QueueMs: oneOf(r, 0, 0, 10, 300, 500*r.Float64()), Requests: oneOf(r, 0, 0, 1, 5, 20),
			ContextTokens: oneOf(r, 0, 0, 5000, 100000), Decoding: oneOf(r, 0, 1, 8), KVFree: -1,
			KVTokens: oneOf(r, 0, 100000, 100000), Pledged: oneOf(r, 0, 20000, 49000), OwedMs: oneOf(r, 0, 0, 0, 500.0), SpareMs: oneOf(r, 0, 0, 60, 500.0),
		})
	}
	req := randomRequest(r, i, &f)
	return f, req
}

func randomRequest(r *rand.Rand, i int, f *Fleet) Request {
	req := Request{
		ID: fmt.Sprintf("r%d", i), Model: oneOf(r, "m", "m", "m", "m", "lora", "none", ""), ISL: oneOf(r, 0, 1, 16, 17, 100, 2000, 8192, 30000),
		HasSubset: r.IntN(5) == 0, Turn: r.Uint64N(100), Room: oneOf(r, 0, 0, 0.2, 1),
	}
	switch r.IntN(6) {
	case 0, 2:
		ttft := oneOf(r, 0, 50, 150, 320, 500, 750.0)
		if n := len(f.Endpoints); n > 0 && r.IntN(2) == 0 {
			ttft += f.Endpoints[r.IntN(n)].QueueMs
		}
		req.SLO = SLO{TTFTMs: ttft, TPOTMs: oneOf(r, 0, 18, 30.0)}
	case 1:
		req.Adjust = append(req.Adjust, Adjust{Worker: "gone", Ms: -1e6}, Adjust{Worker: "gone", Exclude: "gone"})
	}
	for _, e := range f.Endpoints {
		if r.IntN(2) == 0 {
			depth := oneOf(r, 0, 1, uint32(req.ISL/32), uint32(req.ISL/16), uint32(req.ISL))
			host := depth + oneOf(r, 0, 5, uint32(req.ISL/32))
			disk := host + oneOf(r, 0, 0, 100, uint32(req.ISL/32))
			req.Matches = append(req.Matches, kvindex.Match{Worker: e.Worker, Rank: e.Rank, Depth: [kvindex.NumTiers]uint32{depth, host, disk, disk + oneOf[uint32](r, 0, 9)}})
		}
		if len(req.Adjust) > 0 && r.IntN(3) > 0 {
			req.Adjust = append(req.Adjust, Adjust{Worker: e.Worker, Rank: e.Rank, Ms: oneOf(r, 10, -10, 100, -500, math.NaN()), Exclude: oneOf(r, "", "", "slow")})
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
		if sum := c.Queue + c.Load + c.Compute + c.Transfer + c.Adapter + c.Delay + c.Decode + c.Adjust + c.Miss; !near(sum, c.Total) {
			return fmt.Errorf("cost %v: total %v, sum %v", c.Target, c.Total, sum)
		}
		if err := checkTimes(req, f, &c); err != nil {
			return err
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

// checkTimes compares the price and the times of a cost with the naive ones.
func checkTimes(req *Request, f *Fleet, c *Cost) error {
	if c.Excluded != "" {
		return nil
	}
	at := func(t Target) *Endpoint {
		return &f.Endpoints[slices.IndexFunc(f.Endpoints, func(e Endpoint) bool { return e.Worker == t.Worker && e.Rank == t.Rank })]
	}
	want := naiveAlone(req, f, at(c.Target))
	if c.Prefill != nil {
		want = naivePair(req, f, at(*c.Prefill), at(c.Target))
	}
	if !near(c.Total, want.total) || !near(c.TTFT(), want.first) || !near(c.TPOT(), naiveDecode(req, want.target)) {
		return fmt.Errorf("cost %+v: want total %v, first token after %v", c, want.total, want.first)
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
