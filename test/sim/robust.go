package sim

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/kvlane/kvlane/internal/benchfile"
	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/picker"
	"github.com/kvlane/kvlane/test/sim/policies"
)

// Axis is one way in which the world is worse, or the picker set differently,
// than in the comparison.
type Axis struct {
	Name string
	// Group tells axes apart whose base differs: "" is the plain fleet.
	Group string
	// Change makes the configuration; it may replace the policy.
	Change func(*Config)
	// Goal is the most goodput that ours may lose against its base, as a share; 0 for
	// none.
	Goal float64
}

// oursWith is the production picker with other settings, believing that every
// engine is misfit times as slow as it is.
func oursWith(misfit float64, set func(*picker.Config)) func(Setup) policies.Policy {
	return func(s Setup) policies.Policy {
		cfg := picker.DefaultConfig()
		if set != nil {
			set(&cfg)
		}
		hardware := make([]Timing, len(s.Hardware))
		for i, t := range s.Hardware {
			hardware[i] = t.Scaled(misfit)
		}
		s.Hardware = hardware
		return newOurs(s, cfg)
	}
}

func unlearned(p *picker.Config) { p.Learn = false }

// Axes are the robustness study. span is how long the trace lasts at its speed.
func Axes(span time.Duration) []Axis {
	var list []Axis
	add := func(name string, goal float64, change func(*Config)) {
		list = append(list, Axis{Name: name, Goal: goal, Change: change})
	}
	for _, lag := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second} {
		add(fmt.Sprintf("events %v late", lag), 0, func(c *Config) { c.EventLag = lag })
		add(fmt.Sprintf("events and load %v late", lag), 0, func(c *Config) { c.EventLag, c.LoadLag = lag, lag })
	}
	add("1 % of event batches lost", 0, func(c *Config) { c.EventLoss = 0.01 })
	add("no events", 0, func(c *Config) { c.NoEvents = true })
	add("no events, caches modelled by the agents", 0, func(c *Config) { c.Modelled = true })
	add("a worker lost for a third of the time", 0, func(c *Config) {
		c.Changes = []Change{{At: span / 3, Worker: 0}, {At: 2 * span / 3, Worker: 0, Up: true}}
	})
	add("a worker joins after a third of the time", 0, func(c *Config) {
		c.Changes = []Change{{At: 0, Worker: c.Workers - 1}, {At: span / 3, Worker: c.Workers - 1, Up: true}}
	})
	for _, misfit := range []float64{0.5, 2} {
		add(fmt.Sprintf("timing believed x%g at first", misfit), 0, func(c *Config) { c.Policy = oursWith(misfit, nil) })
		add(fmt.Sprintf("timing believed x%g, nothing learned", misfit), 0, func(c *Config) { c.Policy = oursWith(misfit, unlearned) })
	}
	add("timing known, nothing learned", 0, func(c *Config) { c.Policy = oursWith(1, unlearned) })
	for _, alpha := range []float64{0, 0.1, 0.25, 0.5} {
		add(fmt.Sprintf("alpha %g", alpha), 0, func(c *Config) {
			c.Policy = oursWith(1, func(p *picker.Config) { p.Alpha = alpha })
		})
	}
	list = append(list, Axis{Name: "groups of 4 ranks step together", Group: "ranks", Change: func(c *Config) { c.Group = 4 }})
	return append(append(list, replicaAxes()...), mixedAxes()...)
}

// replicaAxes are several routers. Load reports are late in all of them: with
// reports at once there is nothing left to share. Requests of one moment are 2 ms
// apart, except where the name says otherwise.
func replicaAxes() []Axis {
	axis := func(n int, booking, spacing time.Duration) func(*Config) {
		return func(c *Config) {
			c.Replicas, c.BookingLag, c.Spacing = n, booking, spacing
			c.EventLag, c.LoadLag = 20*time.Millisecond, 20*time.Millisecond
		}
	}
	const apart = 2 * time.Millisecond
	return []Axis{
		{Name: "1 replica, load 20 ms late", Group: "replicas", Change: axis(1, 0, apart)},
		{Name: "2 replicas, bookings after 1 ms", Group: "replicas", Change: axis(2, time.Millisecond, apart), Goal: 0.03},
		{Name: "2 replicas, bookings not shared", Group: "replicas", Change: axis(2, -1, apart)},
		{Name: "4 replicas, bookings after 1 ms", Group: "replicas", Change: axis(4, time.Millisecond, apart)},
		{Name: "4 replicas, bookings not shared", Group: "replicas", Change: axis(4, -1, apart)},
		{Name: "2 replicas, bookings after 1 ms, requests in one instant", Group: "replicas", Change: axis(2, time.Millisecond, 0)},
	}
}

