package sim

import (
	"math"
	"slices"
	"time"
)

// Core is one simulated engine. The package comment says how to drive it. It
// is not safe for concurrent use.
type Core struct {
	cfg  Config
	pool *pool
	byID map[string]*sequence
	// queue waits for a place in the batch, first come first served, preempted
	// sequences in front. pulls are under transfer, the first to end first;
	// pulled ones enter the batch before the queue. batch is in the order of
	// admission.
	queue, pulls, ready, batch []*sequence

	// now is when the core last decided something.
	now time.Duration
	// stepping says that a step runs until stepEnd with work.
	stepping           bool
	stepStart, stepEnd time.Duration
	work               []chunk
	// waking says that an idle engine has to look for work at wakeAt.
	waking bool
	wakeAt time.Duration
	// hostBusy is when the last load from the host tier ends: they come one after the
	// other.
	hostBusy time.Duration
	// pace is the earliest end of the running step and the earliest start of the
	// next one.
	pace time.Duration

	totals Stats
	queued int
	heldN  int
	// hits is what lookup returned last.
	hits []int32
}

// chunk is one sequence's part of a step.
type chunk struct {
	seq    *sequence
	tokens int
}

// New makes an idle engine. The error lists all faults of the configuration.
func New(cfg Config) (*Core, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Core{cfg: cfg, pool: newPool(cfg.Blocks), byID: make(map[string]*sequence)}
	c.pool.emptyFirst = cfg.EmptyFirst
	if cfg.HostBlocks > 0 {
		c.pool.host = newHostTier(cfg.HostBlocks)
	}
	return c, nil
}

// Submit queues a request at time now. A refused one gives a *[RequestError]
// and changes nothing. The core keeps r.Prompt and r.Content, which must not change.
func (c *Core) Submit(now time.Duration, r Request) error {
	if err := c.cfg.check(&r); err != nil {
		return err
	}
	if _, dup := c.byID[r.ID]; dup {
		return &RequestError{ID: r.ID, Fault: Duplicate, Detail: "a request of that id is in the engine"}
	}
	r.RemoteTokens = min(r.RemoteTokens, r.length())
	s := &sequence{
		Request: r, prompt: r.length(), phase: waiting, arrived: max(now, c.now), hit: -1,
		state: mixTokens(stateRoot, r.Prompt), root: rootID(r.LoRA, r.Salt),
	}
	c.byID[r.ID] = s
	c.queue = append(c.queue, s)
	c.estimate(s)
	if !c.stepping {
		c.wake(s.arrived)
	}
	return nil
}

// NextAt is when Step has something to do: the end of the running step, the
// arrival of work at an idle engine, or the end of a transfer. !ok means not
// before another call changes something.
func (c *Core) NextAt() (at time.Duration, ok bool) {
	if c.stepping {
		return c.stepEnd, true
	}
	if len(c.pulls) > 0 {
		at, ok = max(c.pulls[0].pullEnd, c.now), true
	}
	if c.waking && (!ok || c.wakeAt < at) {
		at, ok = c.wakeAt, true
	}
	return at, ok
}

// Step does everything that was due up to now and returns the tokens generated
// and the changes of the cache since the last call, in order. Called at the
// time NextAt gave, it ends one step at most and starts the next.
func (c *Core) Step(now time.Duration) Output {
	var out Output
	c.Advance(now, &out)
	return out
}

// Advance is [Core.Step] that appends to out: a caller that empties and reuses it
// is spared an allocation a step.
func (c *Core) Advance(now time.Duration, out *Output) {
	for {
		at, ok := c.NextAt()
		if !ok || at > now {
			return
		}
		c.now = at
		c.waking = false
		if c.stepping {
			c.finishStep(out)
		}
		c.finishPulls()
		c.drain(out)
		c.startStep()
		if !c.stepping || c.cfg.EarlyEvents {
			c.drain(out)
		}
	}
}

// drain hands out the events so far.
func (c *Core) drain(out *Output) {
	out.Events = append(out.Events, c.pool.takeEvents()...)
	out.HostEvents = append(out.HostEvents, c.pool.host.takeEvents()...)
}

