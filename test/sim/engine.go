package sim

import (
	"fmt"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/test/sim/policies"
	core "github.com/kvlane/kvlane/workers/engine/sim"
)

// call is one request on its way.
type call struct {
	policies.Request
	osl     int
	arrived time.Duration
	router  *router
	worker  int // -1: on none
	// uncached is what its worker's agent counts as queued for it.
	uncached int
	// prefiller does the prefill in place of the worker, if not nil; handed says that
	// it has.
	prefiller *engine
	handed    bool

	refused bool
	started bool // it has its first token
	done    bool
	tokens  int
	earlier int           // of these, on workers that died
	cached  int           // tokens that needed no prefill at its first admission
	first   time.Duration // token, or refusal
	last    time.Duration
	gap     time.Duration // the longest between two tokens
	// fair is what a request had to wait for if the fleet shared its work equally.
	fairMs float64
	// lost counts the workers that died under it.
	lost int
	// predicted is the picker's time to first token, ms, and queued the part of it in
	// the worker's queue; 0 for other policies.
	predicted, queued float64
	// targetMs is the bound of the time to first token that a gate knows; 0 for none.
	targetMs float64
}

// engine is one simulated engine with its agent: it turns what the core does
// into the records that the agent would write.
type engine struct {
	fleet *Fleet
	index int
	owner kvindex.Owner
	group []*engine // ranks that step together, itself included; nil if alone
	core  *core.Core
	out   core.Output // used again for every step
	up    bool
	calls map[string]*call

	// armed is when the agenda wakes the engine; ok says that it does.
	armed   time.Duration
	armedOK bool

	// expected are requests that are here and whose prefill is elsewhere.
	expected int

	epoch uint64
	seq   uint64 // of the sequenced records
	// hostSeq is of those of the host tier, which is an owner of its own.
	hostSeq uint64
	// load is the agent's report in the making; changed says that something
	// happened since the last one.
	load    kvindex.Load
	changed bool
	// held are the cached blocks with their parents, kept where records get lost.
	held map[kvindex.BlockHash]kvindex.BlockHash
	// school learns what texts become; nil where there are none.
	school *school
	// model stands in for cache changes; nil where the engine publishes them.
	model *kvindex.Approx

	busy    time.Duration // of the core, when last looked at
	minutes []minute
}

// minute is what an engine did in one minute.
type minute struct {
	busyMs   float64
	uncached int
}

// seat names the i-th engine in records: a worker, or a rank of one.
func seat(i, group int) kvindex.Owner {
	group = max(1, group)
	return kvindex.Owner{Worker: kvindex.WorkerID(fmt.Sprintf("w%04d", i/group)), Rank: uint16(i % group)}
}

func (f *Fleet) newEngine(i int) (*engine, error) {
	cfg := &f.cfg
	t := cfg.timingOf(i)
	c, err := core.New(core.Config{
		BlockSize: cfg.Trace.BlockSize, Blocks: cfg.Blocks, MaxBatchedTokens: cfg.ChunkTokens, MaxSeqs: cfg.MaxSeqs,
		MaxModelLen: cfg.Blocks * cfg.Trace.BlockSize, PrefixCaching: true,
		Timing: t.Model, StepMs: t.StepMs, Transfer: timing.Known().Transfer, KVBytesPerToken: t.KVBytesPerToken,
		HostBlocks: cfg.HostBlocks, HostBytesPerSecond: HostBytesPerSecond,
		EarlyEvents: cfg.DynamoEngine, EmptyFirst: cfg.DynamoEngine,
		Next: func(uint64) (uint32, bool) { return 0, false },
	})
	if err != nil {
		return nil, err
	}
	return &engine{
		fleet: f, index: i, core: c, up: true, calls: map[string]*call{}, epoch: 1,
		owner: seat(i, cfg.Group),
		held:  map[kvindex.BlockHash]kvindex.BlockHash{},
	}, nil
}

// accept takes over a request that was routed here: the engine's, or until the
// prefill leg is done only the agent's.
func (e *engine) accept(c *call) error {
	c.worker, c.earlier = e.index, c.tokens
	e.calls[c.ID] = c
	e.load.Waiting++
	e.load.Accepted = append(e.load.Accepted, c.ID)
	e.changed = true
	defer e.report()
	if c.prefiller == nil {
		return e.submit(c, core.Request{MaxTokens: c.osl - c.tokens})
	}
	e.expected++
	p := c.prefiller
	p.calls[c.ID] = c
	p.load.Waiting++
	p.load.Accepted = append(p.load.Accepted, c.ID)
	p.changed = true
	defer p.report()
	return p.submit(c, core.Request{MaxTokens: 1, HoldKV: true})
}

