package sim

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/test/sim/policies"
)

// router is one replica: an index that follows the log, and a policy.
type router struct {
	fleet  *Fleet
	index  *kvindex.Index
	policy policies.Policy
	down   []bool // by worker
	// places are the engines by name.
	places  map[kvindex.Owner]int
	matches []kvindex.Match
	overlap []int
	hosted  []int // blocks behind those, in host memory
	// doubtful are workers whose snapshot is on its way.
	doubtful map[*engine]bool
	sample   policies.Worker
	gate     *gate // nil: nobody waits in the router
}

func (f *Fleet) newRouter(i int) *router {
	cfg := &f.cfg
	r := &router{
		fleet: f, index: kvindex.NewIndex(), down: make([]bool, cfg.Workers), places: map[kvindex.Owner]int{},
		overlap: make([]int, cfg.Workers), hosted: make([]int, cfg.Workers), doubtful: map[*engine]bool{},
	}
	hardware := make([]Timing, cfg.Workers)
	for w := range cfg.Workers {
		r.places[seat(w, cfg.Group)] = w
		hardware[w] = cfg.timingOf(w)
	}
	name := ""
	if cfg.Replicas > 1 {
		name = "router" + strconv.Itoa(i)
	}
	r.policy = cfg.Policy(Setup{
		Workers: cfg.Workers, Prefillers: cfg.Prefillers, Group: cfg.Group,
		Blocks: cfg.Blocks, BlockSize: cfg.Trace.BlockSize, ChunkTokens: cfg.ChunkTokens,
		Timing: cfg.Timing, Hardware: hardware, Replica: name, SLO: cfg.SLO,
		Rand: rand.New(rand.NewPCG(cfg.Seed, 100+uint64(i))),
	})
	r.gate = newGate(r)
	return r
}

// match asks the index what workers hold of a prompt.
func (r *router) match(c *call) {
	r.matches = r.index.Overlap(c.Blocks, r.matches[:0])
	clear(r.overlap)
	clear(r.hosted)
	for i := range r.matches {
		m := &r.matches[i]
		place := r.places[kvindex.Owner{Worker: m.Worker, Rank: m.Rank}]
		r.overlap[place] = int(m.Depth[kvindex.Device])
		r.hosted[place] = int(m.Depth[kvindex.Host] - m.Depth[kvindex.Device])
	}
	c.Overlap, c.Hosted, c.Now = r.overlap, r.hosted, r.fleet.now
	if m, ok := r.policy.(matcher); ok {
		m.Matches(r.matches)
	}
}

// pick asks the policy.
func (r *router) pick(c *call) int {
	r.match(c)
	w := r.policy.Pick(&c.Request, r)
	if p, ok := r.policy.(predictor); ok && w >= 0 {
		c.predicted, c.queued = p.Predicted()
	}
	return w
}

// matcher is a policy that wants the index's own answer.
type matcher interface{ Matches(m []kvindex.Match) }

// predictor is a policy that predicts the time to first token of what it picked, and
// the part of it that is spent in the worker's queue, ms.
type predictor interface{ Predicted() (ttft, queue float64) }

// apply takes records of the log.
func (r *router) apply(records []kvindex.Record) {
	o, observes := r.policy.(observer)
	for i := range records {
		rec := &records[i]
		if rec.Kind.Sequenced() || rec.Kind == kvindex.KindBye {
			if err := r.index.Apply(rec); err != nil {
				r.gap(rec, err)
			}
		}
		if observes {
			o.Apply(rec, r.fleet.now)
		}
	}
	r.gate.news()
}

// follow is apply where records may be missing.
func (r *router) follow(e *engine, records []kvindex.Record) {
	if e.epoch != records[0].Epoch {
		return
	}
	r.apply(records)
}

// gap asks for a snapshot after lost records.
func (r *router) gap(rec *kvindex.Record, err error) {
	if _, ok := errors.AsType[*kvindex.GapError](err); !ok {
		r.fleet.failed = err
		return
	}
	e := r.fleet.engines[r.places[rec.Owner]]
	if r.doubtful[e] {
		return
	}
	r.doubtful[e] = true
	r.fleet.agenda.add(event{at: r.fleet.now + r.fleet.cfg.ResyncAfter, class: classNotice, do: func() {
		r.doubtful[e] = false
		r.apply(e.snapshot())
	}})
}

// Workers implements [policies.Fleet].
func (r *router) Workers() int { return len(r.fleet.engines) }

// Up implements [policies.Fleet].
func (r *router) Up(w int) bool { return !r.down[w] }

// Look implements [policies.Fleet].
func (r *router) Look(w int) *policies.Worker {
	e := r.fleet.engines[w]
	st := e.core.Stats()
	r.sample = policies.Worker{
		Running: st.Running, Waiting: st.Waiting + e.expected, KVUsed: st.UsedBlocks, KVTotal: r.fleet.cfg.Blocks,
		QueuedTokens: st.QueuedTokens, ContextTokens: st.ContextTokens,
	}
	if at, ok := e.core.NextAt(); ok {
		r.sample.StepLeft = max(0, at-r.fleet.now)
	}
	return &r.sample
}

func sortedKeys(m map[kvindex.BlockHash]kvindex.BlockHash) []kvindex.BlockHash {
	keys := make([]kvindex.BlockHash, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// at is a moment of the simulation for code that wants a wall clock.
func at(now time.Duration) time.Time { return time.Unix(0, 0).UTC().Add(now) }
