package sim_test

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/test/sim"
)

// sessions are 40 conversations of 8 turns, each turn two blocks longer than the
// one before; a prompt has 4,096 tokens of its own at the start.
func sessions() sim.Trace {
	const size = 512
	rng := rand.New(rand.NewPCG(7, 7))
	t := sim.Trace{Name: "sessions", BlockSize: size}
	for i := range 320 {
		session, turn := i%40, i/40
		e := sim.Entry{At: time.Duration(i) * 200 * time.Millisecond, OSL: 20 + rng.IntN(60)}
		for b := range 8 + 2*turn {
			e.Blocks = append(e.Blocks, kvindex.BlockHash(uint64(session+1)<<32|uint64(b)))
		}
		e.ISL = len(e.Blocks)*size + 1 + rng.IntN(size-1)
		t.Entries = append(t.Entries, e)
	}
	return t
}

// small is four workers with too little cache for all sessions.
func small(t *testing.T, policy string) sim.Config {
	t.Helper()
	d, err := timing.Known().Find(timing.DefaultDeployment)
	if err != nil {
		t.Fatal(err)
	}
	p, err := sim.Find(policy)
	if err != nil {
		t.Fatal(err)
	}
	c := sim.DefaultConfig(sim.Of(d), 150)
	c.Trace, c.Workers, c.Policy = sessions(), 4, p.New
	return c
}

func run(t *testing.T, c sim.Config) *sim.Result {
	t.Helper()
	r, err := sim.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.TTFTs)+r.Refused != len(c.Trace.Entries) {
		t.Errorf("%d of %d requests answered, %d refused", len(r.TTFTs), len(c.Trace.Entries), r.Refused)
	}
	return r
}

func TestEveryPolicyRepeats(t *testing.T) {
	t.Parallel()
	for _, p := range sim.Policies() {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			c := small(t, p.Name)
			first, second := run(t, c), run(t, c)
			if first.Refused > 0 && p.Name != sim.Admits {
				t.Errorf("%d requests refused", first.Refused)
			}
			if !reflect.DeepEqual(first, second) {
				t.Errorf("two runs differ: %+v and %+v", first.TTFT, second.TTFT)
			}
			if bound := c.Trace.Bounds(c.Workers * c.Blocks); first.HitRate > bound.Ideal || first.HitRate <= 0 {
				t.Errorf("hit rate %v, ideal %v", first.HitRate, bound.Ideal)
			}
		})
	}
}

// TestWorse holds what each axis of the robustness study does: nobody is lost,
// and what routers know less of costs hits.
func TestWorse(t *testing.T) {
	t.Parallel()
	plain := run(t, small(t, sim.Ours))
	last := small(t, sim.Ours).Trace.Entries[319].At
	for _, a := range sim.Axes(last) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			c := small(t, sim.Ours)
			a.Change(&c)
			r := run(t, c)
			if a.Name == "no events" && r.HitRate > plain.HitRate/2 {
				t.Errorf("hit rate %v without events, %v with", r.HitRate, plain.HitRate)
			}
			if r.Goodput < plain.Goodput/2 {
				t.Errorf("goodput %v, plain %v", r.Goodput, plain.Goodput)
			}
		})
	}
}

func TestLostWorker(t *testing.T) {
	c := small(t, sim.Theirs)
	middle := c.Trace.Entries[150].At
	c.Changes = []sim.Change{{At: middle, Worker: 1}}
	gone := run(t, c)
	c.Changes = append(c.Changes, sim.Change{At: middle + 10*time.Second, Worker: 1, Up: true})
	back := run(t, c)
	if gone.TTFT.Mean <= back.TTFT.Mean {
		t.Errorf("mean TTFT %v ms without the worker, %v when it comes back", gone.TTFT.Mean, back.TTFT.Mean)
	}
}

// TestLoss: a router that misses batches finds out and gets a snapshot, so it
// knows nearly as much as one that misses none.
func TestLoss(t *testing.T) {
	c := small(t, sim.Theirs)
	all := run(t, c)
	c.EventLoss = 0.3
	some := run(t, c)
	if reflect.DeepEqual(all, some) {
		t.Error("nothing was lost")
	}
	if math.Abs(all.HitRate-some.HitRate) > 0.1 {
		t.Errorf("hit rate %v with all events, %v with 30 %% of the batches lost", all.HitRate, some.HitRate)
	}
}

func TestSpeedFor(t *testing.T) {
	c := small(t, "round-robin")
	speed, r, err := sim.SpeedFor(t.Context(), c, 1, 0.8)
	if err != nil {
		t.Fatal(err)
	}
	c.Speed = speed * 1.011
	if above := run(t, c); r.Goodput < 0.8 || above.Goodput >= 0.8 {
		t.Errorf("speed %v: goodput %v there and %v above, want 0.8 in between", speed, r.Goodput, above.Goodput)
	}
}

func TestRefused(t *testing.T) {
	c := small(t, sim.Ours)
	c.Speed = 0
	if _, err := sim.Run(t.Context(), c); err == nil {
		t.Error("speed 0 is accepted")
	}
}

func TestBounds(t *testing.T) {
	// The figures are those of the trace's README, whole-trace hit rates of one cache.
	b := loadTrace(t, "synthetic", 0).Bounds(4712)
	if math.Abs(b.Ideal-0.651) > 0.002 || math.Abs(b.Pooled-0.274) > 0.01 {
		t.Errorf("bounds %+v, want about 0.651 and 0.274", b)
	}
}
