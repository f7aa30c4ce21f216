package picker

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

func newTestPool(workers int) *Pool {
	p := NewPool(DefaultConfig(), timing.Known())
	for i := range workers {
		introduce(p, i, kvindex.RoleAggregated, 1, epochStart())
	}
	return p
}

func workerID(i int) kvindex.WorkerID { return kvindex.WorkerID(fmt.Sprintf("w%03d", i)) }

func introduce(p *Pool, i int, role kvindex.Role, epoch uint64, now time.Time) {
	p.Apply(&kvindex.Record{
		Owner: kvindex.Owner{Worker: workerID(i)}, Epoch: epoch, Term: 1, Kind: kvindex.KindHello,
		Hello: &kvindex.Hello{
			Address: fmt.Sprintf("10.0.0.%d:8000", i), Role: role, Ready: true, Model: "m", Served: []string{"m"},
			BlockSize: 16, LeaseMs: 3_600_000,
		},
	}, now)
}

// shares is how many of n requests of isl tokens, all at one moment, each worker gets.
func shares(p *Pool, n, isl int, matches []kvindex.Match) []int {
	counts := make([]int, len(p.workers))
	for i := range n {
		plan := p.Pick(&Request{ID: fmt.Sprintf("r%d", i), Model: "m", ISL: isl, Matches: matches}, epochStart())
		at, _ := p.find(plan.Decode.Worker, plan.Decode.Rank)
		counts[at]++
	}
	return counts
}

func holds(tokens int, workers ...int) []kvindex.Match {
	var out []kvindex.Match
	for _, w := range workers {
		d := uint32(tokens / 16)
		out = append(out, kvindex.Match{Worker: workerID(w), Depth: [kvindex.NumTiers]uint32{d, d, d, d}})
	}
	return out
}

// TestBurstOfEquals: 800 equal requests at one moment, without a report between
// them, spread over 8 idle workers.
func TestBurstOfEquals(t *testing.T) {
	counts := shares(newTestPool(8), 800, 200, nil)
	if slices.Max(counts) > slices.Min(counts)+1 {
		t.Errorf("shares %v, want all equal", counts)
	}
}

// TestBurstOnTwoHolders: two workers hold the prompt. The other six get nothing
// until both are loaded, and the two get equal shares.
func TestBurstOnTwoHolders(t *testing.T) {
	p := newTestPool(8)
	const isl = 4000
	matches := holds(isl, 2, 5)
	until := 0
	for ; ; until++ {
		plan := p.Pick(&Request{ID: fmt.Sprintf("r%d", until), Model: "m", ISL: isl, Matches: matches}, epochStart())
		if plan.Decode.Worker == workerID(2) || plan.Decode.Worker == workerID(5) {
			continue
		}
		if plan.Reason != ReasonSpill {
			t.Errorf("reason %s, want %s", plan.Reason, ReasonSpill)
		}
		break
	}
	at := p.Fleet(epochStart()).Endpoints
	// By then waiting there is dearer than a prefill of the whole prompt here.
	whole := at[0].Timing.PrefillMs(isl, 0, 8192)
	for _, w := range []int{2, 5} {
		if cost := at[w].QueueMs + 0.2*at[w].Timing.PrefillMs(16, isl-16, 8192)*float64(at[w].Requests+1); cost < whole*0.9 {
			t.Errorf("w%d had %.0f ms of queue and delay when the first spilled, want about %.0f", w, cost, whole)
		}
	}
	p = newTestPool(8)
	counts := shares(p, 400, isl, matches)
	if a, b := counts[2], counts[5]; max(a, b) > min(a, b)*3/2 {
		t.Errorf("shares %v, want w2 and w5 within 1.5", counts)
	}
	if until < 20 || counts[2]+counts[5] < 100 {
		t.Errorf("first spill after %d, shares %v: want the holders to take most", until, counts)
	}
}

// TestBurstOnOneHolder: 800 requests share a long prefix that one worker holds.
// Its queue stays bounded and the others get work.
func TestBurstOnOneHolder(t *testing.T) {
	p := newTestPool(8)
	const isl = 8000
	counts := shares(p, 800, isl, holds(7600, 0))
	fleet := p.Fleet(epochStart())
	longest, shortest := 0.0, 1e9
	for i, e := range fleet.Endpoints {
		if counts[i] == 0 {
			t.Errorf("worker %d got nothing: %v", i, counts)
		}
		longest, shortest = max(longest, e.QueueMs), min(shortest, e.QueueMs)
	}
	if counts[0] <= counts[1] {
		t.Errorf("shares %v, want the holder to take most", counts)
	}
	if longest > 2*shortest {
		t.Errorf("queues from %.0f to %.0f ms, want them within twice each other: %v", shortest, longest, counts)
	}
}

