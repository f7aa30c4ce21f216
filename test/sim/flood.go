package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvlane/kvlane/internal/benchfile"
	"github.com/kvlane/kvlane/kvindex"
)

// The tenants of a flood.
const (
	quiet = "quiet"
	flood = "flood"
)

// Flood is a fleet that two tenants share, of which one sends more than there is
// room for.
type Flood struct {
	// Trace is what each tenant sends, of its own blocks.
	Trace Trace
	// Times is how much more often than the quiet tenant the other sends it.
	Times int
	Base  Config
}

// FloodResult is what a flood costs the quiet tenant: shares of its requests that
// met the SLO.
type FloodResult struct {
	// Alone is without the other tenant, Kept beside it with flow control and Open
	// without; Flood is the share of the other's requests, with flow control.
	Alone, Kept, Open, Flood float64
}

// DefaultFlood is 8 workers with both tenants far from filling them at the rate of
// the quiet one; the other sends ten times as much, about twice what there is room for.
func DefaultFlood(t Trace) (Flood, error) {
	p := Plan{Workers: 8, Seed: 1}
	base, err := p.config(t, 589)
	base.Speed = 0.2
	return Flood{Trace: t, Times: 10, Base: base}, err
}

// Run plays the flood.
func (p Flood) Run(ctx context.Context) (*FloodResult, error) {
	alone, both := p.tenants(1, 0), p.tenants(1, p.Times)
	jobs := make([]*job, 0, 3)
	for _, c := range []struct {
		policy string
		trace  Trace
	}{{Admits, alone}, {Admits, both}, {Ours, both}} {
		policy, err := Find(c.policy)
		if err != nil {
			return nil, err
		}
		cfg := p.Base
		cfg.Trace, cfg.Policy = c.trace, policy.New
		jobs = append(jobs, &job{cfg: cfg})
	}
	if err := runAll(ctx, jobs); err != nil {
		return nil, fmt.Errorf("flood: %w", err)
	}
	return &FloodResult{
		Alone: jobs[0].result.Tenants[quiet], Kept: jobs[1].result.Tenants[quiet],
		Open: jobs[2].result.Tenants[quiet], Flood: jobs[1].result.Tenants[flood],
	}, nil
}

// tenants is the trace as both tenants send it, so many copies of each at once.
func (p Flood) tenants(quietly, flooding int) Trace {
	all := p.Trace
	all.Entries = nil
	for k := range quietly + flooding {
		shift := time.Duration(k) * p.Trace.Entries[len(p.Trace.Entries)-1].At / time.Duration(quietly+flooding)
		for _, e := range p.Trace.Entries {
			e.Tenant = flood
			if k < quietly {
				e.Tenant = quiet
			}
			e.At = (e.At + shift) % (p.Trace.Entries[len(p.Trace.Entries)-1].At + 1)
			blocks := make([]kvindex.BlockHash, len(e.Blocks))
			for i, b := range e.Blocks {
				blocks[i] = spread(uint64(b) ^ uint64(k)<<48)
			}
			e.Blocks = blocks
			all.Entries = append(all.Entries, e)
		}
	}
	slices.SortStableFunc(all.Entries, func(a, b Entry) int { return int(a.At - b.At) })
	return all
}

// AddFlood writes a flood's rows.
func AddFlood(f *benchfile.File, p Flood, r *FloodResult) {
	name := fmt.Sprintf("%s, 8 workers, two tenants, one sends %d times as much", p.Trace.Name, p.Times)
	f.Compare(name, "goodput of the other tenant", "share", "higher", r.Kept, "without the flood", r.Alone, 0.9)
	f.Because(fmt.Sprintf("prompts of the other that are under way hold up workers, and KV cache is not limited by tenant; "+
		"without flow control it has %.3f", r.Open))
	f.Compare(name, "goodput of the other tenant", "share", "higher", r.Kept, "without flow control", r.Open, 0)
}