// submit gives a request, or one leg of it, to the engine.
func (e *engine) submit(c *call, r core.Request) error {
	answer := e.fleet.cfg.Trace.Entries[c.Index].Answer
	content := make([]core.BlockID, 0, len(c.Blocks)+len(answer))
	for _, b := range c.Blocks {
		content = append(content, core.BlockID(b))
	}
	for _, b := range answer {
		content = append(content, core.BlockID(b))
	}
	r.ID, r.Tag, r.Content, r.PromptTokens, r.IgnoreEOS = c.ID, c.Index, content, c.ISL, true
	before := e.core.Stats().QueuedTokens
	if err := e.core.Submit(e.fleet.now, r); err != nil {
		return fmt.Errorf("worker %d: %w", e.index, err)
	}
	c.uncached = e.core.Stats().QueuedTokens - before
	e.load.QueuedTokens += uint64(c.uncached)
	e.arm()
	return nil
}

// handOver ends the prefill leg of a request and starts the other, which pulls
// the KV.
func (e *engine) handOver(c *call, t *core.Token, now time.Duration) {
	delete(e.calls, c.ID)
	e.load.Waiting--
	e.load.QueuedTokens -= uint64(c.uncached)
	e.load.Done = append(e.load.Done, kvindex.Sample{
		Booking: c.ID, PromptTokens: int32(c.ISL), CachedTokens: int32(t.CachedTokens), OutputTokens: 1,
		FirstTokenMs: ms(now - c.arrived), TotalMs: ms(now - c.arrived),
	})
	e.changed = true
	e.minute(now).uncached += c.ISL - t.CachedTokens
	c.handed, c.cached = true, t.CachedTokens
	d := e.fleet.engines[c.worker]
	d.expected--
	if err := d.submit(c, core.Request{MaxTokens: c.osl, RemoteTokens: c.ISL}); err != nil {
		e.fleet.failed = err
	}
}

// arm asks the agenda for a call when the core has something to do.
func (e *engine) arm() {
	at, ok := e.core.NextAt()
	if !ok || e.armedOK && e.armed <= at {
		return
	}
	e.armed, e.armedOK = at, true
	e.fleet.agenda.add(event{at: at, class: classEngine, engine: e})
}

// wake does what is due; an event that a newer one replaced does nothing.
func (e *engine) wake(at time.Duration) {
	if !e.armedOK || e.armed != at {
		return
	}
	e.armedOK = false
	if !e.up {
		return
	}
	if e.group != nil {
		e.wakeGroup(at)
		return
	}
	e.step(at)
	e.arm()
}

func (e *engine) step(at time.Duration) {
	e.out.Tokens, e.out.Events = e.out.Tokens[:0], e.out.Events[:0]
	e.out.HostEvents = e.out.HostEvents[:0]
	e.core.Advance(at, &e.out)
	e.take(&e.out)
}

// wakeGroup steps all ranks and holds them to the end of the slowest step.
func (e *engine) wakeGroup(at time.Duration) {
	var end time.Duration
	for _, rank := range e.group {
		if !rank.up {
			continue
		}
		rank.step(at)
		if next, ok := rank.core.NextAt(); ok {
			end = max(end, next)
		}
	}
	for _, rank := range e.group {
		if end > 0 {
			rank.core.Pace(end)
		}
		rank.arm()
	}
}

// take passes on what the core did.
func (e *engine) take(out *core.Output) {
	now := e.fleet.now
	busy := e.core.Stats().BusyTime
	e.minute(now).busyMs += ms(busy - e.busy)
	e.busy = busy
	e.publish(out.Events)
	e.publishHost(out.HostEvents)
	for i := range out.Tokens {
		e.token(&out.Tokens[i], now)
	}
	e.report()
}

func (e *engine) minute(now time.Duration) *minute {
	m := int(now / time.Minute)
	for len(e.minutes) <= m {
		e.minutes = append(e.minutes, minute{})
	}
	return &e.minutes[m]
}

func (e *engine) token(t *core.Token, now time.Duration) {
	c := e.fleet.calls[t.Tag]
	if c.prefiller == e && !c.handed {
		e.handOver(c, t, now)
		return
	}
	if c.started {
		c.gap = max(c.gap, now-c.last)
	}
	c.last = now
	c.tokens++
	e.load.ContextTokens++
	if t.Index == 0 {
		e.first(c, t, now)
	}
	e.modelGrow(c)
	if t.Finish != core.Running {
		e.finish(c, now)
	}
}

func (e *engine) first(c *call, t *core.Token, now time.Duration) {
	e.load.Waiting--
	e.load.Running++
	e.load.QueuedTokens -= uint64(c.uncached)
	e.load.ContextTokens += uint64(c.ISL)
	e.load.FirstToken = append(e.load.FirstToken, kvindex.Sample{
		Booking: c.ID, PromptTokens: int32(c.ISL), CachedTokens: int32(t.CachedTokens), FirstTokenMs: ms(now - c.arrived),
	})
	e.changed = true
	if c.handed {
		c.prefiller.core.Release(now, c.ID)
		c.prefiller.arm()
	} else {
		e.minute(now).uncached += c.ISL - t.CachedTokens
	}
	if !c.started {
		c.started, c.first = true, now
		if !c.handed {
			c.cached = t.CachedTokens
		}
	}
	e.modelFirst(c)
	e.teach(c, false)
	e.fleet.tell(c, func(p policies.Policy) { p.First(&c.Request, e.index, e.fleet.now) })
}

