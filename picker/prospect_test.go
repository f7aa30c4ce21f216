package picker

import (
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// TestProspect: what a request may expect counts the workers that serve it, and
// what one of them holds of its prompt.
func TestProspect(t *testing.T) {
	c, now := DefaultConfig(), time.Unix(1000, 0)
	c.MaxQueueMs, c.SLOTTFTMs = 300, 2000
	p := NewPool(c, timing.Known())
	join := func(name, model string, role kvindex.Role) {
		p.Apply(&kvindex.Record{
			Owner: kvindex.Owner{Worker: kvindex.WorkerID(name)}, Epoch: 1, Term: 1, Kind: kvindex.KindHello,
			Hello: &kvindex.Hello{Address: name + ":1", Ready: true, Role: role, Model: model, Served: []string{model}, BlockSize: 16, LeaseMs: 1000},
		}, now)
	}
	req := &Request{ID: "r", Model: "m", ISL: 1000}
	if got := p.Prospect(req, now); got.AloneMs != 0 || got.TokensPerSecond != 0 {
		t.Errorf("of nobody: %+v", got)
	}
	join("a", "m", kvindex.RoleAggregated)
	join("relay", "m", kvindex.RoleRelay)
	join("other", "n", kvindex.RoleAggregated)
	one := p.Prospect(req, now)
	if one.Cached != 0 || one.AloneMs <= 0 || one.TokensPerSecond <= 0 || one.TargetMs != 2000 || one.RoomMs != 300 {
		t.Errorf("of one worker: %+v", one)
	}
	join("b", "m", kvindex.RolePrefill)
	req.SLO.TTFTMs = 100
	req.Matches = []kvindex.Match{{Worker: "b", Depth: [kvindex.NumTiers]uint32{kvindex.Device: 1000}}, {Worker: "other"}, {Worker: "nobody"}}
	two := p.Prospect(req, now)
	if two.Cached != 992 || two.AloneMs >= one.AloneMs || two.TokensPerSecond != 2*one.TokensPerSecond || two.TargetMs != 100 {
		t.Errorf("of two, one of which has it all: %+v, of the one before %+v", two, one)
	}
	if gone := p.Prospect(req, now.Add(2*time.Second)); gone.TokensPerSecond != 0 {
		t.Errorf("of workers whose leases are over: %+v", gone)
	}
}
