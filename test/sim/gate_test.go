package sim_test

import (
	"testing"

	"github.com/kvlane/kvlane/test/sim"
)

// TestFlood: without flow control a tenant that sends ten times what it did takes
// nearly all from the other.
func TestFlood(t *testing.T) {
	t.Parallel()
	p, err := sim.DefaultFlood(loadTrace(t, "synthetic", 1000))
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("goodput of the quiet tenant: alone %.3f, beside a flood %.3f with flow control, %.3f without; of the flood %.3f",
		r.Alone, r.Kept, r.Open, r.Flood)
	if r.Kept < 0.9*r.Alone {
		t.Errorf("the flood costs the quiet tenant %.3f of %.3f", r.Alone-r.Kept, r.Alone)
	}
	if r.Kept < r.Open+0.3 || r.Kept < r.Flood {
		t.Errorf("the quiet tenant has %.3f in time with flow control, %.3f without; the flood %.3f", r.Kept, r.Open, r.Flood)
	}
}

// TestPriorities: urgent requests are released before all others, so none of them is
// shed for those.
func TestPriorities(t *testing.T) {
	t.Parallel()
	c := small(t, sim.Admits)
	for i := range c.Trace.Entries {
		e := &c.Trace.Entries[i]
		e.At, e.Tenant = e.At/4, "other"
		if i%4 == 0 {
			e.Priority, e.Tenant = 1, "urgent"
		}
	}
	r := run(t, c)
	t.Logf("goodput %v, %d refused", r.Tenants, r.Refused)
	if r.Refused == 0 {
		t.Error("nobody was refused: not an overload")
	}
	if r.Tenants["urgent"] < r.Tenants["other"] {
		t.Errorf("goodput of urgent requests %.3f, of others %.3f", r.Tenants["urgent"], r.Tenants["other"])
	}
}