// world is what really happens on the workers, for the pool to be told of.
type world struct {
	t    *testing.T
	r    *rand.Rand
	pool *Pool
	now  time.Time
	// atWorker are the requests on each worker, ours and others; prefilled those
	// past their first token.
	atWorker  []map[string]bool
	prefilled map[string]bool
	epochs    []uint64
	pending   []kvindex.Load // the next report's samples
	// open are bookings that were not closed, with where the pool believes them to
	// be; -1 for nowhere.
	open map[string]int
	next int
}

// TestRequestsCountOnce runs random histories and compares, at each report, the
// pool's count with the truth: requests on the worker plus those on their way.
func TestRequestsCountOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for history := range uint64(60) {
		const workers = 4
		w := &world{
			t: t, r: rand.New(rand.NewPCG(seed, history)), pool: newTestPool(workers), now: epochStart(),
			prefilled: map[string]bool{}, epochs: slices.Repeat([]uint64{1}, workers), pending: make([]kvindex.Load, workers), open: map[string]int{},
		}
		for range workers {
			w.atWorker = append(w.atWorker, map[string]bool{})
		}
		for range 400 {
			w.step()
		}
		w.finish()
		if t.Failed() {
			t.Fatalf("seed %d history %d", seed, history)
		}
	}
}

func (w *world) step() {
	w.now = w.now.Add(time.Duration(w.r.IntN(50)) * time.Millisecond)
	i := w.r.IntN(len(w.atWorker))
	switch n := w.r.IntN(100); {
	case n < 25:
		w.pick()
	case n < 30: // a client that goes around the gateway
		id := fmt.Sprintf("direct%d", w.next)
		w.next++
		w.atWorker[i][id] = true
	case n < 50:
		w.arrive(i)
	case n < 60:
		w.prefill(i)
	case n < 70:
		w.end(i)
	case n < 80:
		w.close()
	case n < 82:
		w.restart(i)
	default:
		w.report(i)
	}
}

// any is a random key of m, in an order that the seed fixes; empty if there is none.
func (w *world) any(m map[string]bool) string {
	keys := sortedKeys(m)
	if len(keys) == 0 {
		return ""
	}
	return keys[w.r.IntN(len(keys))]
}

func (w *world) pick() {
	id := fmt.Sprintf("r%d", w.next)
	w.next++
	plan := w.pool.Pick(&Request{ID: id, Model: "m", ISL: w.r.IntN(9000)}, w.now)
	if !plan.OK() {
		w.t.Fatalf("pick: %s", plan.Reason)
	}
	w.open[id], _ = w.pool.find(plan.Decode.Worker, 0)
}

// arrive lets a request that is on its way reach worker i, mostly where it was
// sent; else the gateway fell back, and sometimes says so.
func (w *world) arrive(i int) {
	travelling := map[string]bool{}
	for id, at := range w.open {
		travelling[id] = at >= 0 && !strings.HasSuffix(id, "!") && !w.arrived(id)
	}
	for id, yes := range travelling {
		if !yes {
			delete(travelling, id)
		}
	}
	id := w.any(travelling)
	if id == "" {
		return
	}
	if w.r.IntN(5) > 0 {
		i = w.open[id]
	}
	w.atWorker[i][id] = true
	w.pending[i].Accepted = append(w.pending[i].Accepted, id)
	if i != w.open[id] && w.r.IntN(2) == 0 {
		w.pool.Served(id, fmt.Sprintf("10.0.0.%d:8000", i), w.now)
		w.open[id] = i
	}
}

// arrived reports whether the request has reached any worker, ever.
func (w *world) arrived(id string) bool {
	_, past := w.prefilled[id]
	return past || slices.ContainsFunc(w.atWorker, func(m map[string]bool) bool { return m[id] })
}

func (w *world) prefill(i int) {
	if id := w.any(w.atWorker[i]); id != "" && !w.prefilled[id] {
		w.prefilled[id] = true
		w.pending[i].FirstToken = append(w.pending[i].FirstToken, kvindex.Sample{Booking: id})
	}
}

func (w *world) end(i int) {
	if id := w.any(w.atWorker[i]); id != "" {
		delete(w.atWorker[i], id)
		w.prefilled[id] = true // it has been somewhere
		w.pending[i].Done = append(w.pending[i].Done, kvindex.Sample{Booking: id})
	}
}

func (w *world) close() {
	ids := map[string]bool{}
	for id := range w.open {
		ids[id] = true
	}
	if id := w.any(ids); id != "" {
		w.pool.Close(id, w.now)
		delete(w.open, id)
	}
}

