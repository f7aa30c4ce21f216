package sim_test

import (
	"testing"

	"github.com/kvlane/kvlane/test/sim"
)

// TestSplit: every request is answered whichever rule sends prefills away, and
// what the rules send costs what a transfer costs.
func TestSplit(t *testing.T) {
	t.Parallel()
	for _, p := range append(sim.SplitRules(), mustFind(t, sim.Ours)) {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			c := small(t, sim.Ours)
			c.Policy, c.Prefillers = p.New, 1
			r := run(t, c)
			if local := p.Name == "always local"; local == (r.Transferred > 0) {
				t.Errorf("%d tokens were transferred", r.Transferred)
			}
		})
	}
}

func mustFind(t *testing.T, name string) sim.Named {
	t.Helper()
	p, err := sim.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
