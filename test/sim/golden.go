package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/kvlane/kvlane/internal/benchfile"
	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/test/sim/policies"
)

// Golden is one result of Dynamo's own replay (test/data/dynamo-replay).
type Golden struct {
	Trace   string  `json:"trace"`
	Router  string  `json:"router"` // round_robin or kv_router
	Timing  string  `json:"timing"` // polynomial or ais
	Workers int     `json:"workers"`
	Speed   float64 `json:"speedup"`
	Block   int     `json:"block_size"`
	Blocks  int     `json:"blocks"`
	MaxSeqs int     `json:"max_seqs"`
	Chunk   int     `json:"max_batched_tokens"`

	HitRate  float64 `json:"hit_ratio"`
	TTFTMean float64 `json:"ttft_mean_ms"`
	TTFTP50  float64 `json:"ttft_p50_ms"`
	TTFTP99  float64 `json:"ttft_p99_ms"`
	TPOTMean float64 `json:"tpot_mean_ms"`
	Within2s float64 `json:"goodput"`
	// Spread is the lowest and the highest of several runs.
	Spread Spread `json:"spread"`
}

// Spread is how far apart runs of one case were.
type Spread struct {
	HitRate  [2]float64 `json:"hit_ratio"`
	TTFTMean [2]float64 `json:"ttft_mean_ms"`
	TTFTP99  [2]float64 `json:"ttft_p99_ms"`
	TPOTMean [2]float64 `json:"tpot_mean_ms"`
	Within2s [2]float64 `json:"goodput"`
}

// LoadGolden reads the results.
func LoadGolden(path string) ([]Golden, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read golden results: %w", err)
	}
	var list []Golden
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

// String names the case.
func (g *Golden) String() string {
	return fmt.Sprintf("%s x%g, %d blocks, %s, %s", g.Trace, g.Speed, g.Blocks, g.Timing, g.Router)
}

// Config is the same case here. AIConfigurator's tables are replaced by the fit
// of internal/timing for the same deployment.
func (g *Golden) Config(t Trace) (Config, error) {
	clock := Polynomial(g.Blocks * g.Block)
	if g.Timing != "polynomial" {
		d, err := timing.Known().Find(timing.DefaultDeployment)
		if err != nil {
			return Config{}, err
		}
		clock = Of(d)
	}
	c := DefaultConfig(clock, g.Blocks)
	c.Trace, c.Speed, c.Workers, c.ChunkTokens, c.MaxSeqs = t, g.Speed, g.Workers, g.Chunk, g.MaxSeqs
	c.Policy = func(s Setup) policies.Policy { return dynamo(s, 1, 0) }
	if g.Router == "round_robin" {
		c.Policy = func(Setup) policies.Policy { return &policies.RoundRobin{} }
	}
	return c, nil
}

// Deviation is how far one figure is from the golden one.
type Deviation struct {
	Metric          string
	Ours, Low, High float64
	// Off is the distance from the nearer end of the golden spread: in points for the
	// hit rate, relative otherwise. Limit bounds its size.
	Off, Limit float64
}

// OK reports whether the figure is near enough.
func (d Deviation) OK() bool { return math.Abs(d.Off) <= d.Limit }

// Check compares a result of the same case: hit rate within 1.5 points, means of
// TTFT and TPOT within 5 %, p99 of TTFT within 8 %.
func (g *Golden) Check(r *Result) []Deviation {
	relative := func(metric string, ours float64, spread [2]float64, limit float64) Deviation {
		d := Deviation{Metric: metric, Ours: ours, Low: spread[0], High: spread[1], Limit: limit}
		switch {
		case ours < d.Low:
			d.Off = ours/d.Low - 1
		case ours > d.High:
			d.Off = ours/d.High - 1
		}
		return d
	}
	hit := Deviation{Metric: "hit %", Ours: 100 * r.HitRate, Low: 100 * g.Spread.HitRate[0], High: 100 * g.Spread.HitRate[1], Limit: 1.5}
	hit.Off = min(0, hit.Ours-hit.Low) + max(0, hit.Ours-hit.High)
	return []Deviation{
		hit,
		relative("TTFT mean ms", r.TTFT.Mean, g.Spread.TTFTMean, 0.05),
		relative("TTFT p99 ms", r.TTFT.P99, g.Spread.TTFTP99, 0.08),
		relative("TPOT mean ms", r.TPOT.Mean, g.Spread.TPOTMean, 0.05),
	}
}

// GoldenCheck is a golden case and how far it is off here.
type GoldenCheck struct {
	Golden
	Deviations []Deviation
}

// Bound reports whether the limits apply: with AIConfigurator's tables only the
// ranking of the routers does.
func (c *GoldenCheck) Bound() bool { return c.Timing == "polynomial" }

// AddRows writes the case for a benchmark: what is bound as a goal, the rest as a
// comparison.
func (c *GoldenCheck) AddRows(f *benchfile.File) {
	for _, d := range c.Deviations {
		name := "Dynamo's own replay: " + c.String()
		if c.Bound() {
			f.Bound(name, d.Metric+", off", "points or share", "lower", math.Abs(d.Off), d.Limit)
			continue
		}
		f.Compare(name, d.Metric, "ms or %", "lower", d.Ours, "dynamo replay 1.6.1", (d.Low+d.High)/2, 0)
	}
}

// CheckGolden plays every golden case; data is test/data.
func CheckGolden(ctx context.Context, data string) ([]GoldenCheck, error) {
	list, err := LoadGolden(filepath.Join(data, "dynamo-replay", "golden.json"))
	if err != nil {
		return nil, err
	}
	traces := map[string]Trace{}
	jobs := make([]*job, len(list))
	for i := range list {
		g := &list[i]
		t, ok := traces[g.Trace]
		if !ok {
			if t, err = LoadTrace(g.Trace, filepath.Join(data, "traces", g.Trace+"_trace.jsonl.gz"), 0); err != nil {
				return nil, err
			}
			traces[g.Trace] = t
		}
		cfg, err := g.Config(t)
		if err != nil {
			return nil, err
		}
		jobs[i] = &job{cfg: cfg}
	}
	if err := runAll(ctx, jobs); err != nil {
		return nil, err
	}
	checks := make([]GoldenCheck, len(list))
	for i := range list {
		checks[i] = GoldenCheck{Golden: list[i], Deviations: list[i].Check(jobs[i].result)}
	}
	return checks, nil
}
