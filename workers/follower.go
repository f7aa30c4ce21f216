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
	w := &follower{
		cfg: cfg, deps: deps, metrics: m, engine: client, load: newLoad(), term: uint64(time.Now().UnixMilli()),
	}
	w.prober = newProber(client, cfg, w.load, m, deps.Logger)
	w.reach = w.logReach
	return w
}

// open makes what depends on the worker's name and address.
func (w *follower) open() {
	w.publisher = newPublisher(w.deps.Log, w.cfg.WorkerID, w.term, w.hello, w.load, w.metrics)
	w.publisher.reach = w.reach
	w.prober.changed = w.publisher.announce
	w.prober.renewed = w.renewed
	w.makeFeeds()
}

// logReach logs whether the log can be reached.
func (w *follower) logReach(err error) {
	switch {
	case errors.Is(err, kvindex.ErrDenied):
		w.deps.Logger.Error("the log refuses the user or password of its URL (AUTH); requests are served all the same", "err", err)
		return
	case err != nil:
		w.deps.Logger.Warn("the log cannot be reached; requests are served all the same", "err", err)
		return
	}
	w.deps.Logger.Info("the log is reached again")
}

func (w *follower) makeFeeds() {
	model := func() string { return w.prober.state.Load().Models.Base }
	for i, events := range w.cfg.KVEvents {
		replay := ""
		if i < len(w.cfg.KVReplay) && !polled(events) {
			replay = w.cfg.KVReplay[i]
		}
		w.feeds = append(w.feeds, newFeed(w.cfg, uint16(i), events, replay, model, w.publisher, w.metrics, w.deps.Logger))
	}
	if len(w.feeds) == 0 {
		f := newFeed(w.cfg, 0, "", "", model, w.publisher, w.metrics, w.deps.Logger)
		w.feeds = append(w.feeds, f)
	}
	for _, f := range w.feeds {
		f.sawBlockSize = func(n int) { w.blockSize.CompareAndSwap(0, int64(n)) }
		f.sawGroups = func(list []kvindex.GroupSpec) {
			if old := w.groups.Load(); old == nil && list == nil || old != nil && slices.Equal(*old, list) {
				return // another rank said it
			}
			w.groups.Store(&list)
			w.publisher.announce()
		}
	}
}

// follow waits for the engine's first sign of life, if limited no longer than
// StartTimeout, then follows its events.
func (w *follower) follow(ctx context.Context, limited bool) error {
	wait := ctx
	if limited {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, w.cfg.StartTimeout)
		defer cancel()
	}
	if err := w.prober.await(wait); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("the engine did not become ready within %v: %w", w.cfg.StartTimeout, err)
	}
	group, gctx := errgroup.WithContext(ctx)
	for _, f := range w.feeds {
		group.Go(func() error { return f.Run(gctx) })
	}
	group.Go(func() error {
		w.awaitFeeds(gctx)
		w.fed.Store(true)
		w.publisher.announce()
		return nil
	})
	return group.Wait()
}

func (w *follower) awaitFeeds(ctx context.Context) {
	timer := time.NewTimer(feedGrace)
	defer timer.Stop()
	for _, f := range w.feeds {
		select {
		case <-f.connected:
		case <-timer.C:
			w.deps.Logger.Warn("no connection to the engine's KV events: routed by load until there is one",
				"endpoint", f.events)
			return
		case <-ctx.Done():
			return
		}
	}
}

// renewed tells all feeds that the engine began a new life.
func (w *follower) renewed(l life) {
	for _, f := range w.feeds {
		f.restart(l)
	}
}

// state is the engine's state, with the block size of its events where its
// metrics do not say it.
func (w *follower) state() *engineState {
	s := w.prober.state.Load()
	if s.Metrics.BlockSize != 0 {
		return s
	}
	with := *s
	with.Metrics.BlockSize = int(w.blockSize.Load())
	return &with
}

// notReady says why the worker takes no requests; nil if it does.
func (w *follower) notReady() error {
	s := w.prober.state.Load()
	switch {
	case w.draining.Load():
		return errors.New("draining")
	case !s.Up:
		return fmt.Errorf("the engine is not up: %s", s.Why)
	case !w.fed.Load():
		return errors.New("waiting for the engine's KV events")
	}
	return nil
}

// hello is how the worker introduces itself now.
func (w *follower) hello() kvindex.Hello {
	s := w.state()
	h := kvindex.Hello{
		Address:    w.cfg.Advertise,
		Role:       w.cfg.Role,
		Ready:      w.notReady() == nil,
		Model:      s.Models.Base,
		Served:     s.Models.Served,
		Adapters:   s.Models.Adapters,
		BlockSize:  uint32(s.Metrics.BlockSize),
		KVBlocks:   uint32(s.Metrics.KVBlocks),
		Deployment: w.cfg.Deployment,
		LeaseMs:    uint32(w.cfg.Lease.Milliseconds()),
		Admin:      w.adminAt,
		NoEvents:   len(w.cfg.KVEvents) == 0,
		Eagle:      w.cfg.KVEagle,
		Bare:       w.bare,
		Zone:       w.cfg.Zone,
		Rack:       w.cfg.Rack,
		Domain:     w.cfg.Domain,
		Lockstep:   w.cfg.Lockstep,
		Tiers:      w.cfg.KVTiers,
	}
	if list := w.groups.Load(); list != nil {
		h.Groups = *list
	}
	if n := len(w.cfg.KVEvents); n > 1 {
		h.Ranks = uint32(n)
	}
	return h
}
