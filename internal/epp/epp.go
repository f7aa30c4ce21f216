package epp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/kvlane/kvlane/extproc"
	"github.com/kvlane/kvlane/extproc/scoring"
	"github.com/kvlane/kvlane/internal/config"
	"github.com/kvlane/kvlane/internal/observability"
	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
	"github.com/kvlane/kvlane/picker"
)

// Listen are the addresses that a picker serves on.
type Listen struct{ ExtProc, Health, Log, Admin string }

// DefaultListen is loopback: the log and the admin page have no authentication.
func DefaultListen() Listen {
	return Listen{ExtProc: "127.0.0.1:9002", Health: "127.0.0.1:9003", Log: "127.0.0.1:9004", Admin: "127.0.0.1:9090"}
}

// Options are what a picker is given beside its configuration.
type Options struct {
	// Listen are its addresses.
	Listen Listen
	// Secret is the pool's, shared with its agents.
	Secret string
	// Scorers are compiled in: they are asked before each choice, before those of the
	// configuration. Their names are others than those there.
	Scorers []scoring.Named
}

// parts are the pieces of one picker.
type parts struct {
	scorers   *scoring.Set
	health    *extproc.Health
	server    *extproc.Server
	log       *source
	follower  *follower
	announcer *announcer // nil: there is nobody to tell
	admin     *admin
}

// build wires the parts. It starts nothing.
func build(c config.Config, o Options, logger *slog.Logger) (*parts, error) {
	log, err := openSource(c.Log)
	if err != nil {
		return nil, err
	}
	index := kvindex.NewIndexSized(c.Index.MaxBytes)
	prefixes := kvindex.NewPrefixMap(c.Index.PrefixMapBytes)
	if log.embedded != nil {
		c.Picker.Replica = "" // it is alone with its own log
	}
	pool := picker.NewPool(c.Picker, timing.Known())
	router := extproc.NewRouter(index, prefixes, pool, o.Secret)

	registry := observability.NewRegistry()
	rewrites, err := picker.NewRewrites(c.Rewrites)
	if err != nil {
		return nil, err
	}
	router.UseRewrites(rewrites, extproc.NewRewriteMetrics(registry, &rewrites))
	scorers, err := newScorers(c.Scorers, o.Scorers, scoring.NewMetrics(registry))
	if err != nil {
		return nil, err
	}
	router.UseScorers(scorers)
	server, err := extproc.New(c.ExtProc, router, extproc.NewMetrics(registry), logger)
	if err != nil {
		return nil, err
	}
	f := &follower{
		log: log, index: index, prefixes: prefixes, pool: pool, logger: logger,
		members: newMembers(), ready: newReadiness(), lost: map[kvindex.Owner]loss{},
	}
	f.reported, f.learned = server.Reported, router.Learned
	p := &parts{scorers: scorers, health: extproc.NewHealth(), server: server, log: log, follower: f}
	if log.embedded == nil {
		p.announcer = &announcer{pool: pool, log: log}
	}
	registry.MustRegister(&collector{index: index, indexLimit: c.Index.MaxBytes, prefixes: prefixes, pool: pool, follower: f, log: p.logView})
	p.admin = &admin{
		router: router, plans: server.Plans(), pool: pool, maxBody: int64(c.ExtProc.MaxBodyBytes),
		index: &indexPage{index: index, prefixes: prefixes, workers: f.members.views, log: p.logView},
		page:  observability.Admin{Gatherer: registry, Ready: f.ready.err, Pprof: c.Pprof},
	}
	return p, nil
}