// restart is a crash of the engine: its requests are gone without a word.
func (w *world) restart(i int) {
	for id := range w.atWorker[i] {
		w.prefilled[id] = true
	}
	clear(w.atWorker[i])
	w.pending[i] = kvindex.Load{}
	w.epochs[i]++
	introduce(w.pool, i, kvindex.RoleAggregated, w.epochs[i], w.now)
	for id, at := range w.open {
		if at == i {
			w.open[id] = -1
		}
	}
}

func (w *world) report(i int) {
	l := w.pending[i]
	w.pending[i] = kvindex.Load{}
	for id := range w.atWorker[i] {
		if w.prefilled[id] {
			l.Running++
			l.ContextTokens += 100
			continue
		}
		l.Waiting++
		l.QueuedTokens += uint64(w.r.IntN(9000))
	}
	w.pool.Apply(&kvindex.Record{Owner: kvindex.Owner{Worker: workerID(i)}, Epoch: w.epochs[i], Term: 1, Kind: kvindex.KindLoad, Load: &l}, w.now)
	for _, id := range l.Accepted {
		if _, ok := w.open[id]; ok {
			w.open[id] = i
		}
	}
	want := len(w.atWorker[i])
	for _, s := range l.Done {
		if at, ok := w.open[s.Booking]; ok && at == i {
			w.open[s.Booking] = -1
		}
	}
	for id, at := range w.open {
		if at == i && !w.atWorker[i][id] {
			want++ // on its way
		}
	}
	if got := w.pool.Fleet(w.now).Endpoints[i].Requests; got != want {
		w.t.Fatalf("worker %d: the pool counts %d requests, there are %d", i, got, want)
	}
}

// finish ends everything in random order; then nothing may be left.
func (w *world) finish() {
	for len(w.open) > 0 {
		w.close()
	}
	for i := range w.atWorker {
		for len(w.atWorker[i]) > 0 {
			w.end(i)
		}
		w.report(i)
	}
	st := w.pool.Stats(w.now)
	if st.Bookings != 0 || st.UnknownCloses != 0 || st.Expired != 0 || len(w.pool.bookings) != 0 {
		w.t.Errorf("at the end: %+v", st)
	}
	for _, at := range st.PerWorker {
		if at.Requests != 0 || at.Bookings != 0 || at.QueueMs != 0 || at.QueuedTokens != 0 {
			w.t.Errorf("at the end: %+v", at)
		}
	}
	for _, at := range w.pool.workers {
		if at.accepted != 0 || at.queue.area != 0 || len(at.queue.legs) != 0 || at.queue.others != 0 {
			w.t.Errorf("at the end: %+v", at)
		}
	}
}

// TestAbortsLeaveNothing: 10,000 bookings, aggregated and with a prefill leg,
// closed in random order without a word from the workers. Then the load spreads
// evenly, as far as a prefill worker lets it: pairs leave ties to the hash.
func TestAbortsLeaveNothing(t *testing.T) {
	p := newTestPool(4)
	introduce(p, 4, kvindex.RolePrefill, 1, epochStart())
	r := rand.New(rand.NewPCG(1, 2))
	now := epochStart()
	var open []string
	for i := range 10_000 {
		now = now.Add(time.Duration(r.IntN(5)) * time.Millisecond)
		id := fmt.Sprintf("r%d", i)
		p.Pick(&Request{ID: id, Model: "m", ISL: r.IntN(20000)}, now)
		open = append(open, id)
		for len(open) > r.IntN(200) {
			k := r.IntN(len(open))
			p.Close(open[k], now)
			open = slices.Delete(open, k, k+1)
		}
	}
	for _, id := range open {
		p.Close(id, now)
	}
	for _, w := range p.Stats(now).PerWorker {
		if w.Requests != 0 || w.Bookings != 0 || w.QueueMs != 0 || w.QueuedTokens != 0 {
			t.Errorf("left over: %+v", w)
		}
	}
	if counts := shares(p, 100, 100, nil); 2*slices.Max(counts[:4]) > 3*slices.Min(counts[:4]) {
		t.Errorf("shares afterwards %v, want them within 1.5", counts)
	}
}

