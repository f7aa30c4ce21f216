package sim

import (
	"fmt"

	"github.com/kvlane/kvlane/internal/benchfile"
)

// metric is one figure of a result.
type metric struct {
	name, unit, better string
	of                 func(*Result) float64
}

// The metrics of the rows.
func meanTTFT() metric {
	return metric{"TTFT mean", "ms", "lower", func(r *Result) float64 { return r.TTFT.Mean }}
}

func p99TTFT() metric {
	return metric{"TTFT p99", "ms", "lower", func(r *Result) float64 { return r.TTFT.P99 }}
}

func goodput() metric {
	return metric{"goodput", "share", "higher", func(r *Result) float64 { return r.Goodput }}
}

func misses() metric { return metric{"SLO misses", "share", "lower", (*Result).Misses} }

func hitRate() metric {
	return metric{"hit rate", "share", "higher", func(r *Result) float64 { return r.HitRate }}
}

func meanTPOT() metric {
	return metric{"TPOT mean", "ms", "lower", func(r *Result) float64 { return r.TPOT.Mean }}
}

// peerName is what Dynamo's cost is called in the rows.
const peerName = "dynamo cost 1.6.1, simulated"

// AddRows writes a study's rows: each goal of the comparison, met or not.
func (s *Study) AddRows(f *benchfile.File) {
	for i := range s.Cases {
		c := &s.Cases[i]
		for j := range c.Loads {
			c.addLoad(f, &c.Loads[j])
		}
		if len(c.Capacity) > 0 {
			name := fmt.Sprintf("%s, %d blocks", c.Trace, c.Blocks)
			f.Compare(name, "speed with 90 % in the SLO", "x", "higher", c.Capacity[Ours], peerName, c.Capacity[Theirs], 1.15)
		}
	}
}

func (c *Case) addLoad(f *benchfile.File, l *Load) {
	name := fmt.Sprintf("%s, %d blocks, %s (speed %.3f)", c.Trace, c.Blocks, l.Name, l.Speed)
	ours, theirs := l.Results[Ours], l.Results[Theirs]
	against := func(m metric, goal float64) {
		f.Compare(name, m.name, m.unit, m.better, m.of(ours), peerName, m.of(theirs), goal)
	}
	goals := map[string][6]float64{ // mean TTFT, p99 TTFT, misses, goodput, hit rate, TPOT
		LoadModerate: {0.90, 1.02, 0.65, 0, 1.2, 0},
		LoadHeavy:    {0.85, 0, 0, 1.15, 0, 0},
	}[l.Name]
	for i, m := range []metric{meanTTFT(), p99TTFT(), misses(), goodput(), hitRate(), meanTPOT()} {
		against(m, goals[i])
		f.Because(l.reach(m))
	}
	if l.Name == LoadModerate {
		addErrors(f, name, ours)
	}
	best := func(m metric, goal float64) {
		lower := m.better == "lower"
		peer, value := l.best(m.of, func(a, b float64) bool { return a < b == lower && a != b })
		f.Compare(name+", best other", m.name, m.unit, m.better, m.of(ours), peer, value, goal)
		f.Because(fmt.Sprintf("%s has %.1f %% in the SLO, ours %.1f; %s", peer, 100*l.Results[peer].Goodput, 100*ours.Goodput, l.reach(m)))
	}
	best(goodput(), 1)
	if l.Name != LoadOver {
		best(meanTTFT(), 1)
		best(p99TTFT(), 1.05)
		return
	}
	unfair := metric{"longest wait over the fair wait", "x", "lower", func(r *Result) float64 { return r.Unfair }}
	f.Bound(name, unfair.name, unfair.unit, unfair.better, ours.Unfair, 3)
	f.Because("without flow control nothing bounds a wait; " + l.reach(unfair))
	admits := l.Results[Admits]
	if admits == nil {
		return
	}
	name += ", flow control"
	peer, value := l.best(goodput().of, func(a, b float64) bool { return a > b })
	f.Compare(name+", best other", "goodput", "share", "higher", admits.Goodput, peer, value, 1)
	f.Compare(name, "goodput", "share", "higher", admits.Goodput, "kvlane without it", ours.Goodput, 0)
	f.Compare(name, "TTFT mean of those answered", "ms", "lower", admits.TTFT.Mean, "kvlane without it", ours.TTFT.Mean, 0)
	f.Bound(name, unfair.name, unfair.unit, unfair.better, admits.Unfair, 3)
	f.Because("a prediction at the release was too low")
}

// addErrors writes how wrong the predicted times to first token were.
func addErrors(f *benchfile.File, name string, ours *Result) {
	const why = "the trace has many requests in one instant: those that come after a pick join its step, " +
		"and no state of the engine at the pick tells; see the row with arrivals spread"
	f.Bound(name, "error of predicted TTFT, p50", "share", "lower", ours.ErrorP50, 0.05)
	f.Because(why)
	f.Bound(name, "error of predicted TTFT, p90", "share", "lower", ours.ErrorP90, 0.20)
	f.Because(why)
}

// reach says what is known to be reachable: the best of the others and the policy
// that sees every engine's state.
func (l *Load) reach(m metric) string {
	lower := m.better == "lower"
	peer, value := l.best(m.of, func(a, b float64) bool { return a < b == lower && a != b })
	text := fmt.Sprintf("best of the others is %s with %.4g", peer, value)
	if o := l.Results[Oracle]; o != nil {
		text += fmt.Sprintf(", the oracle has %.4g", m.of(o))
	}
	return text
}
