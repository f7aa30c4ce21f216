package sim

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/kvlane/kvlane/internal/benchfile"
	"github.com/kvlane/kvlane/test/sim/policies"
)

// SplitRules are what the joint choice of prefill and decode worker is compared
// with, on the same fleet.
func SplitRules() []Named {
	rule := func(name string, remote func(uncached, isl int) bool) Named {
		return Named{Name: name, New: func(s Setup) policies.Policy {
			return &policies.Split{
				Oracle: policies.Oracle{
					Rand: s.Rand, BlockSize: s.BlockSize, Alpha: 0.2, Prefill: prefillOf(s), Decode: decodeOf(s), Chunk: s.ChunkTokens,
				},
				Prefillers: s.Prefillers, Remote: remote,
			}
		}}
	}
	return []Named{
		rule("always local", policies.AlwaysLocal),
		rule("threshold 16", policies.Threshold(16)),
		rule("threshold 2048", policies.Threshold(2048)),
		rule("isl_bounding", policies.ISLBounding),
	}
}

// SplitCase is one division of a fleet into prefill and decode workers.
type SplitCase struct {
	Trace      string             `json:"trace"`
	Prefillers int                `json:"prefillers"`
	Decoders   int                `json:"decoders"`
	Speed      float64            `json:"speed"`
	Results    map[string]*Result `json:"results"`
}

// split plays the divisions of eight workers: all aggregated, 2 and 6, 4 and 4.
func split(ctx context.Context, base Config) ([]SplitCase, error) {
	ours, err := Find(Ours)
	if err != nil {
		return nil, err
	}
	var out []SplitCase
	for _, prefillers := range []int{0, base.Workers / 4, base.Workers / 2} {
		cfg := base
		cfg.Prefillers = prefillers
		results, err := Compare(ctx, cfg, seeds(cfg.Trace), append(SplitRules(), ours))
		if err != nil {
			return nil, err
		}
		out = append(out, SplitCase{
			Trace: cfg.Trace.Name, Prefillers: prefillers, Decoders: cfg.Workers - prefillers, Speed: cfg.Speed, Results: results,
		})
	}
	return out, nil
}

func (c *SplitCase) String() string {
	if c.Prefillers == 0 {
		return fmt.Sprintf("%s, %d aggregated (speed %.3f)", c.Trace, c.Decoders, c.Speed)
	}
	return fmt.Sprintf("%s, %dP%dD (speed %.3f)", c.Trace, c.Prefillers, c.Decoders, c.Speed)
}

// PrintSplits writes one table for each case.
func PrintSplits(w io.Writer, list []SplitCase) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	// Flush reports what goes wrong.
	_, _ = fmt.Fprintln(t, "fleet\trule\tin SLO %\tTTFT mean\tp99\tTPOT\thit %")
	for i := range list {
		c := &list[i]
		for _, p := range append(SplitRules(), Named{Name: Ours}) {
			r := c.Results[p.Name]
			_, _ = fmt.Fprintf(t, "%s\t%s\t%.1f\t%.0f\t%.0f\t%.1f\t%.1f\n", c, p.Name, 100*r.Goodput, r.TTFT.Mean, r.TTFT.P99, r.TPOT.Mean, 100*r.HitRate)
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print splits: %w", err)
	}
	return nil
}

// AddSplits writes the goals: never more than 5 % worse than the best rule.
func AddSplits(f *benchfile.File, list []SplitCase) {
	for i := range list {
		l := Load{Results: list[i].Results}
		name := list[i].String() + ", best rule"
		peer, value := l.best(meanTTFT().of, func(a, b float64) bool { return a < b })
		f.Compare(name, "TTFT mean", "ms", "lower", l.Results[Ours].TTFT.Mean, peer, value, 1.05)
		peer, value = l.best(goodput().of, func(a, b float64) bool { return a > b })
		f.Compare(name, "goodput", "share", "higher", l.Results[Ours].Goodput, peer, value, 0.95)
	}
}
