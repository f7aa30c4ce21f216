package sim

import (
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
	"github.com/kvlane/kvlane/picker/flow"
	"github.com/kvlane/kvlane/test/sim/policies"
)

// ours is the production picker: it follows the log as every replica does.
type ours struct {
	pool      *picker.Pool
	matches   []kvindex.Match
	plan      picker.Plan // the last
	prefiller int
	// flow lets requests wait that no worker has room for, target is the bound of a
	// time to first token, which clients send then; both nil without flow control.
	flow   *flow.Config
	target func(r *policies.Request) picker.SLO
	places map[kvindex.Owner]int
}

// newOurs knows the fleet's hardware by its deployments, as operators name them.
func newOurs(s Setup, cfg picker.Config) *ours {
	cfg.ChunkTokens = s.ChunkTokens
	cfg.Replica = s.Replica
	cfg.BookingLease = 24 * time.Hour // answers under overload take long, and nobody loses them here
	table := timing.Table{Transfer: timing.Known().Transfer}
	seen := map[string]bool{}
	o := &ours{places: map[kvindex.Owner]int{}}
	for w, t := range s.Hardware {
		o.places[seat(w, s.Group)] = w
		if seen[t.Name] {
			continue
		}
		seen[t.Name] = true
		table.Deployments = append(table.Deployments, timing.Deployment{
			Name: t.Name, Prefill: t.Model.Prefill, Decode: t.Model.Decode, KVTokens: s.Blocks * s.BlockSize, KVBytesPerToken: t.KVBytesPerToken,
		})
	}
	o.pool = picker.NewPool(cfg, table)
	return o
}

// Matches is called before Pick.
func (o *ours) Matches(m []kvindex.Match) { o.matches = m }

// Pick implements [policies.Policy].
func (o *ours) Pick(r *policies.Request, _ policies.Fleet) int {
	plan := o.pool.Pick(o.request(r), at(r.Now))
	o.plan, o.prefiller = plan, -1
	if !plan.OK() {
		return -1
	}
	if plan.Prefill != nil {
		o.prefiller = o.places[kvindex.Owner{Worker: plan.Prefill.Worker, Rank: plan.Prefill.Rank}]
	}
	return o.places[kvindex.Owner{Worker: plan.Decode.Worker, Rank: plan.Decode.Rank}]
}

func (o *ours) request(r *policies.Request) *picker.Request {
	q := &picker.Request{ID: r.ID, Model: model, ISL: r.ISL, Matches: o.matches, Room: r.Room}
	if o.target != nil {
		q.SLO = o.target(r)
	}
	return q
}

// Predicted is of the last pick.
func (o *ours) Predicted() (ttft, queue float64) { return o.plan.TTFTMs, o.plan.Costs[0].Queue }

// admit lets requests wait in the router; clients send the SLO's targets.
func (o *ours) admit(s Setup, cfg flow.Config) {
	o.flow = &cfg
	o.target = func(r *policies.Request) picker.SLO {
		cached := 0
		for _, blocks := range r.Overlap {
			cached = max(cached, min(blocks, (r.ISL-1)/s.BlockSize)*s.BlockSize)
		}
		return picker.SLO{TTFTMs: s.SLO.bound(s.Timing.UnloadedMs(r.ISL-cached, cached, s.ChunkTokens)), TPOTMs: s.SLO.TPOTMs}
	}
}

// Flow implements [admitting].
func (o *ours) Flow() (flow.Config, bool) {
	if o.flow == nil {
		return flow.Config{}, false
	}
	return *o.flow, true
}

// Prospect implements [admitting].
func (o *ours) Prospect(r *policies.Request) picker.Prospect {
	return o.pool.Prospect(o.request(r), at(r.Now))
}

// Full implements [admitting].
func (o *ours) Full() (retry time.Duration, full bool) {
	return milliseconds(o.plan.RetryAfterMs), o.plan.Reason == picker.ReasonOverloaded
}

// Outbox is what the other replicas are to know.
func (o *ours) Outbox() []kvindex.Record { return o.pool.Outbox(nil) }

// Prefiller is the worker that prefills for the last pick; -1 if it is the picked
// one itself.
func (o *ours) Prefiller() int { return o.prefiller }

// Apply follows the log.
func (o *ours) Apply(r *kvindex.Record, now time.Duration) { o.pool.Apply(r, at(now)) }

// First implements [policies.Policy]; the load report says it.
func (o *ours) First(*policies.Request, int, time.Duration) {}

// Done implements [policies.Policy]: the gateway's stream ended.
func (o *ours) Done(r *policies.Request, _ int, now time.Duration) { o.pool.Close(r.ID, at(now)) }
