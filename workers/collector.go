package workers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/workers/engine"
)

// refreshEvery is the pause between two looks at which engines there are.
const refreshEvery = time.Second

// errNoList says that the list of engines was not read yet.
var errNoList = errors.New("not read yet")

// Collector watches bare engines: those that have no agent before them. For each it
// writes to the log what an agent would, but for what only a proxy can see: which
// requests came and how they went, and what texts became of tokens. So load is what
// the engine's metrics page says, and prompts are known by their tokens only.
type Collector struct {
	cfg     CollectorConfig
	targets func() ([]Target, error)
	deps    Deps

	transport *http.Transport
	count     atomic.Int64 // of engines
	away      atomic.Int32 // writers that cannot reach the log
	listening chan struct{}
	admin     net.Addr // nil for nowhere

	mu      sync.Mutex
	watched map[kvindex.WorkerID]*watched
	fault   error // of the last list; nil once it was taken over
}

// watched is one engine under watch.
type watched struct {
	*follower
	target Target
	stop   context.CancelFunc
	ended  chan struct{}
	series *registrations
}

// NewCollector makes a collector; Run does the work. targets is the list of engines at
// the time of the call: it is asked every second, so it must be quick, and it may
// fail: then the engines stay as they are. It does no I/O.
func NewCollector(cfg CollectorConfig, targets func() ([]Target, error), deps Deps) (*Collector, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("collector configuration: %w", err)
	}
	return &Collector{
		cfg: cfg, targets: targets, deps: deps, transport: newTransport(), listening: make(chan struct{}),
		watched: make(map[kvindex.WorkerID]*watched), fault: errNoList,
	}, nil
}

// AdminAddr is where the admin pages are served, nil if nowhere. It waits until that
// is known or ctx ends.
func (c *Collector) AdminAddr(ctx context.Context) (net.Addr, error) {
	select {
	case <-c.listening:
		return c.admin, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Run watches until ctx ends. The engines go on without it, so it does not take them
// out of the pool then: a collector that starts within their lease takes over. It
// fails if it cannot listen, or if the first list of engines is not right.
func (c *Collector) Run(ctx context.Context) error {
	var lc net.ListenConfig
	var listener net.Listener
	if c.cfg.Admin != adminOff {
		var err error
		if listener, err = lc.Listen(ctx, "tcp", c.cfg.Admin); err != nil {
			return fmt.Errorf("listen for the admin pages: %w", err)
		}
		c.admin = listener.Addr()
	}
	close(c.listening)
	defer c.transport.CloseIdleConnections()
	group, gctx := errgroup.WithContext(ctx)
	server := serve(group, listener, c.adminMux(), c.deps.Logger)
	group.Go(func() error {
		defer func() { _ = server.Close() }() // nothing under way there matters
		return c.follow(gctx)
	})
	return group.Wait()
}

// follow keeps the watched engines those of the list, until ctx ends.
func (c *Collector) follow(ctx context.Context) error {
	defer c.endAll()
	ticker := time.NewTicker(refreshEvery)
	defer ticker.Stop()
	for first := true; ; first = false {
		err := c.refresh(ctx)
		switch {
		case err != nil && first:
			return err
		case err != nil && c.failed(err):
			c.deps.Logger.Error("list of engines: those watched stay as they are", "err", err)
		case err == nil:
			c.failed(nil)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// failed notes what is wrong with the list, and reports whether that is news.
func (c *Collector) failed(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := err != nil && (c.fault == nil || c.fault.Error() != err.Error())
	c.fault = err
	return news
}

// refresh takes over the list of engines: those that left are taken out of the pool,
// new and changed ones are begun with.
func (c *Collector) refresh(ctx context.Context) error {
	list, err := c.targets()
	if err != nil {
		return err
	}
	if err := ValidateTargets(list); err != nil {
		return err
	}
	wanted := make(map[kvindex.WorkerID]Target, len(list))
	for _, t := range list {
		wanted[t.worker()] = t
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, w := range c.watched {
		if t, ok := wanted[id]; !ok || !t.equal(w.target) {
			w.end(!ok)
			delete(c.watched, id)
			c.deps.Logger.Info("engine left the list", "worker", id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		if c.watched[id] == nil {
			w, err := c.begin(ctx, wanted[id])
			if err != nil {
				return err
			}
			c.watched[id] = w
		}
	}
	c.count.Store(int64(len(c.watched)))
	return nil
}

// begin watches an engine until end.
func (c *Collector) begin(ctx context.Context, t Target) (*watched, error) {
	client, err := engine.NewClient(t.Engine, c.transport)
	if err != nil {
		return nil, err
	}
	id := t.worker()
	deps := c.deps
	deps.Logger = deps.Logger.With("worker", id)
	list := &registrations{Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"worker": string(id)}, deps.Registry)}
	f := newFollower(c.cfg.of(t), deps, NewMetrics(list), client)
	f.bare, f.load.bare, f.reach = true, true, c.reach
	f.prober.pace = &pace{fast: c.cfg.Fast, slow: c.cfg.Slow, least: c.least}
	if at := c.cfg.advertised(c.admin); at != "" {
		f.adminAt = at + enginesPath + string(id)
	}
	f.open()
	wctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	w := &watched{follower: f, target: t, stop: stop, ended: make(chan struct{}), series: list}
	go func() {
		defer close(w.ended)
		if err := f.run(wctx); err != nil {
			deps.Logger.Error("engine is not watched any more", "err", err)
		}
	}()
	return w, nil
}

// end stops watching. An engine that leaves is taken out of the pool; one that does
// not stays there until its lease ends.
func (w *watched) end(leaves bool) {
	w.draining.Store(leaves)
	w.publisher.stays.Store(!leaves)
	w.stop()
	<-w.ended
	w.series.remove()
}

func (c *Collector) endAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all sync.WaitGroup
	for _, w := range c.watched {
		all.Go(func() { w.end(false) })
	}
	all.Wait()
	clear(c.watched)
}

// run follows the engine without anything before it. It fails only when another
// writer has taken over the worker's name.
func (a *follower) run(ctx context.Context) error {
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.prober.Run(gctx) })
	group.Go(func() error { return a.publisher.Run(gctx) })
	group.Go(func() error { return a.follow(gctx, false) })
	return group.Wait()
}

// least is the shortest pause between two reads of one engine's page, for all of them
// together to stay within MaxRate.
func (c *Collector) least() time.Duration {
	return time.Duration(c.count.Load()) * time.Second / time.Duration(c.cfg.MaxRate)
}

// reach logs once for all engines whether the log can be reached.
func (c *Collector) reach(err error) {
	switch {
	case err == nil:
		if c.away.Add(-1) == 0 {
			c.deps.Logger.Info("the log is reached again")
		}
	case c.away.Add(1) > 1:
	case errors.Is(err, kvindex.ErrDenied):
		c.deps.Logger.Error("the log refuses the user or password of its URL (AUTH)", "err", err)
	default:
		c.deps.Logger.Warn("the log cannot be reached; it gets the engines' state when it is back", "err", err)
	}
}

// registrations are the metrics of one engine, to be taken out again.
type registrations struct {
	prometheus.Registerer
	list []prometheus.Collector
}

// MustRegister implements [prometheus.Registerer].
func (r *registrations) MustRegister(list ...prometheus.Collector) {
	r.Registerer.MustRegister(list...)
	r.list = append(r.list, list...)
}

func (r *registrations) remove() {
	for _, c := range r.list {
		r.Unregister(c)
	}
}
