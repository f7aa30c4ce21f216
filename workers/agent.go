package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/internal/child"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/workers/engine"
)

const (
	// feedGrace is how long a worker that could serve waits for its event sockets
	// before it says that it is ready: blocks announced before that may be missed.
	feedGrace = 3 * time.Second
	// childGrace is how long a child engine has to end after SIGTERM.
	childGrace = 5 * time.Second
	// closeGrace is how long connections may take to close at the very end.
	closeGrace = time.Second
)

// Agent is one worker's agent. See the package comment.
type Agent struct {
	cfg     Config
	deps    Deps
	metrics *Metrics
	engine  *engine.Client
	prober  *prober
	load    *load
	prefill *prefillSet
	proxy   *proxy
	term    uint64

	listening chan struct{} // closed when addr and admin are set
	addr      net.Addr
	admin     net.Addr

	publisher *publisher
	feeds     []*feed
	prepared  func(*Agent) // called before the feeds run; nil for none
	fed       atomic.Bool  // the event sockets are connected, or were waited for
	draining  atomic.Bool
	groups    atomic.Pointer[[]kvindex.GroupSpec]
	blockSize atomic.Int64 // from KV events, for engines whose metrics do not say
	truth     sync.Mutex   // held while the engine is asked what it holds: an answer may take much memory
}

// New makes an agent; Run does the work. It does no I/O.
func New(cfg Config, deps Deps) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("agent configuration: %w", err)
	}
	base, err := engine.ParseBase(cfg.Engine)
	if err != nil {
		return nil, err
	}
	transport := newTransport()
	client, err := engine.NewClient(cfg.Engine, transport)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		cfg: cfg, deps: deps, metrics: NewMetrics(deps.Registry), engine: client,
		load: newLoad(), prefill: newPrefillSet(cfg.PrefillAllow),
		term: uint64(time.Now().UnixMilli()), listening: make(chan struct{}),
	}
	a.prober = newProber(client, cfg, a.load, a.metrics, deps.Logger)
	l := &learner{
		secret: cfg.Secret, state: a.state, metrics: a.metrics,
		published: kvindex.NewPrefixMap(cfg.PublishedBytes),
	}
	a.proxy = (&proxy{
		cfg: cfg, engine: base, transport: transport, load: a.load, learner: l, prefills: a.prefill,
		metrics: a.metrics, log: deps.Logger, suspect: a.prober.now, renamed: a.prober.now,
	}).finish()
	if len(cfg.KVEvents) == 0 {
		a.proxy.cache = newCacheModel(a.state)
	}
	return a, nil
}

