package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvlane/kvlane/workers/engine"
)

const (
	// probeTimeout bounds one look at the engine.
	probeTimeout = 2 * time.Second
	// awaitEvery is the pause between looks while there is no engine: its start
	// should not be found late.
	awaitEvery = 100 * time.Millisecond
	// failuresToDown is how many looks in a row must fail before the engine counts
	// as down: a busy one may be slow once. A refused connection counts at once.
	failuresToDown = 3
	// modelsEvery is how many looks pass between two readings of the model list.
	modelsEvery = 4
	// figuresStale is for how long a bare engine's last figures stand for its load when
	// its metrics page cannot be read. After that it takes no requests.
	figuresStale = 5 * time.Second
)

// errNoFigures says that a page lacks the numbers of requests.
var errNoFigures = errors.New("it does not say how many requests run and wait")

// startPatience is how long an engine may be silent at first before that is
// logged; real ones take a minute, and whoever waits wants to know for what.
const startPatience = 5 * time.Second

// engineState is what is known of the engine at one moment.
type engineState struct {
	Up      bool
	Models  engine.Models
	Metrics engine.Metrics
	// Why says why it is not up.
	Why string
}

// prober watches the engine's HTTP side.
//
// Invariant: state always holds a value; only Run's goroutine replaces it.
type prober struct {
	client  *engine.Client
	every   time.Duration
	metrics *Metrics
	log     *slog.Logger
	load    *load
	state   atomic.Pointer[engineState]
	kick    chan struct{}
	changed func()     // called after each change of Up or of the models
	renewed func(life) // called when the process is known to be another one
	timeout time.Duration
	// pace is set for a bare engine: its metrics page is its load, and is read at that
	// pace. Its health is asked for every now and then all the same.
	pace      *pace
	fullAt    time.Time // when its health was last asked for
	figuresAt time.Time // when its load was last read; zero for never in this life
	missing   bool      // the last look did not show it

	alive    bool // the process answered since it was last found gone
	failures int
	looks    int
	began    time.Time // of Run
	warned   bool      // that the engine does not come up
	emptyAt  time.Time // when the engine last reported an empty waiting queue
}

func newProber(c *engine.Client, cfg Config, l *load, m *Metrics, logger *slog.Logger) *prober {
	p := &prober{
		client: c, every: cfg.ProbeEvery, metrics: m, log: logger, load: l,
		kick: make(chan struct{}, 1), timeout: probeTimeout,
		changed: func() {}, renewed: func(life) {},
	}
	p.state.Store(&engineState{Why: "not asked yet", Metrics: engine.UnknownMetrics()})
	return p
}

// now asks for a look at once.
func (p *prober) now() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// Run looks until ctx ends.
func (p *prober) Run(ctx context.Context) error {
	p.began = time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-p.kick:
			p.fullAt = time.Time{}
		}
		p.look(ctx)
		timer.Reset(p.pause())
	}
}

// pause is how long to wait until the next look.
func (p *prober) pause() time.Duration {
	switch {
	case p.pace == nil && p.alive:
		return p.every
	case p.pace == nil:
		return min(p.every, awaitEvery)
	case p.failures > 0 || p.missing || !p.alive:
		return max(p.every, p.pace.least())
	default:
		return p.pace.after(&p.state.Load().Metrics)
	}
}

// look asks the engine once and replaces the state.
func (p *prober) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	old := p.state.Load()
	next := *old
	err := p.ask(ctx, &next)
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	refused := errors.Is(err, syscall.ECONNREFUSED)
	if err != nil {
		p.failures++
		next.Why = err.Error()
		if p.failures >= failuresToDown || refused {
			next.Up = false
		}
	} else {
		p.failures = 0
		next.Up, next.Why = true, ""
	}
	p.publish(old, &next, refused)
}

