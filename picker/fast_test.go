package picker

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// crowd is a pool whose workers come, go, report and are picked at random.
type crowd struct {
	r    *rand.Rand
	pool *Pool
	now  time.Time
	// fleet is the snapshot after the last step.
	fleet *Fleet
	open  []string
	next  int
}

func newCrowd(r *rand.Rand, table timing.Table) *crowd {
	c := DefaultConfig()
	c.Alpha, c.ChunkTokens, c.Fallbacks = oneOf(r, 0, 0.2), oneOf(r, 512, 8192), r.IntN(5)
	c.MaxRequests, c.MaxQueueMs, c.AdapterMs = oneOf(r, 0, 0, 0, 6), oneOf(r, 0, 0, 0, 400.0), oneOf(r, 0, 100.0)
	c.Policy = oneOf(r, PolicyKV, PolicyKV, PolicyKV, PolicyKV, PolicyLeastRequests, PolicyRoundRobin, PolicyRandom)
	c.MaxDelay, c.SLOTTFTMs, c.SLOTPOTMs = oneOf(r, 0, 1.0), oneOf(r, 0, 0, 500.0), oneOf(r, 0, 0, 20.0)
	c.LeaseGrace = time.Duration(r.IntN(3)) * time.Second
	c.EjectAfter = 0 // see TestEjectionLeavesEnough
	return &crowd{r: r, pool: NewPool(c, table), now: epochStart(), fleet: &Fleet{}}
}

func (c *crowd) step() {
	c.now = c.now.Add(time.Duration(c.r.IntN(80)) * time.Millisecond)
	if c.r.IntN(50) == 0 {
		c.now = c.now.Add(-3 * time.Millisecond) // calls overlap
	}
	owner := kvindex.Owner{Worker: kvindex.WorkerID(fmt.Sprintf("w%d", c.r.IntN(6))), Rank: uint16(c.r.IntN(2))}
	rec := kvindex.Record{Owner: owner, Epoch: 1, Term: 1}
	if w := c.pool.worker(owner.Worker, owner.Rank); w != nil {
		rec.Epoch, rec.Term = w.epoch, w.term
	}
	switch n := c.r.IntN(100); {
	case n < 15:
		c.hello(&rec)
	case n < 45:
		c.load(&rec)
	case n < 47:
		rec.Kind = kvindex.KindBye
		c.pool.Apply(&rec, c.now)
	case n < 85:
		req := c.request()
		if c.pool.Pick(&req, c.now).OK() {
			c.open = append(c.open, req.ID)
		}
	default:
		if i := len(c.open); i > 0 {
			i = c.r.IntN(i)
			if c.r.IntN(4) == 0 {
				c.pool.Served(c.open[i], fmt.Sprintf("10.0.0.%d:800%d", c.r.IntN(4), c.r.IntN(3)), c.now)
				return
			}
			c.pool.Close(c.open[i], c.now)
			c.open = append(c.open[:i], c.open[i+1:]...)
		}
	}
}

func (c *crowd) hello(rec *kvindex.Record) {
	if c.r.IntN(20) == 0 {
		rec.Epoch++
	}
	n := int(rec.Owner.Worker[1] - '0')
	rec.Kind, rec.Hello = kvindex.KindHello, &kvindex.Hello{
		Address: fmt.Sprintf("10.0.0.%d:800%d", n/2, n%2+int(rec.Owner.Rank)), Ready: c.r.IntN(8) > 0, Model: "m",
		Role:   oneOf(c.r, kvindex.RoleAggregated, kvindex.RoleAggregated, kvindex.RoleDecode, kvindex.RolePrefill, kvindex.RoleRelay),
		Served: oneOf(c.r, []string{"m"}, []string{"m"}, []string{"m", "lora"}, []string{"x"}), Adapters: oneOf(c.r, nil, nil, []string{"lora"}),
		BlockSize: oneOf[uint32](c.r, 16, 16, 32, 0), LeaseMs: uint32(500 + c.r.IntN(3000)),
		Deployment: oneOf(c.r, "", c.pool.table.Deployments[3].Name), Loading: oneOf(c.r, nil, nil, []string{"lora"}),
		Zone: oneOf(c.r, "", "a", "b"), Rack: oneOf(c.r, "", "r"), Domain: oneOf(c.r, "", "d", "e"), Lockstep: c.r.IntN(3) == 0,
		Tiers: oneOf(c.r, nil, nil, []kvindex.TierSpec{{Tier: kvindex.Host}, {Tier: kvindex.External, BytesPerSecond: 1e9}, {Tier: kvindex.NumTiers}}),
	}
	c.pool.Apply(rec, c.now)
}

func (c *crowd) load(rec *kvindex.Record) {
	rec.Kind, rec.Load = kvindex.KindLoad, &kvindex.Load{
		Running: uint32(c.r.IntN(6)), Waiting: uint32(c.r.IntN(3)), QueuedTokens: uint64(oneOf(c.r, 0, 0, c.r.IntN(20_000))),
		ContextTokens: uint64(oneOf(c.r, 0, c.r.IntN(50_000))),
	}
	for _, id := range c.open {
		switch c.r.IntN(8) {
		case 0:
			rec.Load.Accepted = append(rec.Load.Accepted, id)
		case 1:
			rec.Load.FirstToken = append(rec.Load.FirstToken, kvindex.Sample{Booking: id})
		case 2:
			if c.r.IntN(4) == 0 {
				rec.Load.Done = append(rec.Load.Done, kvindex.Sample{Booking: id})
			}
		}
	}
	c.pool.Apply(rec, c.now)
}