// Addr is where clients are served. It waits until that is known or ctx ends.
func (a *Agent) Addr(ctx context.Context) (net.Addr, error) {
	select {
	case <-a.listening:
		return a.addr, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// AdminAddr is where the admin pages are served, nil if nowhere. It waits like
// [Agent.Addr].
func (a *Agent) AdminAddr(ctx context.Context) (net.Addr, error) {
	if _, err := a.Addr(ctx); err != nil {
		return nil, err
	}
	return a.admin, nil
}

// Run serves until ctx ends, then drains: it says that it is not ready, lets
// requests in flight finish within DrainTimeout, says Bye, and stops a child
// engine. It fails if it cannot listen, if the child engine ends, or if another
// agent writes under the same worker id.
func (a *Agent) Run(ctx context.Context) error {
	public, admin, err := a.listen(ctx)
	if err != nil {
		return err
	}
	process, err := a.startEngine()
	if err != nil {
		_ = public.Close() // the start's error is the one to tell
		closeListener(admin)
		return err
	}
	if process != nil {
		defer process.Stop(childGrace)
	}

	// background outlives ctx by the time that draining takes.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, background := errgroup.WithContext(background)
	group.Go(func() error { return a.prober.Run(background) })
	group.Go(func() error { return a.publisher.Run(background) })
	group.Go(func() error { return a.prefill.Run(background, a.deps.Log, a.deps.Logger) })
	group.Go(func() error { return a.follow(background, process) })
	server := a.serve(group, public, a.proxy)
	adminServer := a.serve(group, admin, a.adminMux())

	ended := awaitEnd(ctx, background, process)
	a.drain(background, server, ended == nil)
	stop()
	_ = adminServer.Close() // nothing under way there matters
	err = group.Wait()
	if ended != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = ended
	}
	return err
}

// awaitEnd waits for the reason to stop: ctx (nil), the child's end, or the end
// of a part of the agent (nil here; the group has the error).
func awaitEnd(ctx, background context.Context, process *child.Process) error {
	var died <-chan struct{}
	if process != nil {
		died = process.Done()
	}
	select {
	case <-ctx.Done():
		return nil
	case <-background.Done():
		return nil
	case <-died:
		if err := process.Err(); err != nil {
			return fmt.Errorf("the engine ended: %w", err)
		}
		return errors.New("the engine ended with exit status 0")
	}
}

// listen binds the ports and everything that depends on their numbers.
func (a *Agent) listen(ctx context.Context) (public, admin net.Listener, err error) {
	var lc net.ListenConfig
	public, err = lc.Listen(ctx, "tcp", a.cfg.Listen)
	if err != nil {
		return nil, nil, fmt.Errorf("listen for requests: %w", err)
	}
	if at := a.cfg.adminAddress(); at != "" {
		if admin, err = lc.Listen(ctx, "tcp", at); err != nil {
			_ = public.Close() // the other error is the one to tell
			return nil, nil, fmt.Errorf("listen for the admin pages: %w", err)
		}
		a.admin = admin.Addr()
	}
	a.addr = public.Addr()
	if a.cfg.Advertise == "" {
		a.cfg.Advertise = public.Addr().String()
	}
	if a.cfg.WorkerID == "" {
		a.cfg.WorkerID = kvindex.WorkerID(a.cfg.Advertise)
	}
	a.publisher = newPublisher(a.deps.Log, a.cfg.WorkerID, a.term, a.hello, a.load, a.metrics)
	a.publisher.reach = func(err error) {
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
	a.proxy.learner.publisher = a.publisher
	if a.proxy.cache != nil {
		a.proxy.cache.publisher = a.publisher
	}
	a.prober.changed = a.publisher.announce
	a.prober.renewed = a.renewed
	a.makeFeeds()
	if a.prepared != nil {
		a.prepared(a)
	}
	close(a.listening)
	return public, admin, nil
}

func (a *Agent) makeFeeds() {
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
		f.restarted = a.proxy.cache.restart
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

// startEngine starts the child, if the agent has one.
func (a *Agent) startEngine() (*child.Process, error) {
	if len(a.cfg.Command) == 0 {
		return nil, nil //nolint:nilnil // no child is no error
	}
	return child.Start(child.Spec{
		Name: "engine", Path: a.cfg.Command[0], Args: a.cfg.Command[1:], Output: a.cfg.CommandOutput,
	})
}

// follow waits for the engine's first sign of life, then follows its events.
func (a *Agent) follow(ctx context.Context, process *child.Process) error {
	wait := ctx
	if process != nil {
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

func (a *Agent) awaitFeeds(ctx context.Context) {
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
func (a *Agent) renewed(l life) {
	for _, f := range a.feeds {
		f.restart(l)
	}
}

// state is the engine's state, with the block size of its events where its
// metrics do not say it.
func (a *Agent) state() *engineState {
	s := a.prober.state.Load()
	if s.Metrics.BlockSize != 0 {
		return s
	}
	with := *s
	with.Metrics.BlockSize = int(a.blockSize.Load())
	return &with
}

// notReady says why the worker takes no requests; nil if it does.
func (a *Agent) notReady() error {
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
func (a *Agent) hello() kvindex.Hello {
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
		Admin:      a.adminAdvertised(),
		NoEvents:   len(a.cfg.KVEvents) == 0,
		Eagle:      a.cfg.KVEagle,
	}
	if list := a.groups.Load(); list != nil {
		h.Groups = *list
	}
	if n := len(a.cfg.KVEvents); n > 1 {
		h.Ranks = uint32(n)
	}
	return h
}

// adminAdvertised is where others reach the admin pages, empty if nowhere: their
// port, on the advertised host where they listen on all addresses.
func (a *Agent) adminAdvertised() string {
	if a.admin == nil {
		return ""
	}
	host, port, err := net.SplitHostPort(a.admin.String())
	if err != nil {
		return ""
	}
	if wildcard(host) {
		if host, _, err = net.SplitHostPort(a.cfg.Advertise); err != nil {
			return ""
		}
	}
	return net.JoinHostPort(host, port)
}

// serve answers HTTP on a listener, in the group. A nil listener serves nothing.
func (a *Agent) serve(group *errgroup.Group, l net.Listener, h http.Handler) *http.Server {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(a.deps.Logger.Handler(), slog.LevelDebug),
	}
	if l == nil {
		return s
	}
	group.Go(func() error {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve on %s: %w", l.Addr(), err)
		}
		return nil
	})
	return s
}

// drain ends the serving of clients. With grace, requests under way may finish.
func (a *Agent) drain(ctx context.Context, server *http.Server, grace bool) {
	a.draining.Store(true)
	a.publisher.announce()
	limit := a.cfg.DrainTimeout
	if !grace {
		limit = closeGrace
	}
	dctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := server.Shutdown(dctx); err != nil {
		a.deps.Logger.Warn("requests were cut at the end", "running", a.load.now().Running, "waiting", a.load.now().Waiting)
		_ = server.Close() // what Shutdown left
	}
}

func closeListener(l net.Listener) {
	if l != nil {
		_ = l.Close() // nothing was served on it
	}
}

// Describe is one line about how the agent is set up, for its log.
func (c Config) Describe() string {
	how := "attached"
	if len(c.Command) > 0 {
		how = "started: " + strings.Join(c.Command, " ")
	}
	return fmt.Sprintf("engine %s (%s), role %s", c.Engine, how, c.Role)
}
