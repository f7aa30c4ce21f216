package sim

import (
	"context"
	"slices"
)

// RunSeeds plays a configuration with n seeds from its own on and returns the
// mean of every figure. Ties between workers alone move mean TTFT by up to 16 % on
// the synthetic trace (test/data/dynamo-replay has the spread of Dynamo's runs),
// and by about 1 % on the longer one.
func RunSeeds(ctx context.Context, cfg Config, n int) (*Result, error) {
	list := make([]*Result, max(1, n))
	for i := range list {
		r, err := Run(ctx, cfg)
		if err != nil {
			return nil, err
		}
		list[i] = r
		cfg.Seed++
	}
	return average(list), nil
}

func average(list []*Result) *Result {
	if len(list) == 1 {
		return list[0]
	}
	of := func(value func(*Result) float64) float64 {
		sum := 0.0
		for _, r := range list {
			sum += value(r)
		}
		return sum / float64(len(list))
	}
	dist := func(value func(*Result) Dist) Dist {
		return Dist{
			Mean: of(func(r *Result) float64 { return value(r).Mean }),
			P50:  of(func(r *Result) float64 { return value(r).P50 }),
			P90:  of(func(r *Result) float64 { return value(r).P90 }),
			P99:  of(func(r *Result) float64 { return value(r).P99 }),
		}
	}
	count := func(value func(*Result) float64) int { return int(of(value) + 0.5) }
	out := &Result{
		Requests: list[0].Requests,
		Refused:  count(func(r *Result) float64 { return float64(r.Refused) }),
		TTFT:     dist(func(r *Result) Dist { return r.TTFT }),
		TPOT:     dist(func(r *Result) Dist { return r.TPOT }),
		Gap:      dist(func(r *Result) Dist { return r.Gap }),
		E2E:      dist(func(r *Result) Dist { return r.E2E }),
		HitRate:  of(func(r *Result) float64 { return r.HitRate }),
		Goodput:  of(func(r *Result) float64 { return r.Goodput }),
		Within2s: of(func(r *Result) float64 { return r.Within2s }), Within5s: of(func(r *Result) float64 { return r.Within5s }),
		BusySpread: of(func(r *Result) float64 { return r.BusySpread }), WorkSpread: of(func(r *Result) float64 { return r.WorkSpread }),
		Busy: of(func(r *Result) float64 { return r.Busy }), DurationMs: of(func(r *Result) float64 { return r.DurationMs }),
		Preemptions: uint64(count(func(r *Result) float64 { return float64(r.Preemptions) })),
		Transferred: uint64(count(func(r *Result) float64 { return float64(r.Transferred) })),
		Loaded:      of(func(r *Result) float64 { return r.Loaded }),
		Unfair:      of(func(r *Result) float64 { return r.Unfair }),
		ErrorP50:    of(func(r *Result) float64 { return r.ErrorP50 }), ErrorP90: of(func(r *Result) float64 { return r.ErrorP90 }),
		Minutes: list[0].Minutes, WorkMinutes: list[0].WorkMinutes, // one run's, as an example
	}
	for _, r := range list {
		out.TTFTs = append(out.TTFTs, r.TTFTs...)
	}
	slices.Sort(out.TTFTs)
	return out
}