func (e *engine) finish(c *call, now time.Duration) {
	delete(e.calls, c.ID)
	e.load.Running--
	e.load.ContextTokens -= uint64(c.ISL + c.tokens - c.earlier)
	e.load.Done = append(e.load.Done, kvindex.Sample{
		Booking: c.ID, PromptTokens: int32(c.ISL), CachedTokens: int32(c.cached), OutputTokens: int32(c.tokens - c.earlier),
		FirstTokenMs: ms(c.first - c.arrived), TotalMs: ms(now - c.arrived),
	})
	e.changed = true
	c.done = true
	e.modelEnd(c)
	e.teach(c, true)
	e.fleet.tell(c, func(p policies.Policy) { p.Done(&c.Request, e.index, e.fleet.now) })
}

// publish writes cache changes to the log.
func (e *engine) publish(events []core.Event) {
	if e.fleet.cfg.NoEvents || e.fleet.cfg.Modelled || len(events) == 0 {
		return
	}
	records := make([]kvindex.Record, 0, len(events))
	for i := range events {
		r := e.record(e.owner, &events[i], &e.seq)
		e.mirror(&r)
		records = append(records, r)
	}
	e.fleet.send(e, records, e.fleet.cfg.EventLag, true)
}

// mirror keeps what the worker holds, for snapshots.
func (e *engine) mirror(r *kvindex.Record) {
	if e.fleet.cfg.EventLoss == 0 {
		return
	}
	switch r.Kind { //nolint:exhaustive // publish makes no other
	case kvindex.KindStored:
		parent := r.Stored.Parent
		for _, b := range r.Stored.Hashes {
			e.held[b] = parent
			parent = b
		}
	case kvindex.KindRemoved:
		for _, b := range r.Removed.Hashes {
			delete(e.held, b)
		}
	case kvindex.KindCleared:
		clear(e.held)
	}
}

// snapshot is what the worker holds as records, for a router that lost some.
func (e *engine) snapshot() []kvindex.Record {
	record := func(kind kvindex.Kind, seq uint64, s *kvindex.Stored) kvindex.Record {
		return kvindex.Record{Owner: e.owner, Epoch: e.epoch, Term: 1, Seq: seq, Kind: kind, Stored: s}
	}
	records := []kvindex.Record{record(kvindex.KindCleared, e.seq, nil)}
	seen := map[kvindex.BlockHash]bool{}
	var add func(b kvindex.BlockHash)
	add = func(b kvindex.BlockHash) { // parents first
		parent, held := e.held[b]
		if !held || seen[b] {
			return
		}
		seen[b] = true
		add(parent)
		records = append(records, record(kvindex.KindStored, 0, &kvindex.Stored{Parent: parent, Hashes: []kvindex.BlockHash{b}}))
	}
	for _, b := range sortedKeys(e.held) {
		add(b)
	}
	return records
}

// report writes the load to the log if it changed, as the agent does.
func (e *engine) report() {
	if !e.changed {
		return
	}
	e.changed = false
	l := e.load
	st := e.core.Stats()
	l.KVUsed, l.KVTotal = uint32(st.UsedBlocks), uint32(e.fleet.cfg.Blocks)
	e.load.Accepted, e.load.FirstToken, e.load.Done = nil, nil, nil
	r := kvindex.Record{Owner: e.owner, Epoch: e.epoch, Term: 1, Kind: kvindex.KindLoad, Load: &l}
	e.fleet.send(e, []kvindex.Record{r}, e.fleet.cfg.LoadLag, false)
}

// address is where a gateway would send requests: ranks have ports of their own.
func address(o kvindex.Owner) string { return fmt.Sprintf("%s.sim:%d", o.Worker, 8000+int(o.Rank)) }

// hello introduces the worker.
func (e *engine) hello() kvindex.Record {
	role := kvindex.RoleAggregated
	switch n := e.fleet.cfg.Prefillers; {
	case e.index < n:
		role = kvindex.RolePrefill
	case n > 0:
		role = kvindex.RoleDecode
	}
	var tiers []kvindex.TierSpec
	if e.fleet.cfg.HostBlocks > 0 {
		tiers = []kvindex.TierSpec{{Tier: kvindex.Host, BytesPerSecond: HostBytesPerSecond}}
	}
	return kvindex.Record{
		Owner: e.owner, Epoch: e.epoch, Term: 1, Kind: kvindex.KindHello,
		Hello: &kvindex.Hello{
			Role: role, Address: address(e.owner), Ready: true, Model: model, Served: []string{model}, NoEvents: e.fleet.cfg.Modelled,
			BlockSize: uint32(e.fleet.cfg.Trace.BlockSize), KVBlocks: uint32(e.fleet.cfg.Blocks),
			Tiers: tiers, Lockstep: e.fleet.cfg.Group > 1,
			Deployment: e.fleet.cfg.timingOf(e.index).Name, LeaseMs: 1 << 31, // it says Bye when it goes
		},
	}
}

// model is the one that every worker serves.
const model = "sim"

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