// newScorers are those compiled in, then those of the configuration.
func newScorers(remote []scoring.Config, compiled []scoring.Named, m *scoring.Metrics) (*scoring.Set, error) {
	list := slices.Clone(compiled)
	for _, c := range remote {
		s, err := scoring.Dial(c)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return scoring.NewSet(list, m, time.Now)
}

// logView is the log as this picker sees it.
func (p *parts) logView() LogView {
	v := p.log.view()
	if p.announcer != nil {
		v.Dropped += p.announcer.dropped.Load()
	}
	f := p.follower
	v.Records, v.Gaps, v.Fenced, v.Faulty = f.records.Load(), f.gaps.Load(), f.fenced.Load(), f.fault.Load()
	return v
}

// Run serves until ctx ends, which is not an error, or a part fails. With a log in
// Redis nothing listens on l.Log.
func Run(ctx context.Context, c config.Config, o Options, logger *slog.Logger) error {
	p, err := build(c, o, logger)
	if err != nil {
		return err
	}
	defer p.log.close()
	defer p.closeScorers(context.WithoutCancel(ctx), logger)
	l := o.Listen
	if p.log.embedded == nil {
		l.Log = ""
	}
	open, err := l.open(ctx)
	if err != nil {
		return err
	}
	logger.Info("picker starts", "ext_proc", l.ExtProc, "health", l.Health, "log", p.log.where(l.Log), "admin", l.Admin, "policy", c.Picker.Policy)
	return p.serve(ctx, c, open, logger)
}

// serve runs all parts until ctx ends or one fails.
func (p *parts) serve(ctx context.Context, c config.Config, open listeners, logger *slog.Logger) error {
	extProc, health := grpc.NewServer(c.ExtProc.ServerOptions()...), grpc.NewServer()
	p.server.Register(extProc)
	p.health.Register(extProc)
	p.health.Register(health)

	g, ctx := errgroup.WithContext(ctx)
	part := func(name string, run func() error) {
		g.Go(func() error {
			if err := run(); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	part("follow the log", func() error { return p.follower.run(ctx) })
	part("hold workers", func() error { return p.follower.hold(ctx) })
	part("drop silent workers", func() error { return p.follower.dropSilent(ctx) })
	part("watch the log", func() error { return p.log.watch(ctx, p.server.SetReports, logger) })
	if p.log.embedded != nil {
		log := grpc.NewServer(memlog.ServerOptions()...)
		memlog.Register(log, p.log.embedded)
		part("serve the log", func() error { return serve(ctx, log, open.log) })
	}
	streams, ended := context.WithCancel(context.WithoutCancel(ctx))
	part("serve ext_proc", func() error {
		defer ended()
		if !p.becomeReady(ctx, logger) {
			return open.extProc.Close()
		}
		return serve(ctx, extProc, open.extProc)
	})
	if p.announcer != nil { // until the last stream has closed its booking
		part("announce bookings", func() error { return p.announcer.run(streams) })
	}
	part("let requests go that wait", func() error { return p.server.Run(streams) })
	part("serve health", func() error { return serve(ctx, health, open.health) })
	part("serve the admin page", func() error { return observability.Serve(ctx, open.admin, p.admin.handler()) })
	context.AfterFunc(ctx, func() {
		p.health.SetReady(false)
		p.server.Stop()
	})
	return g.Wait()
}

// closeScorers ends what is left of questions to scorers.
func (p *parts) closeScorers(ctx context.Context, logger *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	if err := p.scorers.Close(ctx); err != nil {
		logger.Warn("a scorer did not return", "err", err)
	}
}

// becomeReady waits until requests may come, and is false if ctx ends before.
// Those that come earlier wait in the listener's queue: they would be refused, or
// all go to the first worker that is there.
func (p *parts) becomeReady(ctx context.Context, logger *slog.Logger) bool {
	p.follower.ready.run(ctx, p.follower.readyWorkers)
	if ctx.Err() != nil {
		return false
	}
	p.health.SetReady(true)
	stats := p.follower.pool.Stats(time.Now())
	logger.Info("picker is up", "workers", stats.Workers, "ready", stats.Ready, "log_read", p.follower.ready.read.Load())
	return true
}

type listeners struct{ extProc, health, log, admin net.Listener }

// open takes all ports before anything is served, so that one in use is the
// only thing that happened.
func (l Listen) open(ctx context.Context) (open listeners, err error) {
	var config net.ListenConfig
	var done []net.Listener
	listen := func(what, address string) net.Listener {
		listener, e := config.Listen(ctx, "tcp", address)
		if e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", what, e))
			return nil
		}
		done = append(done, listener)
		return listener
	}
	open = listeners{
		extProc: listen("ext_proc", l.ExtProc), health: listen("health", l.Health),
		admin: listen("admin page", l.Admin),
	}
	if l.Log != "" {
		open.log = listen("log", l.Log)
	}
	if err != nil {
		for _, d := range done {
			_ = d.Close()
		}
	}
	return open, err
}

// stopGrace is how long requests under way may take once the process is asked
// to stop.
const stopGrace = 3 * time.Second

// serve runs a gRPC server until ctx ends; streams that are then still open are
// cut after stopGrace.
func serve(ctx context.Context, s *grpc.Server, listener net.Listener) error {
	stopped := make(chan struct{})
	defer func() { <-stopped }()
	served, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(stopped)
		<-served.Done()
		cut := time.AfterFunc(stopGrace, s.Stop)
		s.GracefulStop()
		cut.Stop()
	}()
	return s.Serve(listener)
}
