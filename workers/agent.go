package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/internal/child"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/workers/engine"
)

const (
	// childGrace is how long a child engine has to end after SIGTERM.
	childGrace = 5 * time.Second
	// closeGrace is how long connections may take to close at the very end.
	closeGrace = time.Second
)

// Agent is one worker's agent. See the package comment.
type Agent struct {
	*follower
	prefill *prefillSet
	proxy   *proxy

	listening chan struct{} // closed when addr and admin are set
	addr      net.Addr
	admin     net.Addr
	prepared  func(*Agent) // called before the feeds run; nil for none
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
		follower: newFollower(cfg, deps, NewMetrics(deps.Registry), client),
		prefill:  newPrefillSet(cfg.PrefillAllow), listening: make(chan struct{}),
	}
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
	group.Go(func() error { return a.follow(background, process != nil) })
	server := serve(group, public, a.proxy, a.deps.Logger)
	adminServer := serve(group, admin, a.adminMux(), a.deps.Logger)

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
	a.adminAt = a.adminAdvertised()
	a.open()
	a.proxy.learner.publisher = a.publisher
	if a.proxy.cache != nil {
		a.proxy.cache.publisher = a.publisher
		a.feeds[0].restarted = a.proxy.cache.restart
	}
	if a.prepared != nil {
		a.prepared(a)
	}
	close(a.listening)
	return public, admin, nil
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
func serve(group *errgroup.Group, l net.Listener, h http.Handler, logger *slog.Logger) *http.Server {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
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

// drainNotice is how long an agent that stops serves on after it said so: until the
// pickers have heard of it, and what they sent before has come. Who closes at once
// cuts requests that are on their way on connections that stand idle.
const drainNotice = 500 * time.Millisecond

// drain ends the serving of clients. With grace, requests under way may finish.
func (a *Agent) drain(ctx context.Context, server *http.Server, grace bool) {
	a.draining.Store(true)
	a.publisher.announce()
	if grace {
		notice := time.NewTimer(drainNotice)
		defer notice.Stop()
		select {
		case <-notice.C:
		case <-ctx.Done():
		}
	}
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