// Abort ends a request without another token and frees its blocks at once; a
// step that runs is not shortened. An unknown id, or one that had ended by now,
// changes nothing. The output is what was due up to now, without a token for
// the abort: the caller knows of it.
func (c *Core) Abort(now time.Duration, id string) Output {
	out := c.Step(now)
	s, ok := c.byID[id]
	if !ok {
		return out
	}
	c.drop(s)
	c.end(s)
	c.changed(now)
	return out
}

// Release frees the blocks that a request with HoldKV left, and reports whether
// there were any.
func (c *Core) Release(now time.Duration, id string) bool {
	s, ok := c.byID[id]
	if !ok || s.phase != held {
		return false
	}
	c.drop(s)
	c.end(s)
	c.changed(now)
	return true
}

// Clear empties the prefix cache. Where vLLM refuses while blocks are in use,
// this clears all the same: sequences keep their blocks, which nobody else can
// hit any more, and what they add to them stays out of the cache too. Without
// prefix caching there is nothing to clear.
func (c *Core) Clear(now time.Duration) Output {
	out := c.Step(now)
	if !c.cfg.PrefixCaching {
		return out
	}
	c.pool.clear()
	for _, s := range c.byID {
		s.unrooted = len(s.blocks) > 0
		if s.phase == waiting {
			c.estimate(s)
		}
	}
	c.drain(&out)
	return out
}

// Stats are the gauges at the last call and the totals since New.
func (c *Core) Stats() Stats {
	st := c.totals
	st.Running, st.Waiting = len(c.batch), len(c.queue)+len(c.pulls)+len(c.ready)
	st.UsedBlocks, st.CachedBlocks = c.pool.size()-c.pool.free, len(c.pool.byID)
	st.QueuedTokens, st.HeldRequests = c.queued, c.heldN
	if c.pool.host != nil {
		st.HostBlocks = len(c.pool.host.byID)
	}
	for _, s := range c.batch {
		if s.decoding {
			st.ContextTokens += s.computed
		}
	}
	return st
}

// changed has an idle engine look for work.
func (c *Core) changed(now time.Duration) {
	if !c.stepping && len(c.queue)+len(c.ready) > 0 {
		c.wake(max(now, c.now))
	}
}

// Pace holds the engine back: its running step ends at until at the earliest, and
// an idle engine starts no step before. Ranks that step together, as those of an
// expert-parallel group, are paced by the slowest of them after each step.
func (c *Core) Pace(until time.Duration) {
	c.pace = until
	if c.stepping {
		c.stepEnd = max(c.stepEnd, until)
	}
	if c.waking {
		c.wakeAt = max(c.wakeAt, until)
	}
}

func (c *Core) wake(at time.Duration) {
	at = max(at, c.pace)
	if !c.waking || at < c.wakeAt {
		c.waking, c.wakeAt = true, at
	}
}

// drop takes a sequence out of the list it is in.
func (c *Core) drop(s *sequence) {
	without := func(list []*sequence) []*sequence {
		i := slices.Index(list, s)
		return slices.Delete(list, i, i+1)
	}
	switch s.phase {
	case waiting:
		c.queue = without(c.queue)
	case pulling:
		c.pulls = without(c.pulls)
	case pulled:
		c.ready = without(c.ready)
	case running:
		c.batch = without(c.batch)
	case held:
		c.heldN--
	case finished:
	}
}

// end frees everything a sequence has; it is in no list any more.
func (c *Core) end(s *sequence) {
	s.phase = finished
	c.setQueued(s, 0)
	c.pool.release(s.blocks)
	s.blocks = nil
	delete(c.byID, s.ID)
}

// estimate sets what a waiting sequence would have to prefill if it started
// now.
func (c *Core) estimate(s *sequence) {
	n := len(c.lookup(s))
	n += c.pool.host.holds(c.behind(s, n))
	c.setQueued(s, s.length()-max(n*c.cfg.BlockSize, s.remote()))
}

func (c *Core) setQueued(s *sequence, n int) {
	c.queued += n - s.queued
	s.queued = n
}

// duration is ms as a duration, at least a nanosecond so that time goes on.
func duration(ms float64) time.Duration {
	ns := math.Round(ms * float64(time.Millisecond))
	if ns >= math.MaxInt64/2 {
		return math.MaxInt64 / 2
	}
	return max(time.Duration(ns), 1)
}