// TestConcurrentUse is for the race detector.
func TestConcurrentUse(t *testing.T) {
	p := newTestPool(8)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 0))
			for i := range 500 {
				now := epochStart().Add(time.Duration(i) * time.Millisecond)
				id := fmt.Sprintf("g%d-%d", g, i)
				plan := p.Pick(&Request{ID: id, Model: "m", ISL: r.IntN(10000), Matches: holds(1600, g)}, now)
				at := kvindex.Owner{Worker: plan.Decode.Worker}
				load := kvindex.Load{Running: 1, QueuedTokens: 10, Accepted: []string{id}, FirstToken: []kvindex.Sample{{Booking: id}}}
				p.Apply(&kvindex.Record{Owner: at, Epoch: 1, Term: 1, Kind: kvindex.KindLoad, Load: &load}, now)
				p.Served(id, plan.Fallbacks[0].Address, now)
				if i%50 == 0 {
					introduce(p, r.IntN(8), kvindex.RoleAggregated, 1, now)
					p.Stats(now)
				}
				for _, e := range p.Fleet(now).Endpoints {
					_ = len(e.Served)
				}
				p.Model("m")
				p.Explain(&Request{ID: id, Model: "m"}, now)
				p.Close(id, now)
			}
		})
	}
	wg.Wait()
	if st := p.Stats(epochStart().Add(time.Second)); st.Bookings != 0 || st.Picked != 4000 || st.UnknownCloses != 0 {
		t.Errorf("afterwards: %+v", st)
	}
}

// TestPickAllocates: a decision of the pool allocates nothing, its plan the list
// of costs, the fallbacks and the prefill target; the booking's memory is used
// again.
func TestPickAllocates(t *testing.T) {
	for _, workers := range []int{8, 100, 1000} {
		p := busyPool(workers)
		introduce(p, 0, kvindex.RolePrefill, 1, epochStart())
		req := &Request{ID: "r", Model: "m", ISL: 20000, Matches: matchesOf(p, 800)}
		if got := testing.AllocsPerRun(100, func() { p.decide(req, epochStart()) }); got != 0 {
			t.Errorf("%d workers: decide: %v allocations, want none", workers, got)
		}
		all := &Request{ID: "r", Model: "m", ISL: 20000, Matches: matchesOf(p, 800)}
		busy := busyPool(workers)
		everything(busy, all, true)
		busy.decide(all, epochStart())
		if got := testing.AllocsPerRun(100, func() { busy.decide(all, epochStart()) }); got != 0 {
			t.Errorf("%d workers: decide with every term: %v allocations, want none", workers, got)
		}
		pick := func() {
			p.Pick(req, epochStart())
			p.Close(req.ID, epochStart())
		}
		if got := testing.AllocsPerRun(100, pick); got > 3 {
			t.Errorf("%d workers: Pick and Close: %v allocations, want at most 3", workers, got)
		}
	}
}

func TestConfig(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the default is not valid: %v", err)
	}
	bad := Config{Policy: "best", Alpha: -1, Fallbacks: -1, MaxRequests: -1, MaxQueueMs: -1, AdapterMs: -1, LeaseGrace: -1, DefaultDeployment: "x"}
	bad.MaxDelay, bad.SLOTTFTMs, bad.SLOTPOTMs, bad.MissMs = -1, -1, math.Inf(1), math.NaN()
	bad.HostBytesPerSecond, bad.DiskBytesPerSecond, bad.ExternalBytesPerSecond = -1, -1, -1
	bad.DomainBandwidth, bad.FarBandwidth = math.NaN(), 2
	err := bad.Validate()
	if err == nil {
		t.Fatal("want an error")
	}
	for _, key := range []string{
		"policy", "alpha", "chunkTokens", "fallbacks", "maxRequests", "maxQueueMs", "adapterMs", "timeScale", "deployment",
		"defaultLease", "leaseGrace", "bookingLease", "replicaLease", "maxDelay", "sloTTFTMs", "sloTPOTMs", "missMs",
		"hostBytesPerSecond", "diskBytesPerSecond", "externalBytesPerSecond", "domainBandwidth", "rackBandwidth", "farBandwidth",
	} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("%s is not named in: %v", key, err)
		}
	}
	for _, p := range []Policy{PolicyKV, PolicyRoundRobin, PolicyLeastRequests, PolicyRandom} {
		if got, err := ParsePolicy(string(p)); err != nil || got != p {
			t.Errorf("ParsePolicy(%q) = %q, %v", p, got, err)
		}
	}
}

// TestUnknownDefaultDeployment: a table without the default one lends its first.
func TestUnknownDefaultDeployment(t *testing.T) {
	table := testTable()
	p := NewPool(DefaultConfig(), table)
	introduce(p, 0, kvindex.RoleAggregated, 1, epochStart())
	if got := p.Stats(epochStart()).PerWorker[0].Deployment; got != table.Deployments[0].Name {
		t.Errorf("deployment %q, want %q", got, table.Deployments[0].Name)
	}
}
