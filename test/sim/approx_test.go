package sim_test

import (
	"testing"

	"github.com/kvlane/kvlane/test/sim"
)

// TestModelled: a model of caches by what passes through the agents is worth most
// of what the engines' own events are.
func TestModelled(t *testing.T) {
	t.Parallel()
	c := small(t, sim.Ours)
	events := run(t, c)
	c.Modelled = true
	model := run(t, c)
	c.Modelled, c.NoEvents = false, true
	blind := run(t, c)
	t.Logf("hit rate %.3f with events, %.3f with models, %.3f with neither", events.HitRate, model.HitRate, blind.HitRate)
	if model.HitRate < blind.HitRate+(events.HitRate-blind.HitRate)*0.7 {
		t.Errorf("hit rate %.3f, with events %.3f, without %.3f", model.HitRate, events.HitRate, blind.HitRate)
	}
}
