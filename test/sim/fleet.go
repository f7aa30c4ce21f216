package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/test/sim/policies"
)

// Config is one simulation.
type Config struct {
	Trace Trace
	// Texts are what the trace's requests and answers say; nil where only their
	// blocks are known. Agents learn from them.
	Texts []TextTurn
	// Speed divides the times between arrivals; more than 0.
	Speed float64
	// Workers is the number of engines, each with Blocks blocks of KV cache.
	Workers, Blocks int
	// HostBlocks is the size of each engine's tier of host memory, in blocks; 0 for
	// none.
	HostBlocks int
	// ChunkTokens and MaxSeqs bound an engine's step (vLLM: 8,192 and 256).
	ChunkTokens, MaxSeqs int
	Timing               Timing
	// Prefillers is how many of the workers, the first ones, only prefill for the
	// others.
	Prefillers int
	// Group is how many ranks of one worker step together: each step takes as long as
	// the slowest's. Workers counts ranks then. 0 or 1: each steps alone.
	Group int
	// Hardware, if set, is the timing of each worker; Timing still prices the SLO.
	Hardware func(worker int) Timing
	// DynamoEngine turns on what Dynamo's simulated engine does differently from vLLM:
	// EarlyEvents and EmptyFirst of the core.
	DynamoEngine bool
	// Policy makes the router; each replica has one.
	Policy func(Setup) policies.Policy
	// Seed decides ties and losses.
	Seed uint64

	// EventLag and LoadLag are the times until a router has what a worker wrote:
	// cache changes, and load reports and answers.
	EventLag, LoadLag time.Duration
	// EventLoss is the share of batches of cache changes that a router misses, 0 to 1.
	// It notices with the next batch and has a snapshot ResyncAfter later.
	EventLoss   float64
	ResyncAfter time.Duration
	// NoEvents: workers publish no cache changes.
	NoEvents bool
	// Modelled: engines publish none, and their agents publish a model of their caches
	// by what passes through.
	Modelled bool
	// Replicas is the number of routers that share the requests, in turn.
	Replicas int
	// BookingLag is the time until a router knows of another's bookings; below 0 it
	// never does.
	BookingLag time.Duration
	// Changes are workers that die or join.
	Changes []Change
	// Spacing puts requests that the trace gives the same moment this far apart. The
	// conversation trace has steps of 3 s, so ten requests come at once: one router
	// takes them one after the other, but of several none can know what the others
	// decide in that instant.
	Spacing time.Duration
	SLO     SLO
}

// Change is a worker that dies or comes back empty at a time.
type Change struct {
	At     time.Duration
	Worker int
	Up     bool
}

// detectAfter is how long routers send requests to a dead worker, which fail at
// once and are sent again.
const detectAfter = time.Second

// Setup is what a router knows of its fleet.
type Setup struct {
	Workers, Prefillers, Group, Blocks, BlockSize, ChunkTokens int
	Timing                                                     Timing
	// Hardware is every worker's timing.
	Hardware []Timing
	// Replica is the router's name among several; empty if it is alone.
	Replica string
	SLO     SLO
	Rand    *rand.Rand
}

// DefaultConfig is 8 workers with Dynamo's stepping; the trace, its speed and the
// policy are to be set.
func DefaultConfig(t Timing, blocks int) Config {
	return Config{
		Speed: 1, Workers: 8, Blocks: blocks, ChunkTokens: 8192, MaxSeqs: 256, Timing: t, DynamoEngine: true,
		Seed: 1, Replicas: 1, ResyncAfter: 50 * time.Millisecond, SLO: DefaultSLO(),
	}
}

func (c *Config) timingOf(worker int) Timing {
	if c.Hardware != nil {
		return c.Hardware(worker)
	}
	return c.Timing
}

func (c *Config) validate() error {
	switch {
	case len(c.Trace.Entries) == 0:
		return errors.New("the trace is empty")
	case !(c.Speed > 0):
		return fmt.Errorf("speed %v: want more than 0", c.Speed)
	case c.Workers < 1 || c.Replicas < 1 || c.Prefillers >= c.Workers:
		return fmt.Errorf("%d workers, %d of them for prefill, %d routers: want at least 1 worker that answers, and 1 router",
			c.Workers, c.Prefillers, c.Replicas)
	case c.Policy == nil || c.Timing.Name == "":
		return errors.New("no policy or no timing")
	}
	return nil
}

