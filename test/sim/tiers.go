package sim

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/kvlane/kvlane/internal/benchfile"
	"github.com/kvlane/kvlane/kvindex"
	core "github.com/kvlane/kvlane/workers/engine/sim"
)

// HostBytesPerSecond is how fast the simulated engines bring KV back from host
// memory: llm-d measured 26 ms a gigabyte (its blog of 2026-07-22).
const HostBytesPerSecond = 38_500_000_000

// publishHost writes the changes of the host tier to the log: another owner, with
// numbers of its own. No batch of it is lost, whatever EventLoss says.
func (e *engine) publishHost(events []core.Event) {
	if e.fleet.cfg.NoEvents || e.fleet.cfg.Modelled || len(events) == 0 {
		return
	}
	owner := e.owner
	owner.Tier = kvindex.Host
	records := make([]kvindex.Record, 0, len(events))
	for i := range events {
		records = append(records, e.record(owner, &events[i], &e.hostSeq))
	}
	e.fleet.send(e, records, e.fleet.cfg.EventLag, false)
}

// record is a cache change as a record of an owner, whose numbers seq counts.
func (e *engine) record(owner kvindex.Owner, ev *core.Event, seq *uint64) kvindex.Record {
	hashes := make([]kvindex.BlockHash, len(ev.Blocks)) // the core's are its own
	for j, b := range ev.Blocks {
		hashes[j] = kvindex.BlockHash(b)
	}
	r := kvindex.Record{Owner: owner, Epoch: e.epoch, Term: 1}
	*seq++
	r.Seq = *seq
	switch ev.Kind {
	case core.Stored:
		r.Kind, r.Stored = kvindex.KindStored, &kvindex.Stored{Hashes: hashes}
		if ev.HasParent {
			r.Stored.Parent = kvindex.BlockHash(ev.Parent)
		}
	case core.Removed:
		r.Kind, r.Removed = kvindex.KindRemoved, &kvindex.Removed{Hashes: hashes}
	case core.Cleared:
		r.Kind = kvindex.KindCleared
	}
	return r
}

// TierCase is one size of the host tier.
type TierCase struct {
	Trace string `json:"trace"`
	// Host is its size over the device's cache; 0 for none.
	Host    int                `json:"host"`
	Speed   float64            `json:"speed"`
	Results map[string]*Result `json:"results"`
}

func (c *TierCase) String() string {
	if c.Host == 0 {
		return fmt.Sprintf("%s, no host tier (speed %.3f)", c.Trace, c.Speed)
	}
	return fmt.Sprintf("%s, host tier of %d caches (speed %.3f)", c.Trace, c.Host, c.Speed)
}

// fewPolicies are ours, Dynamo's cost and round robin, where all would take long.
func fewPolicies() ([]Named, error) {
	var list []Named
	for _, name := range []string{Ours, Theirs, "round-robin"} {
		p, err := Find(name)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

// Tiers plays host tiers of no, one and four times the device's cache at the
// moderate load's speed.
func (p *Plan) Tiers(ctx context.Context, s *Study, t Trace) ([]TierCase, error) {
	base, err := p.moderate(s, t)
	if err != nil {
		return nil, err
	}
	list, err := fewPolicies()
	if err != nil {
		return nil, err
	}
	var out []TierCase
	for _, host := range []int{0, 1, 4} {
		cfg := base
		cfg.HostBlocks = host * base.Blocks
		results, err := Compare(ctx, cfg, p.seeds(t), list)
		if err != nil {
			return nil, err
		}
		out = append(out, TierCase{Trace: t.Name, Host: host, Speed: cfg.Speed, Results: results})
	}
	return out, nil
}

// PrintTiers writes the table.
func PrintTiers(w io.Writer, list []TierCase) error {
	names, err := fewPolicies()
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	// Flush reports what goes wrong.
	_, _ = fmt.Fprintln(t, "fleet\tpolicy\tin SLO %\tTTFT mean\tp99\tTPOT\thit %\tloaded %")
	for i := range list {
		for _, p := range names {
			r := list[i].Results[p.Name]
			_, _ = fmt.Fprintf(t, "%s\t%s\t%.1f\t%.0f\t%.0f\t%.1f\t%.1f\t%.1f\n", &list[i], p.Name, 100*r.Goodput, r.TTFT.Mean, r.TTFT.P99,
				r.TPOT.Mean, 100*r.HitRate, 100*r.Loaded)
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print tiers: %w", err)
	}
	return nil
}

// AddTiers writes the sizes for a benchmark.
func AddTiers(f *benchfile.File, list []TierCase) {
	for _, c := range slices.All(list) {
		ours, theirs := c.Results[Ours], c.Results[Theirs]
		for _, m := range []metric{meanTTFT(), p99TTFT(), goodput(), hitRate()} {
			f.Compare(c.String(), m.name, m.unit, m.better, m.of(ours), peerName, m.of(theirs), 0)
		}
	}
}
