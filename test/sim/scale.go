package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/internal/benchfile"
)

// scales are the fleets: as many copies of the trace at once as the fleet is larger
// than eight workers, of the first requests only where the whole would take too
// long. A shorter part repeats less, so the same one on eight workers stands beside.
func scales() []struct{ workers, limit int } {
	return []struct{ workers, limit int }{{8, 0}, {32, 0}, {8, 1000}, {256, 1000}, {8, 400}, {1000, 400}}
}

// Scale plays ours, Dynamo's cost and round robin on fleets of up to 1,000 workers at
// the moderate load's speed.
func (p *Plan) Scale(ctx context.Context, s *Study, t Trace) ([]Load, error) {
	base, err := p.moderate(s, t)
	if err != nil {
		return nil, err
	}
	list, err := fewPolicies()
	if err != nil {
		return nil, err
	}
	var out []Load
	for _, size := range scales() {
		cfg := base
		if size.limit > 0 && size.limit < len(t.Entries) {
			cfg.Trace.Entries = t.Entries[:size.limit]
		}
		cfg.Trace = cfg.Trace.Times(max(1, size.workers/base.Workers))
		cfg.Workers = size.workers
		start := time.Now()
		results, err := Compare(ctx, cfg, 1, list)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("%s, %d workers, %d requests, %s", cfg.Trace.Name, cfg.Workers, len(cfg.Trace.Entries), LoadModerate)
		out = append(out, Load{Name: name, Speed: cfg.Speed, Results: results})
		if p.Progress != nil {
			p.sayf("\n%s (speed %.3f), played in %v", name, cfg.Speed, time.Since(start).Round(time.Second))
			if err := Print(p.Progress, list, results); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// AddScales writes the larger fleets for a benchmark.
func AddScales(f *benchfile.File, list []Load) {
	for i := range list {
		l := &list[i]
		for _, m := range []metric{meanTTFT(), p99TTFT(), goodput(), hitRate()} {
			f.Compare(l.Name, m.name, m.unit, m.better, m.of(l.Results[Ours]), peerName, m.of(l.Results[Theirs]), 0)
		}
	}
}
