package sim_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/kvlane/kvlane/test/sim"
)

// loadTrace reads a trace of test/data; limit 0 is all of it.
func loadTrace(t *testing.T, name string, limit int) sim.Trace {
	t.Helper()
	trace, err := sim.LoadTrace(name, filepath.Join("..", "data", "traces", name+"_trace.jsonl.gz"), limit)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// TestGolden is the bar for trusting the simulator: it has to reproduce Dynamo's
// own replay. With the race detector only the smaller trace is played.
func TestGolden(t *testing.T) {
	t.Parallel()
	list, err := sim.LoadGolden(filepath.Join("..", "data", "dynamo-replay", "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var rows []string
	t.Cleanup(func() { // after the parallel subtests
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "case\tmetric\there\tDynamo\toff\tlimit\tok")
		slices.Sort(rows)
		fmt.Fprint(w, strings.Join(rows, ""))
		w.Flush()
	})
	traces := map[string]sim.Trace{}
	for i := range list {
		g := &list[i]
		if g.Timing != "polynomial" || raced && g.Trace != "synthetic" {
			continue
		}
		if _, ok := traces[g.Trace]; !ok {
			traces[g.Trace] = loadTrace(t, g.Trace, 0)
		}
		trace := traces[g.Trace]
		t.Run(g.String(), func(t *testing.T) {
			t.Parallel()
			cfg, err := g.Config(trace)
			if err != nil {
				t.Fatal(err)
			}
			r, err := sim.Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, d := range g.Check(r) {
				rows = append(rows, fmt.Sprintf("%s\t%s\t%.2f\t%.2f to %.2f\t%+.3f\t%.2f\t%t\n",
					g, d.Metric, d.Ours, d.Low, d.High, d.Off, d.Limit, d.OK()))
				if !d.OK() {
					t.Errorf("%s is %.2f, Dynamo's replay had %.2f to %.2f: off by %+.3f, at most %.2f", d.Metric, d.Ours, d.Low, d.High, d.Off, d.Limit)
				}
			}
		})
	}
}

// TestGoldenRanking: with AIConfigurator's tables, of which internal/timing has
// only a fit, the two routers have to rank as in Dynamo's replay.
func TestGoldenRanking(t *testing.T) {
	list, err := sim.LoadGolden(filepath.Join("..", "data", "dynamo-replay", "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	type outcome struct{ golden, ours, deviation float64 }
	ttft := map[string]map[string]outcome{}
	for i := range list {
		g := &list[i]
		if g.Timing == "polynomial" || g.Trace != "synthetic" || raced && g.Speed > 1.3 {
			continue
		}
		cfg, err := g.Config(loadTrace(t, g.Trace, 0))
		if err != nil {
			t.Fatal(err)
		}
		r, err := sim.Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("%s x%g %d blocks", g.Trace, g.Speed, g.Blocks)
		if ttft[name] == nil {
			ttft[name] = map[string]outcome{}
		}
		ttft[name][g.Router] = outcome{g.TTFTMean, r.TTFT.Mean, r.TTFT.Mean/g.TTFTMean - 1}
	}
	for name, of := range ttft {
		rr, kv := of["round_robin"], of["kv_router"]
		t.Logf("%s: mean TTFT of round robin %.0f ms here, %.0f in Dynamo's replay (%+.0f %%), of its router %.0f and %.0f (%+.0f %%)",
			name, rr.ours, rr.golden, 100*rr.deviation, kv.ours, kv.golden, 100*kv.deviation)
		if (rr.ours > kv.ours) != (rr.golden > kv.golden) {
			t.Errorf("%s: the order differs from Dynamo's replay", name)
		}
	}
}