// ask fills in what the engine says.
func (p *prober) ask(ctx context.Context, next *engineState) error {
	started := time.Now()
	if p.pace == nil || p.failures > 0 || !next.Up || started.Sub(p.fullAt) >= p.every {
		p.fullAt = started
		if err := p.client.Health(ctx); err != nil {
			return err
		}
		if err := p.askModels(ctx, next); err != nil {
			return err
		}
	}
	started = time.Now()
	m, err := p.client.Metrics(ctx)
	if err != nil {
		// An engine without a metrics page is served too; its figures are unknown.
		p.log.Debug("engine metrics", "err", err)
	}
	if p.pace != nil && !m.Loaded() {
		return p.missed(started, err)
	}
	if m.BlockSize == 0 {
		m.BlockSize, m.KVBlocks = next.Metrics.BlockSize, max(m.KVBlocks, next.Metrics.KVBlocks)
	}
	if m.StartedAt.IsZero() {
		m.StartedAt = next.Metrics.StartedAt
	}
	next.Metrics = m
	if p.pace != nil {
		p.figuresAt, p.missing = started, false
		p.load.read(&m, started)
		return nil
	}
	if m.Waiting == 0 {
		if !p.emptyAt.IsZero() {
			p.load.noneWaiting(p.emptyAt)
		}
		p.emptyAt = started
	}
	p.load.setKV(usedBlocks(m), uint32(m.KVBlocks))
	return nil
}

func (p *prober) askModels(ctx context.Context, next *engineState) error {
	p.looks++
	if p.looks%modelsEvery != 1 && next.Up && len(next.Models.Served) > 0 {
		return nil
	}
	models, err := p.client.Models(ctx)
	if err != nil {
		return err
	}
	next.Models = models
	return nil
}

// missed is a look at a bare engine that did not show its load; err is why, nil for a
// page without it. That is a fault if it lasts, or if nobody is there.
func (p *prober) missed(now time.Time, err error) error {
	p.metrics.Unread.Inc()
	p.missing = true
	if err == nil {
		err = errNoFigures
	}
	if errors.Is(err, syscall.ECONNREFUSED) || now.Sub(p.figuresAt) > figuresStale {
		return fmt.Errorf("metrics page: %w", err)
	}
	return nil
}

func usedBlocks(m engine.Metrics) uint32 {
	if m.KVUsage < 0 {
		return 0
	}
	return uint32(m.KVUsage * float64(m.KVBlocks))
}

// publish stores a new state and tells who has to know. Only a refused connection
// says that the process is gone; one that is slow or unwell still has its cache.
func (p *prober) publish(old, next *engineState, refused bool) {
	p.state.Store(next)
	if next.Up {
		p.metrics.EngineUp.Set(1)
	} else {
		p.metrics.EngineUp.Set(0)
	}
	switch {
	case old.Up && !next.Up:
		p.log.Warn("engine is down", "why", next.Why)
	case !next.Up && !p.warned && time.Since(p.began) > startPatience:
		p.warned = true
		p.log.Warn("engine does not come up", "why", next.Why)
	}
	switch s, before := next.Metrics.StartedAt, old.Metrics.StartedAt; {
	case refused && p.alive:
		p.alive = false
		p.figuresAt = time.Time{}
		p.load.unread()
		p.renewed(life{})
	case next.Up:
		p.alive = true
		if !before.IsZero() && s.After(before) {
			p.renewed(life{started: s})
		}
	}
	if old.Up != next.Up || !slices.Equal(old.Models.Served, next.Models.Served) || !slices.Equal(old.Models.Adapters, next.Models.Adapters) {
		if next.Up && !old.Up {
			p.log.Info("engine is up", "model", next.Models.Base, "block_size", next.Metrics.BlockSize, "blocks", next.Metrics.KVBlocks)
		}
		p.changed()
	}
}

// await waits until the engine is up.
func (p *prober) await(ctx context.Context) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		if p.state.Load().Up {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the engine: %w (last: %s)", ctx.Err(), p.state.Load().Why)
		case <-ticker.C:
		}
	}
}
