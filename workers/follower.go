package workers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/workers/engine"
)

// feedGrace is how long a worker that could serve waits for its event sockets
// before it says that it is ready: blocks announced before that may be missed.
const feedGrace = 3 * time.Second

// follower follows one engine and writes to the log what that says of itself: who it
// is, what it holds, how busy it is. An agent has one, and a proxy that counts the
// requests; a collector has many, and nothing before the engines.
type follower struct {
	cfg     Config
	deps    Deps
	metrics *Metrics
	engine  *engine.Client
	prober  *prober
	load    *load
	term    uint64
	bare    bool   // there is no agent before the engine
	adminAt string // where its pages are, empty for nowhere
	// reach is told when the log cannot be reached any more, and with nil when it can
	// again.
	reach func(error)

	publisher *publisher // from open on, as feeds
	feeds     []*feed
	fed       atomic.Bool // the event sockets are connected, or were waited for
	draining  atomic.Bool
	groups    atomic.Pointer[[]kvindex.GroupSpec]
	blockSize atomic.Int64 // from KV events, for engines whose metrics do not say
	truth     sync.Mutex   // held while the engine is asked what it holds: an answer may take much memory
}

func newFollower(cfg Config, deps Deps, m *Metrics, client *engine.Client) *follower {
	a := &follower{
		cfg: cfg, deps: deps, metrics: m, engine: client, load: newLoad(), term: uint64(time.Now().UnixMilli()),
	}
	a.prober = newProber(client, cfg, a.load, m, deps.Logger)
	a.reach = a.logReach
	return a
}

// open makes what depends on the worker's name and address.
func (a *follower) open() {
	a.publisher = newPublisher(a.deps.Log, a.cfg.WorkerID, a.term, a.hello, a.load, a.metrics)
	a.publisher.reach = a.reach
	a.prober.changed = a.publisher.announce
	a.prober.renewed = a.renewed
	a.makeFeeds()
}

// logReach logs whether the log can be reached.
func (a *follower) logReach(err error) {
	switch {
	case errors.Is(err, kvindex.ErrDenied):
		a.deps.Logger.Error("the log refuses the user or password of its URL (AUTH); requests are served all the same", "err", err)
		return
	case err != nil:
		a.deps.Logger.Warn("the log cannot be reached; requests are served all the same", "err", err)
		return
	}
	a.deps.Logger.Info("the log is reached again")
}

func (a *follower) makeFeeds() {
	model := func() string { return a.prober.state.Load().Models.Base }
	for i, events := range a.cfg.KVEvents {
		replay := ""
		if i < len(a.cfg.KVReplay) && !polled(events) {
			replay = a.cfg.KVReplay[i]
		}
		a.feeds = append(a.feeds, newFeed(a.cfg, uint16(i), events, replay, model, a.publisher, a.metrics, a.deps.Logger))
	}
	if len(a.feeds) == 0 {
		f := newFeed(a.cfg, 0, "", "", model, a.publisher, a.metrics, a.deps.Logger)
		a.feeds = append(a.feeds, f)
	}
	for _, f := range a.feeds {
		f.sawBlockSize = func(n int) { a.blockSize.CompareAndSwap(0, int64(n)) }
		f.sawGroups = func(list []kvindex.GroupSpec) {
			if old := a.groups.Load(); old == nil && list == nil || old != nil && slices.Equal(*old, list) {
				return // another rank said it
			}
			a.groups.Store(&list)
			a.publisher.announce()
		}
	}
}

// follow waits for the engine's first sign of life, if limited no longer than
// StartTimeout, then follows its events.
func (a *follower) follow(ctx context.Context, limited bool) error {
	wait := ctx
	if limited {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, a.cfg.StartTimeout)
		defer cancel()
	}
	if err := a.prober.await(wait); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("the engine did not become ready within %v: %w", a.cfg.StartTimeout, err)
	}
	group, gctx := errgroup.WithContext(ctx)
	for _, f := range a.feeds {
		group.Go(func() error { return f.Run(gctx) })
	}
	group.Go(func() error {
		a.awaitFeeds(gctx)
		a.fed.Store(true)
		a.publisher.announce()
		return nil
	})
	return group.Wait()
}

func (a *follower) awaitFeeds(ctx context.Context) {
	timer := time.NewTimer(feedGrace)
	defer timer.Stop()
	for _, f := range a.feeds {
		select {
		case <-f.connected:
		case <-timer.C:
			a.deps.Logger.Warn("no connection to the engine's KV events: routed by load until there is one",
				"endpoint", f.events)
			return
		case <-ctx.Done():
			return
		}
	}
}

// renewed tells all feeds that the engine began a new life.
func (a *follower) renewed(l life) {
	for _, f := range a.feeds {
		f.restart(l)
	}
}

// state is the engine's state, with the block size of its events where its
// metrics do not say it.
func (a *follower) state() *engineState {
	s := a.prober.state.Load()
	if s.Metrics.BlockSize != 0 {
		return s
	}
	with := *s
	with.Metrics.BlockSize = int(a.blockSize.Load())
	return &with
}

// notReady says why the worker takes no requests; nil if it does.
func (a *follower) notReady() error {
	s := a.prober.state.Load()
	switch {
	case a.draining.Load():
		return errors.New("draining")
	case !s.Up:
		return fmt.Errorf("the engine is not up: %s", s.Why)
	case !a.fed.Load():
		return errors.New("waiting for the engine's KV events")
	}
	return nil
}

// hello is how the worker introduces itself now.
func (a *follower) hello() kvindex.Hello {
	s := a.state()
	h := kvindex.Hello{
		Address:    a.cfg.Advertise,
		Role:       a.cfg.Role,
		Ready:      a.notReady() == nil,
		Model:      s.Models.Base,
		Served:     s.Models.Served,
		Adapters:   s.Models.Adapters,
		BlockSize:  uint32(s.Metrics.BlockSize),
		KVBlocks:   uint32(s.Metrics.KVBlocks),
		Deployment: a.cfg.Deployment,
		LeaseMs:    uint32(a.cfg.Lease.Milliseconds()),
		Admin:      a.adminAt,
		NoEvents:   len(a.cfg.KVEvents) == 0,
		Eagle:      a.cfg.KVEagle,
		Bare:       a.bare,
		Zone:       a.cfg.Zone,
		Rack:       a.cfg.Rack,
		Domain:     a.cfg.Domain,
		Lockstep:   a.cfg.Lockstep,
		Tiers:      a.cfg.KVTiers,
	}
	if list := a.groups.Load(); list != nil {
		h.Groups = *list
	}
	if n := len(a.cfg.KVEvents); n > 1 {
		h.Ranks = uint32(n)
	}
	return h
}
