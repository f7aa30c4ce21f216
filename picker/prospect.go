package picker

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// Prospect is what a request may expect of a pool in which no worker has room now.
type Prospect struct {
	// Cached is the most tokens of the prompt that one worker needs not prefill.
	Cached int
	// AloneMs is the prefill's time where it is shortest, on an idle worker: no time to
	// first token is below it. 0 if no worker serves the model.
	AloneMs float64
	// TargetMs is the request's target for the time to first token, its own or the
	// pool's; 0 for none.
	TargetMs float64
	// TokensPerSecond is what those workers prefill together if they do nothing else;
	// 0 if there are none.
	TokensPerSecond float64
	// RoomMs is the queue with which a worker has room again ([Config].MaxQueueMs); 0
	// if queues are not limited.
	RoomMs float64
}

// Targets are a request's targets: its own, and where it has none the pool's.
func (p *Pool) Targets(own SLO) SLO {
	return SLO{TTFTMs: cmp.Or(own.TTFTMs, p.fleet.SLO.TTFTMs), TPOTMs: cmp.Or(own.TPOTMs, p.fleet.SLO.TPOTMs)}
}

// Prospect looks at the request's model, length and matches. It books nothing. It
// takes some time for each worker: ask it of requests that wait, not of all.
func (p *Pool) Prospect(req *Request, now time.Time) Prospect {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := Prospect{TargetMs: p.Targets(req.SLO).TTFTMs, RoomMs: p.fleet.MaxQueueMs}
	chunk := p.config.ChunkTokens
	for _, w := range p.workers {
		if !w.prefills(req.Model, now) {
			continue
		}
		out.offer(w.timing.PrefillMs(max(1, req.ISL), 0, chunk))
		if ms := w.timing.PrefillMs(chunk, 0, chunk); ms > 0 {
			out.TokensPerSecond += float64(chunk) / ms * 1000
		}
	}
	for i := range req.Matches {
		m := &req.Matches[i]
		w := p.worker(m.Worker, m.Rank)
		if w == nil || !w.prefills(req.Model, now) {
			continue
		}
		block := int(w.hello.BlockSize)
		cached := min(int(m.Depth[kvindex.Device])*block, max(0, req.ISL-1)/max(1, block)*block)
		out.Cached = max(out.Cached, cached)
		out.offer(w.timing.PrefillMs(max(1, req.ISL-cached), cached, chunk))
	}
	return out
}

func (p *Prospect) offer(ms float64) {
	if p.AloneMs == 0 || ms < p.AloneMs {
		p.AloneMs = ms
	}
}

// prefills reports whether the worker can prefill for a model.
func (w *worker) prefills(model string, now time.Time) bool {
	return w.ready(now) && w.hello.Role != kvindex.RoleRelay &&
		(slices.Contains(w.hello.Served, model) || slices.Contains(w.hello.Adapters, model))
}