// mixedAxes are a fleet in which half of the workers are faster, as H200 beside
// H100, with the picker told so and not.
func mixedAxes() []Axis {
	fast := func(c *Config) {
		d, err := timing.Known().Find("qwen3-32b-bf16-2xh200")
		if err != nil {
			return // a test of internal/timing has the names
		}
		slow := c.Timing
		c.Hardware = func(w int) Timing {
			if w%2 == 1 {
				return Of(d)
			}
			return slow
		}
	}
	return []Axis{
		{Name: "half of the workers H200", Group: "mixed", Change: fast},
		{Name: "half of the workers H200, all believed H100 at first", Group: "mixed", Change: believed(fast, true)},
		{Name: "half of the workers H200, all believed H100, nothing learned", Group: "mixed", Change: believed(fast, false)},
	}
}

// believed is a mixed fleet that the picker takes for one of equal workers, by their
// constants: each deployment still has a class of its own, which may learn better.
func believed(mixed func(*Config), learn bool) func(*Config) {
	return func(c *Config) {
		mixed(c)
		slow := c.Timing.Model
		c.Policy = func(s Setup) policies.Policy {
			s.Hardware = slices.Clone(s.Hardware)
			for i := range s.Hardware {
				s.Hardware[i].Model = slow
			}
			cfg := picker.DefaultConfig()
			cfg.Learn = learn
			return newOurs(s, cfg)
		}
	}
}

// Robustness is how one axis came out.
type Robustness struct {
	Trace  string  `json:"trace"`
	Axis   string  `json:"axis"`
	Base   *Result `json:"base"` // ours without it
	Ours   *Result `json:"ours"`
	Theirs *Result `json:"theirs"` // Dynamo's cost on the same axis
	goal   float64
}

// Loss is the share of the goodput that the axis costs.
func (r *Robustness) Loss() float64 { return 1 - r.Ours.Goodput/r.Base.Goodput }

// robust plays the axes at a configuration's speed.
func robust(ctx context.Context, base Config) ([]Robustness, error) {
	ours, err := Find(Ours)
	if err != nil {
		return nil, err
	}
	theirs, err := Find(Theirs)
	if err != nil {
		return nil, err
	}
	last := base.Trace.Entries[len(base.Trace.Entries)-1].At
	axes := append([]Axis{{Name: "none", Change: func(*Config) {}}}, Axes(time.Duration(float64(last)/base.Speed))...)
	jobs := make([]*job, 0, 2*len(axes))
	for _, a := range axes {
		mine, other := base, base
		mine.Policy = ours.New
		a.Change(&mine)
		a.Change(&other)
		other.Policy = theirs.New
		jobs = append(jobs, &job{cfg: mine, seeds: seeds(base.Trace)}, &job{cfg: other, seeds: seeds(base.Trace)})
	}
	if err := runAll(ctx, jobs); err != nil {
		return nil, err
	}
	bases := map[string]*Result{}
	out := make([]Robustness, len(axes))
	for i, a := range axes {
		mine, other := jobs[2*i].result, jobs[2*i+1].result
		if bases[a.Group] == nil {
			bases[a.Group] = mine
		}
		out[i] = Robustness{Trace: base.Trace.Name, Axis: a.Name, Base: bases[a.Group], Ours: mine, Theirs: other, goal: a.Goal}
	}
	return out, nil
}

// PrintRobustness writes the table of the axes.
func PrintRobustness(w io.Writer, list []Robustness) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	// Flush reports what goes wrong.
	_, _ = fmt.Fprintln(t, "trace\taxis\tin SLO %\tlost %\tTTFT mean\tp99\thit %\tdynamo in SLO %\tTTFT mean\tp99")
	for i := range list {
		r := &list[i]
		_, _ = fmt.Fprintf(t, "%s\t%s\t%.1f\t%.1f\t%.0f\t%.0f\t%.1f\t%.1f\t%.0f\t%.0f\n", r.Trace, r.Axis, 100*r.Ours.Goodput, 100*r.Loss(),
			r.Ours.TTFT.Mean, r.Ours.TTFT.P99, 100*r.Ours.HitRate, 100*r.Theirs.Goodput, r.Theirs.TTFT.Mean, r.Theirs.TTFT.P99)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print robustness: %w", err)
	}
	return nil
}

// AddRobustness writes the axes for a benchmark: what each costs, and how ours
// does against Dynamo's cost on it.
func AddRobustness(f *benchfile.File, list []Robustness) {
	for i := range list {
		r := &list[i]
		if r.Ours == r.Base {
			continue
		}
		name, goal := r.Trace+", "+r.Axis, 0.0
		if r.goal > 0 {
			goal = 1 - r.goal
		}
		f.Compare(name, "goodput", "share", "higher", r.Ours.Goodput, "kvlane without it", r.Base.Goodput, goal)
		f.Compare(name, "TTFT mean", "ms", "lower", r.Ours.TTFT.Mean, "kvlane without it", r.Base.TTFT.Mean, 0)
		f.Compare(name, "goodput", "share", "higher", r.Ours.Goodput, peerName, r.Theirs.Goodput, 0)
	}
}