// Fleet is a running simulation.
type Fleet struct {
	cfg     Config
	now     time.Duration
	agenda  agenda
	engines []*engine
	routers []*router
	calls   []*call
	lossy   *rand.Rand
	failed  error
}

// observer is a policy that follows the log itself.
type observer interface {
	Apply(r *kvindex.Record, now time.Duration)
}

// pairing is a policy that may have another worker prefill; -1 for none.
type pairing interface{ Prefiller() int }

// sharer is a policy that announces bookings to its other replicas.
type sharer interface {
	Outbox() []kvindex.Record
}

// Run plays a trace to its end. ctx stops it early with an error.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	f, err := newFleet(cfg)
	if err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	for n := 0; !f.agenda.empty(); n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		e := f.agenda.next()
		f.now = e.at
		if e.engine != nil {
			e.engine.wake(e.at)
		} else {
			e.do()
		}
		if f.failed != nil {
			return nil, fmt.Errorf("simulate at %v: %w", f.now, f.failed)
		}
	}
	return f.result(), nil
}

func newFleet(cfg Config) (*Fleet, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	f := &Fleet{cfg: cfg, lossy: rand.New(rand.NewPCG(cfg.Seed, 2))}
	for i := range cfg.Workers {
		e, err := f.newEngine(i)
		if err != nil {
			return nil, err
		}
		f.engines = append(f.engines, e)
	}
	for i, e := range f.engines {
		if g := max(1, cfg.Group); g > 1 {
			e.group = f.engines[i/g*g : min(len(f.engines), i/g*g+g)]
		}
	}
	for i := range cfg.Replicas {
		f.routers = append(f.routers, f.newRouter(i))
	}
	for _, e := range f.engines {
		f.introduce(e)
	}
	// The picker breaks ties by the request's name.
	prefix := "r" + strconv.FormatUint(cfg.Seed, 10) + "-"
	f.calls = make([]*call, len(cfg.Trace.Entries))
	for i := range cfg.Trace.Entries {
		e := &cfg.Trace.Entries[i]
		c := &call{osl: e.OSL, arrived: time.Duration(float64(e.At) / cfg.Speed), router: f.routers[i%cfg.Replicas], worker: -1}
		c.Request = policies.Request{ID: prefix + strconv.Itoa(i), Index: i, ISL: e.ISL, Blocks: e.Blocks, Output: e.OSL}
		if i > 0 && cfg.Spacing > 0 {
			c.arrived = max(c.arrived, f.calls[i-1].arrived+cfg.Spacing)
		}
		f.calls[i] = c
	}
	f.arrival(0)
	for _, c := range cfg.Changes {
		f.agenda.add(event{at: c.At, class: classChange, do: func() { f.change(c) }})
	}
	return f, nil
}

// introduce has a worker say who it is and what it has to do, as agents do when they
// start.
func (f *Fleet) introduce(e *engine) {
	f.deliver([]kvindex.Record{e.hello()})
	e.changed = true
	e.report()
}

// arrival puts the i-th request and after it the next one on the agenda: few
// events wait at a time.
func (f *Fleet) arrival(i int) {
	if i >= len(f.calls) {
		return
	}
	f.agenda.add(event{at: f.calls[i].arrived, class: classArrive, do: func() {
		f.arrival(i + 1)
		f.route(f.calls[i])
	}})
}

// route sends a request where its router says.
func (f *Fleet) route(c *call) {
	if c.lost == 0 {
		c.fairMs = f.queued() / float64(f.cfg.Workers)
	}
	if c.router.gate != nil {
		c.router.gate.arrive(c)
		return
	}
	w := c.router.pick(c)
	if w < 0 {
		f.refuse(c)
		return
	}
	f.dispatch(c, w)
}

// refuse ends a request without an answer.
func (f *Fleet) refuse(c *call) { c.refused, c.done, c.first = true, true, f.now }

