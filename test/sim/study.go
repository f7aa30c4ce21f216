package sim

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/kvlane/kvlane/internal/timing"
)

// Study is every policy over the loads of some traces.
type Study struct {
	Cases []Case `json:"cases"`
}

// Case is one trace on one size of worker.
type Case struct {
	Trace   string `json:"trace"`
	Workers int    `json:"workers"`
	Blocks  int    `json:"blocks"`
	Bounds  Bounds `json:"bounds"`
	Loads   []Load `json:"loads"`
	// Capacity is the highest speed with 90 % of the requests in the SLO, by policy,
	// for some of them.
	Capacity map[string]float64 `json:"capacity"`
}

// Load is one speed of a trace.
type Load struct {
	Name  string  `json:"name"`
	Speed float64 `json:"speed"`
	// Results are by policy.
	Results map[string]*Result `json:"results"`
}

// Goodputs of Dynamo's cost at which the loads are set.
const (
	light    = 0.95
	moderate = 0.85
	heavy    = 0.65
	// capacityAt is the goodput that a capacity is stated for.
	capacityAt = 0.90
	// overloadOver is the overload's speed over the heavy load's.
	overloadOver = 1.3
)

// Names of the loads.
const (
	LoadLight    = "95 %"
	LoadModerate = "85 %"
	LoadHeavy    = "65 %"
	LoadOver     = "overload"
)

// Plan says what a study covers.
type Plan struct {
	Traces []Trace
	// Blocks are the KV sizes of a worker, in blocks.
	Blocks  []int
	Workers int
	// Loads are names of the above; empty for all, with capacities.
	Loads    []string
	Policies []Named
	Seed     uint64
	// Seeds is how many runs each figure is the mean of; 0: as the trace needs.
	Seeds int
	// Progress gets a line for each step.
	Progress io.Writer
}

// config is the base of a study's simulations: Qwen3-32B on two H100 a worker,
// of which internal/timing has the constants.
func (p *Plan) config(t Trace, blocks int) (Config, error) {
	d, err := timing.Known().Find(timing.DefaultDeployment)
	if err != nil {
		return Config{}, err
	}
	c := DefaultConfig(Of(d), blocks)
	c.Trace, c.Seed, c.Workers = t, p.Seed, p.Workers
	return c, nil
}

// Run does the study.
func (p *Plan) Run(ctx context.Context) (*Study, error) {
	s := &Study{}
	for _, t := range p.Traces {
		for _, blocks := range p.Blocks {
			c, err := p.study(ctx, t, blocks)
			if err != nil {
				return nil, fmt.Errorf("%s, %d blocks: %w", t.Name, blocks, err)
			}
			s.Cases = append(s.Cases, *c)
		}
	}
	return s, nil
}

func (p *Plan) study(ctx context.Context, t Trace, blocks int) (*Case, error) {
	base, err := p.config(t, blocks)
	if err != nil {
		return nil, err
	}
	c := &Case{
		Trace: t.Name, Workers: p.Workers, Blocks: blocks,
		Bounds: t.Bounds(p.Workers * blocks), Capacity: map[string]float64{},
	}
	speeds, err := p.speeds(ctx, base)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{LoadLight, LoadModerate, LoadHeavy, LoadOver} {
		speed, wanted := speeds[name]
		if !wanted {
			continue
		}
		load, err := p.load(ctx, base, name, speed)
		if err != nil {
			return nil, err
		}
		c.Loads = append(c.Loads, *load)
	}
	if len(p.Loads) == 0 {
		err = p.capacities(ctx, base, c)
	}
	return c, err
}

// speeds are those of the loads, by Dynamo's goodput.
func (p *Plan) speeds(ctx context.Context, base Config) (map[string]float64, error) {
	theirs, err := Find(Theirs)
	if err != nil {
		return nil, err
	}
	base.Policy = theirs.New
	out := map[string]float64{}
	for _, l := range []struct {
		name    string
		goodput float64
		times   float64
	}{{LoadLight, light, 1}, {LoadModerate, moderate, 1}, {LoadHeavy, heavy, 1}, {LoadOver, heavy, overloadOver}} {
		if len(p.Loads) > 0 && !slices.Contains(p.Loads, l.name) {
			continue
		}
		speed, known := out[LoadHeavy]
		if l.name != LoadOver || !known {
			if speed, _, err = SpeedFor(ctx, base, p.seeds(base.Trace), l.goodput); err != nil {
				return nil, err
			}
		}
		out[l.name] = speed * l.times
		base.Speed = out[l.name]
		p.sayf("%s, %d blocks: %s load at speed %.3f", base.Trace.Name, base.Blocks, l.name, out[l.name])
	}
	return out, nil
}