func (c *crowd) request() Request {
	c.next++
	req := randomRequest(c.r, c.next, c.fleet)
	for i := range req.Matches {
		req.Matches[i].Seat = uint32(c.r.IntN(8)) // often wrong: it is a hint
	}
	return req
}

// TestPoolAgainstPick compares 100,000 states that a pool got into by random
// records, picks and closes: its plan is the plan of the pure function for its
// snapshot, which the naive pick confirms, and its queues are those of the
// definition.
func TestPoolAgainstPick(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	reasons, table := map[Reason]int{}, timing.Known()
	for history := range uint64(200) {
		c := newCrowd(rand.New(rand.NewPCG(seed, history)), table)
		for step := range 500 {
			c.step()
			c.fleet = c.pool.Fleet(c.now)
			req := c.request()
			if err := c.check(&req, reasons); err != nil {
				t.Fatalf("seed %d history %d step %d: %v\nrequest %+v", seed, history, step, err, req)
			}
		}
	}
	t.Logf("reasons: %v", reasons)
}

func (c *crowd) check(req *Request, reasons map[Reason]int) error {
	got := c.pool.Explain(req, c.now)
	reasons[got.Reason]++
	pure := *req
	pure.Turn = c.pool.turn
	if want := Pick(&pure, c.fleet); !samePlan(&got, &want) {
		return fmt.Errorf("the pool says\n%sPick says\n%s", describe(&got), describe(&want))
	}
	for i, w := range c.pool.workers {
		e := &c.fleet.Endpoints[i]
		want := naiveQueue(w, c.now)
		if math.Abs(e.QueueMs-want) > 1e-6 {
			return fmt.Errorf("queue of %s: got %v, want %v", w.id, e.QueueMs, want)
		}
		if e.BlockSize == 0 {
			e.BlockSize = 1 << 30 // the naive pick counts whole blocks
		}
	}
	if c.fleet.Policy != PolicyKV {
		return nil
	}
	if err := checkPlan(req, c.fleet, &got); err != nil {
		return fmt.Errorf("%w\n%s", err, describe(&got))
	}
	return nil
}

// samePlan compares two plans to the last bit.
func samePlan(a, b *Plan) bool {
	sameTarget := func(a, b *Target) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
	sameCost := func(a, b Cost) bool {
		prefill := sameTarget(a.Prefill, b.Prefill)
		a.Prefill, b.Prefill = nil, nil
		return prefill && a == b
	}
	return a.Request == b.Request && a.Decode == b.Decode && sameTarget(a.Prefill, b.Prefill) && slices.Equal(a.Fallbacks, b.Fallbacks) &&
		a.ISL == b.ISL && a.Cached == b.Cached && a.TTFTMs == b.TTFTMs && a.Reason == b.Reason &&
		slices.EqualFunc(a.Costs, b.Costs, sameCost) && a.Omitted == b.Omitted && a.RetryAfterMs == b.RetryAfterMs
}

// naiveQueue is the definition of a worker's queue.
func naiveQueue(w *worker, now time.Time) float64 {
	q, r := &w.queue, w.rates()
	ours, others := r.ms(q.tokens, q.area), r.ms(q.others, 0)
	spent, onOurs := 0.0, 0.0 // since start; since the report
	if len(q.legs) > 0 {
		spent = msBetween(q.start, now)
		onOurs = max(0, min(spent, ours)-msBetween(q.start, q.reported))
	}
	spare := max(0, msBetween(q.reported, now)-onOurs)
	return max(w.assumed.queueMs, r.decodeMs/2+max(ours-spent, floorShare*ours)+max(others-spare, floorShare*others))
}

// TestKeptCosts: the plan of a pick in a large pool lists the chosen one and what
// it was chosen over, with the figures of the full list.
func TestKeptCosts(t *testing.T) {
	p := busyPool(200)
	for i := range 100 {
		req := &Request{ID: fmt.Sprintf("r%d", i), Model: "m", ISL: 4000, Matches: matchesOf(p, uint32(i))}
		full, kept := p.Explain(req, epochStart()), p.Pick(req, epochStart())
		if len(full.Costs) != 200 || full.Omitted != 0 || kept.Omitted+len(kept.Costs) != 200 || len(kept.Costs) > keptCosts {
			t.Fatalf("%d and %d costs, %d omitted", len(full.Costs), len(kept.Costs), kept.Omitted)
		}
		places := map[Target]Cost{}
		for _, c := range full.Costs {
			places[c.Target] = c
		}
		for j, c := range kept.Costs {
			if c != places[c.Target] || (j == 0) != (c.Target == kept.Decode) {
				t.Fatalf("kept %+v, want %+v", c, places[c.Target])
			}
			delete(places, c.Target)
		}
		for _, f := range kept.Fallbacks {
			if _, missing := places[f]; missing {
				t.Errorf("fallback %v is not listed", f)
			}
		}
		full.Costs, full.Omitted, kept.Costs, kept.Omitted = nil, 0, nil, 0
		if !samePlan(&full, &kept) {
			t.Fatalf("kept %+v, want %+v", kept, full)
		}
	}
}
