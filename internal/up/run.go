package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kvlane/kvlane/internal/epp"
	"github.com/kvlane/kvlane/kvindex/redislog"
)

// Run starts the stack, waits until it answers, runs the demo and keeps the
// stack until ctx ends, which is not an error. It returns when everything is
// stopped.
func Run(ctx context.Context, o Options) error {
	if err := errors.Join(o.Validate(), o.Ports.CheckFree(ctx)); err != nil {
		return err
	}
	if err := o.askRedis(ctx); err != nil {
		return err
	}
	if err := o.write(); err != nil {
		return err
	}
	s := newStack(o.Dir, len(o.processes()))
	defer s.stop()
	err := o.run(ctx, s)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		fmt.Fprintln(o.Out, "\nstopping")
		return nil
	}
	return err
}

// askRedis finds out before anything starts whether a Redis that is not the stack's
// own is there and takes its user.
func (o Options) askRedis(ctx context.Context) error {
	if o.Redis == "" || o.Redis == Embedded {
		return nil
	}
	log, err := redislog.New(redislog.Options{URL: o.Redis, Timeout: redisTimeout})
	if err != nil {
		return fmt.Errorf("--redis: %w", err)
	}
	defer func() { _ = log.Close() }() // nothing was written
	if err := log.Ping(ctx); err != nil {
		return fmt.Errorf("--redis: %w", err)
	}
	return nil
}

func (o Options) run(ctx context.Context, s *stack) error {
	started := time.Now()
	if err := o.start(ctx, s); err != nil {
		return err
	}
	fmt.Fprintf(o.Out, "ready in %.1f s: %s\n", time.Since(started).Seconds(), o.describe())
	if !o.NoDemo {
		if err := o.guarded(ctx, s, o.demo); err != nil {
			return err
		}
	}
	if o.Once {
		return nil
	}
	fmt.Fprintf(o.Out, "\nCtrl-C stops everything. Logs are in %s.\n", o.Dir)
	for {
		select {
		case m := <-s.dead:
			if err := o.lost(s, m); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lost is the error for a process without which the stack cannot go on. What it
// can do without is only told.
func (o Options) lost(s *stack, m member) error {
	if !s.survives(m) {
		return deathOf(m)
	}
	fmt.Fprintf(o.Out, "\n%s ended (%s); the others go on. Its log is %s.\n", m.Name(), m.how(), m.log)
	return nil
}

func (o Options) describe() string {
	workers := fmt.Sprintf("%d workers", o.Engines)
	if o.PD {
		decode := (o.Engines + 1) / 2
		workers = fmt.Sprintf("%d decode and %d prefill workers", decode, o.Engines-decode)
	}
	pickers := ""
	if n := len(o.Ports.Pickers); n > 1 {
		pickers = fmt.Sprintf("%d pickers and ", n)
	}
	return fmt.Sprintf("%s%s of %s (simulated, %d blocks of %d tokens, time scale %g) behind http://%s",
		pickers, workers, o.Deployment, o.blocks(), o.BlockSize, o.TimeScale, addr(o.Ports.Envoy))
}

// start starts all processes at once and waits for each.
func (o Options) start(ctx context.Context, s *stack) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	list := o.processes()
	for _, p := range list {
		if err := s.start(p); err != nil {
			return err
		}
	}
	if len(o.Ports.Pickers) > 1 {
		list = append(list, process{name: "pickers", where: "all taken up by Envoy", up: o.pickersUsed})
	}
	list = append(list, process{name: "pool", where: "all workers known to every picker", up: o.poolComplete})
	lines := progress{out: o.Out, quiet: o.Quiet, live: isTerminal(o.Out)}
	for _, p := range list {
		lines.begin(p)
		err := s.wait(ctx, p)
		lines.end(p, err)
		if err != nil {
			return err
		}
	}
	return nil
}

// progress prints a line for each process that is waited for.
type progress struct {
	out   io.Writer
	quiet bool
	live  bool // the line may be written over when its process is up
	begun time.Time
}

func (l *progress) begin(p process) {
	l.begun = time.Now()
	if l.live && !l.quiet {
		fmt.Fprintf(l.out, "  … %-10s %s", p.name, p.where)
	}
}

func (l *progress) end(p process, err error) {
	if l.quiet {
		return
	}
	mark := "✓"
	if err != nil {
		mark = "✗"
	}
	start := ""
	if l.live {
		start = "\r"
	}
	fmt.Fprintf(l.out, "%s  %s %-10s %s (%.1f s)\n", start, mark, p.name, p.where, time.Since(l.begun).Seconds())
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// poolComplete asks every picker whether all workers are ready there.
func (o Options) poolComplete(ctx context.Context) error {
	for i, p := range o.Ports.Pickers {
		endpoints, err := epp.NewClient(addr(p.Admin)).Endpoints(ctx)
		if err != nil {
			return err
		}
		ready := 0
		for _, e := range endpoints {
			if e.Ready {
				ready++
			}
		}
		if ready < o.Engines {
			return fmt.Errorf("the %s sees %d of %d workers ready", pickerName(i, len(o.Ports.Pickers)), ready, o.Engines)
		}
	}
	return nil
}

// pickersUsed asks Envoy whether it sends requests to every picker.
func (o Options) pickersUsed(ctx context.Context) error {
	text, err := get(ctx, addr(o.Ports.EnvoyAdmin), "/clusters")
	if err != nil {
		return err
	}
	for _, p := range o.Ports.Pickers {
		if line := "picker::" + addr(p.ExtProc) + "::health_flags::healthy"; !strings.Contains(text, line) {
			return fmt.Errorf("the picker at %s is not healthy for Envoy", addr(p.ExtProc))
		}
	}
	return nil
}

// guarded runs f, but not longer than the stack lives.
func (o Options) guarded(ctx context.Context, s *stack, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f(ctx)
	}()
	for {
		select {
		case <-done:
			return err
		case m := <-s.dead:
			if lost := o.lost(s, m); lost != nil {
				cancel()
				<-done
				return lost
			}
		}
	}
}