func (p *Plan) load(ctx context.Context, base Config, name string, speed float64) (*Load, error) {
	base.Speed = speed
	results, err := Compare(ctx, base, p.seeds(base.Trace), p.Policies)
	if err != nil {
		return nil, err
	}
	if p.Progress != nil {
		p.sayf("\n%s, %d workers of %d blocks, %s (speed %.3f)", base.Trace.Name, base.Workers, base.Blocks, name, speed)
		if err := Print(p.Progress, p.Policies, results); err != nil {
			return nil, err
		}
	}
	return &Load{Name: name, Speed: speed, Results: results}, nil
}

func (p *Plan) seeds(t Trace) int {
	if p.Seeds > 0 {
		return p.Seeds
	}
	return seeds(t)
}

// seeds is how many runs a figure is the mean of: three of a short trace, where
// ties between workers weigh more.
func seeds(t Trace) int {
	if len(t.Entries) < 6000 {
		return 3
	}
	return 1
}

// Compare plays one configuration under several policies, each with some seeds,
// and gives the results by policy.
func Compare(ctx context.Context, cfg Config, seeds int, list []Named) (map[string]*Result, error) {
	jobs := make([]*job, len(list))
	for i, p := range list {
		c := cfg
		c.Policy = p.New
		jobs[i] = &job{cfg: c, seeds: seeds}
	}
	if err := runAll(ctx, jobs); err != nil {
		return nil, err
	}
	results := map[string]*Result{}
	for i, p := range list {
		results[p.Name] = jobs[i].result
	}
	return results, nil
}

// capacities of ours, Dynamo's cost and the best two others by goodput under the
// heavy load; each search begins between the light and the moderate load.
func (p *Plan) capacities(ctx context.Context, base Config, c *Case) error {
	heavy := c.Loads[2].Results
	list := slices.Clone(p.Policies)
	slices.SortStableFunc(list, func(a, b Named) int { return cmp.Compare(heavy[b.Name].Goodput, heavy[a.Name].Goodput) })
	others := 0
	list = slices.DeleteFunc(list, func(n Named) bool {
		switch n.Name {
		case Ours, Theirs:
			return false
		case Admits: // what it sheds are misses: its capacity is no more than ours
			return true
		}
		others++
		return others > 2
	})
	found := make([]float64, len(list))
	tasks := make([]func(context.Context) error, len(list))
	for i, policy := range list {
		cfg := base
		cfg.Speed, cfg.Policy = (c.Loads[0].Speed+c.Loads[1].Speed)/2, policy.New
		tasks[i] = func(ctx context.Context) (err error) {
			found[i], _, err = SpeedFor(ctx, cfg, p.seeds(base.Trace), capacityAt)
			return err
		}
	}
	if err := sideBySide(ctx, tasks); err != nil {
		return err
	}
	for i, policy := range list {
		c.Capacity[policy.Name] = found[i]
	}
	p.sayf("%s, %d blocks: capacities done", base.Trace.Name, base.Blocks)
	return nil
}

func (p *Plan) sayf(format string, args ...any) {
	if p.Progress != nil {
		fmt.Fprintf(p.Progress, format+"\n", args...)
	}
}

// Robust plays the robustness axes at the moderate load of a trace's first case.
func (p *Plan) Robust(ctx context.Context, s *Study, t Trace) ([]Robustness, error) {
	base, err := p.moderate(s, t)
	if err != nil {
		return nil, err
	}
	return robust(ctx, base)
}

// Split plays the divisions into prefill and decode workers there.
func (p *Plan) Split(ctx context.Context, s *Study, t Trace) ([]SplitCase, error) {
	base, err := p.moderate(s, t)
	if err != nil {
		return nil, err
	}
	return split(ctx, base)
}

// moderate is the configuration of that load.
func (p *Plan) moderate(s *Study, t Trace) (Config, error) {
	for i := range s.Cases {
		c := &s.Cases[i]
		if c.Trace != t.Name {
			continue
		}
		for j := range c.Loads {
			if c.Loads[j].Name != LoadModerate {
				continue
			}
			base, err := p.config(t, c.Blocks)
			base.Speed = c.Loads[j].Speed
			return base, err
		}
	}
	return Config{}, fmt.Errorf("%s: no moderate load in the study", t.Name)
}

// best is the policy beside ours and the oracle with the best value; better says
// whether a beats b.
func (l *Load) best(value func(*Result) float64, better func(a, b float64) bool) (string, float64) {
	name, most := "", 0.0
	for _, n := range slices.Sorted(maps.Keys(l.Results)) {
		if n == Ours || n == Admits || n == Oracle {
			continue
		}
		if v := value(l.Results[n]); name == "" || better(v, most) {
			name, most = n, v
		}
	}
	return name, most
}
