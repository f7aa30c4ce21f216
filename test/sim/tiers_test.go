package sim_test

import (
	"testing"

	"github.com/kvlane/kvlane/test/sim"
)

// TestHostTier: host memory keeps what the caches are too small for, and the
// router finds it there.
func TestHostTier(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{sim.Ours, sim.Theirs} {
		c := small(t, policy)
		none := run(t, c)
		c.HostBlocks = 4 * c.Blocks
		host := run(t, c)
		t.Logf("%s: hit rate %.3f, with host memory %.3f, of which %.3f were loaded; mean TTFT %.0f and %.0f ms",
			policy, none.HitRate, host.HitRate, host.Loaded, none.TTFT.Mean, host.TTFT.Mean)
		if none.Loaded != 0 || host.Loaded <= 0.1 || host.HitRate < none.HitRate+0.1 || host.TTFT.Mean >= none.TTFT.Mean {
			t.Errorf("%s: hit rate %v and %v, loaded %v and %v", policy, none.HitRate, host.HitRate, none.Loaded, host.Loaded)
		}
		if bound := c.Trace.Bounds(0).Ideal; host.HitRate > bound {
			t.Errorf("%s: hit rate %v is above what is possible, %v", policy, host.HitRate, bound)
		}
	}
}
