package epp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/kvlane/kvlane/extproc"
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

// parts are the pieces of one picker.
type parts struct {
	health   *extproc.Health
	server   *extproc.Server
	log      *memlog.Log
	follower *follower
	admin    *admin
}

// build wires the parts. It starts nothing.
func build(c config.Config, secret string, logger *slog.Logger) (*parts, error) {
	index := kvindex.NewIndex()
	prefixes := kvindex.NewPrefixMap(c.Index.PrefixMapBytes)
	pool := picker.NewPool(c.Picker, timing.Known())
	router := extproc.NewRouter(index, prefixes, pool, secret)

	registry := observability.NewRegistry()
	server, err := extproc.New(c.ExtProc, router, extproc.NewMetrics(registry), logger)
	if err != nil {
		return nil, err
	}
	log := memlog.New(memlog.Options{})
	f := newFollower(log, index, prefixes, pool, logger)
	registry.MustRegister(newCollector(index, pool, f))
	return &parts{
		health: extproc.NewHealth(), server: server, log: log, follower: f,
		admin: &admin{
			router: router, plans: server.Plans(), pool: pool, maxBody: int64(c.ExtProc.MaxBodyBytes),
			page: observability.Admin{Gatherer: registry, Ready: f.ready, Pprof: c.Pprof},
		},
	}, nil
}

// Run serves until ctx ends, which is not an error, or a part fails.
func Run(ctx context.Context, c config.Config, l Listen, secret string, logger *slog.Logger) error {
	p, err := build(c, secret, logger)
	if err != nil {
		return err
	}
	open, err := l.open(ctx)
	if err != nil {
		return err
	}
	extProc := grpc.NewServer(c.ExtProc.ServerOptions()...)
	p.server.Register(extProc)
	p.health.Register(extProc)
	health, log := grpc.NewServer(), grpc.NewServer(memlog.ServerOptions()...)
	p.health.Register(health)
	memlog.Register(log, p.log)

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
	part("drop silent workers", func() error { return p.follower.dropSilent(ctx, p.log) })
	part("serve the log", func() error { return serve(ctx, log, open.log) })
	part("serve ext_proc", func() error { return serve(ctx, extProc, open.extProc) })
	part("serve health", func() error { return serve(ctx, health, open.health) })
	part("serve the admin page", func() error { return observability.Serve(ctx, open.admin, p.admin.handler()) })
	p.health.SetReady(true)
	logger.Info("picker is up", "ext_proc", l.ExtProc, "health", l.Health, "log", l.Log, "admin", l.Admin, "policy", c.Picker.Policy)
	context.AfterFunc(ctx, func() {
		p.health.SetReady(false)
		p.server.Stop()
	})
	return g.Wait()
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
		log: listen("log", l.Log), admin: listen("admin page", l.Admin),
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