// dispatch gives a request to the worker that was picked for it.
func (f *Fleet) dispatch(c *call, w int) {
	f.share(c.router)
	c.prefiller = nil
	if p, ok := c.router.policy.(pairing); ok && p.Prefiller() >= 0 {
		c.prefiller = f.engines[p.Prefiller()]
	}
	e := f.engines[w]
	if !e.up { // died, and the router does not know yet
		c.lost++
		f.tell(c, func(p policies.Policy) { p.Done(&c.Request, w, f.now) })
		f.agenda.add(event{at: f.now + detectAfter/10, class: classArrive, do: func() { f.route(c) }})
		return
	}
	if err := e.accept(c); err != nil {
		f.failed = err
	}
}

// queued is the prefill time that waits on all workers and in the routers, ms.
func (f *Fleet) queued() float64 {
	sum, m := 0.0, f.cfg.Timing.Model
	add := func(tokens int) {
		sum += float64(timing.Steps(tokens, f.cfg.ChunkTokens))*m.Prefill.A + m.Prefill.B*float64(tokens)
	}
	for _, e := range f.engines {
		if e.load.QueuedTokens > 0 {
			add(e.core.Stats().QueuedTokens)
		}
	}
	for _, r := range f.routers {
		if r.gate != nil {
			add(r.gate.tokens)
		}
	}
	return sum
}

// tell passes what happened to a request to its router, when it knows.
func (f *Fleet) tell(c *call, what func(policies.Policy)) {
	if f.cfg.LoadLag == 0 {
		what(c.router.policy)
		f.share(c.router)
		c.router.gate.news()
		return
	}
	f.agenda.add(event{at: f.now + f.cfg.LoadLag, class: classNotice, do: func() {
		what(c.router.policy)
		f.share(c.router)
		c.router.gate.news()
	}})
}

// send delivers records to every router after a lag; lossy ones get lost.
func (f *Fleet) send(e *engine, records []kvindex.Record, lag time.Duration, lossy bool) {
	if lossy && f.cfg.EventLoss > 0 {
		for _, r := range f.routers {
			if f.lossy.Float64() < f.cfg.EventLoss {
				continue
			}
			f.agenda.add(event{at: f.now + lag, class: classNotice, do: func() { r.follow(e, records) }})
		}
		return
	}
	if lag == 0 {
		f.deliver(records)
		return
	}
	f.agenda.add(event{at: f.now + lag, class: classNotice, do: func() { f.deliver(records) }})
}

func (f *Fleet) deliver(records []kvindex.Record) {
	for _, r := range f.routers {
		r.apply(records)
	}
}

// share announces a router's bookings to the others.
func (f *Fleet) share(from *router) {
	if f.cfg.Replicas == 1 {
		return
	}
	s, ok := from.policy.(sharer)
	if !ok {
		return
	}
	records := s.Outbox()
	if f.cfg.BookingLag < 0 || len(records) == 0 {
		return
	}
	f.agenda.add(event{at: f.now + f.cfg.BookingLag, class: classNotice, do: func() {
		for _, r := range f.routers {
			if r != from {
				r.apply(records)
			}
		}
	}})
}

// change kills a worker or starts it again.
func (f *Fleet) change(c Change) {
	e := f.engines[c.Worker]
	if c.Up {
		f.revive(e)
		return
	}
	e.up = false
	lost := make([]*call, 0, len(e.calls))
	for _, call := range e.calls {
		lost = append(lost, call)
	}
	slices.SortFunc(lost, func(a, b *call) int { return cmp.Compare(a.Index, b.Index) })
	bye := kvindex.Record{Owner: e.owner, Epoch: e.epoch, Term: 1, Kind: kvindex.KindBye}
	f.agenda.add(event{at: f.now + detectAfter, class: classNotice, do: func() {
		for _, r := range f.routers {
			r.down[e.index] = true
		}
		f.deliver([]kvindex.Record{bye})
	}})
	for _, call := range lost {
		call.lost++
		f.tell(call, func(p policies.Policy) { p.Done(&call.Request, e.index, f.now) })
		f.agenda.add(event{at: f.now + detectAfter/10, class: classArrive, do: func() { f.route(call) }})
	}
	e.calls = map[string]*call{}
}

func (f *Fleet) revive(e *engine) {
	fresh, err := f.newEngine(e.index)
	if err != nil {
		f.failed = err
		return
	}
	fresh.epoch, fresh.minutes, fresh.group = e.epoch+1, e.minutes, e.group
	*e = *fresh
	for _, r := range f.routers {
		r.down[e.index] = false
	}
	f.introduce(e)
}
