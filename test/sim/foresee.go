package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvlane/kvlane/internal/benchfile"
)

// resolution is the finest step between the arrivals of a trace, or the whole of the
// trace if all come at once.
func (t Trace) resolution() time.Duration {
	step := t.Entries[len(t.Entries)-1].At
	for i := 1; i < len(t.Entries); i++ {
		if d := t.Entries[i].At - t.Entries[i-1].At; d > 0 {
			step = min(step, d)
		}
	}
	return step
}

// Spread is the trace with its arrivals apart, anywhere within the step that its
// times are recorded in: the conversation trace has steps of 3 s.
func (t Trace) Spread(seed uint64) Trace {
	rng, step := rand.New(rand.NewPCG(seed, 3)), t.resolution()
	t.Entries = slices.Clone(t.Entries)
	for i := range t.Entries {
		t.Entries[i].At += time.Duration(rng.Float64() * float64(step))
	}
	slices.SortStableFunc(t.Entries, func(a, b Entry) int { return int(a.At - b.At) })
	return t
}

// AddForesight plays the moderate load with arrivals spread and writes the errors of
// prediction.
func (p *Plan) AddForesight(ctx context.Context, f *benchfile.File, s *Study, t Trace) error {
	base, err := p.moderate(s, t)
	if err != nil {
		return err
	}
	ours, err := Find(Ours)
	if err != nil {
		return err
	}
	base.Trace, base.Policy = t.Spread(p.Seed), ours.New
	r, err := RunSeeds(ctx, base, p.seeds(t))
	if err != nil {
		return err
	}
	addErrors(f, t.Name+", "+LoadModerate+", arrivals spread over the trace's resolution", r)
	return nil
}
