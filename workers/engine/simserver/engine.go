package simserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/kvlane/kvlane/workers/engine/sim"
)

var (
	// errStopped answers requests to an engine that has ended.
	errStopped = errors.New("the engine has stopped")
	// errEngineDied ends running requests at a restart, in vLLM's words.
	errEngineDied = &apiError{
		Status: http.StatusInternalServerError, Type: "InternalServerError",
		Message: "EngineCore encountered an issue. See stack trace (above) for the root cause.",
	}
)

// maxCatchUp bounds how long the engine is deaf while it takes steps that are
// due. A wake-up that comes late leaves far less to do.
const maxCatchUp = 100 * time.Millisecond

// engine owns the core. Its fields belong to the goroutine of run; others talk
// to it through do.
type engine struct {
	commands chan func()
	stopped  chan struct{} // closed when run has returned

	newCore func() *sim.Core
	core    *sim.Core
	life    int       // counts restarts
	born    time.Time // when this life began
	clock   clock
	speed   float64 // the clock's rate without faults
	nextID  uint64
	seqs    map[string]*sequence
	held    holds
	content content
	pub     *publisher
	metrics *metrics
}

// sequence is one choice of a running request.
type sequence struct {
	sink   *sink
	choice int
	lora   string
	hold   *hold // what to keep at the end; nil for nothing
	start  time.Time
	last   time.Time // of the token before; zero until the first
	tokens int
}

func newEngine(newCore func() *sim.Core, speed float64, holdFor time.Duration, pub *publisher, m *metrics) *engine {
	return &engine{
		commands: make(chan func()),
		stopped:  make(chan struct{}),
		newCore:  newCore,
		core:     newCore(),
		speed:    speed,
		seqs:     make(map[string]*sequence),
		held:     holds{timeout: holdFor, byID: make(map[string]*hold)},
		content:  make(content),
		pub:      pub,
		metrics:  m,
	}
}

// run is the engine's goroutine: it advances the core when its next step ends
// and does what requests ask in between.
func (e *engine) run(ctx context.Context) error {
	defer close(e.stopped)
	e.clock, e.born = newClock(e.speed), time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		e.arm(timer)
		select {
		case <-ctx.Done():
			e.failAll(errStopped)
			return nil
		case f := <-e.commands:
			e.advance()
			f()
		case <-timer.C:
			e.advance()
		}
	}
}

// arm sets the timer for the next step's end or the next hold's, whichever is
// first, and stops it if there is neither.
func (e *engine) arm(timer *time.Timer) {
	wait, ok := e.held.next()
	if at, running := e.core.NextAt(); running {
		if d, moving := e.clock.until(at); moving && (!ok || d < wait) {
			wait, ok = d, true
		}
	}
	if !ok {
		timer.Stop()
		return
	}
	timer.Reset(wait)
}

// advance takes every step that has ended by now. Each is taken at its own
// end, not at the time of the wake-up, so that a late wake-up costs no
// throughput. Where the machine cannot keep up with the speed that was asked for,
// the clock is set back: requests and aborts would find the engine busy for longer
// and longer otherwise.
func (e *engine) advance() {
	woken, now := time.Now(), e.clock.now()
	for {
		at, ok := e.core.NextAt()
		if !ok || at > now {
			break
		}
		e.deliver(e.core.Step(at))
		if time.Since(woken) > maxCatchUp {
			e.metrics.slipped.Add(e.clock.setBack(at).Seconds())
			now = at
			break
		}
	}
	for _, id := range e.held.expired(time.Now()) {
		e.core.Release(now, id)
		e.metrics.holdsExpired.Inc()
	}
}

// do runs f in the engine's goroutine and waits for it.
func (e *engine) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case e.commands <- func() { f(); close(done) }:
		<-done
		return nil
	case <-e.stopped:
		return errStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// deliver hands out what happened in the core.
func (e *engine) deliver(out sim.Output) {
	if len(out.Events) > 0 {
		e.content.apply(out.Events)
		e.pub.publish(out.Events)
	}
	if len(out.Tokens) == 0 {
		return
	}
	now := time.Now()
	for _, t := range out.Tokens {
		if s := e.seqs[t.ID]; s != nil {
			e.deliverToken(s, t, now)
		}
	}
}

func (e *engine) deliverToken(s *sequence, t sim.Token, now time.Time) {
	if t.Finish != sim.Aborted {
		s.tokens++
		e.metrics.token(s, now)
		s.last = now
	}
	if t.Finish != sim.Running {
		e.metrics.finished(s, t.Finish, now)
		delete(e.seqs, t.ID)
		if s.hold != nil {
			e.held.add(t.ID, s.hold, now)
		}
	}
	s.sink.push(item{choice: s.choice, token: t})
}

// submission is a request's sequences on their way into the core.
type submission struct {
	requests []sim.Request // IDs are set by submit
	holds    []*hold       // one for each request, or nil
	sink     *sink
}

// submit starts all sequences of a request or none.
func (e *engine) submit(ctx context.Context, sub *submission) error {
	var failed error
	err := e.do(ctx, func() {
		now, start := e.clock.now(), time.Now()
		for i := range sub.requests {
			r := &sub.requests[i]
			e.nextID++
			r.ID = "sim-" + strconv.Itoa(e.life) + "-" + strconv.FormatUint(e.nextID, 10)
			s := &sequence{sink: sub.sink, choice: i, lora: r.LoRA, start: start}
			if sub.holds != nil {
				s.hold = sub.holds[i]
			}
			if err := e.core.Submit(now, *r); err != nil {
				failed = fmt.Errorf("start sequence: %w", err)
				e.abort(sub.requests[:i])
				return
			}
			e.seqs[r.ID] = s
		}
	})
	if err != nil {
		return err
	}
	return failed
}

// abort ends the sequences that still run. It is called in the engine's
// goroutine.
func (e *engine) abort(requests []sim.Request) {
	for i := range requests {
		id := requests[i].ID
		s := e.seqs[id]
		if s == nil {
			continue
		}
		e.metrics.finished(s, sim.Aborted, time.Now())
		delete(e.seqs, id)
		e.deliver(e.core.Abort(e.clock.now(), id))
	}
}

// failAll ends every running request with an error.
func (e *engine) failAll(err error) {
	failed := make(map[*sink]bool)
	for _, s := range e.seqs {
		e.metrics.failed.Inc()
		if !failed[s.sink] {
			failed[s.sink] = true
			s.sink.push(item{err: err})
		}
	}
	clear(e.seqs)
}

// restart ends the engine's life and starts an empty one.
func (e *engine) restart() {
	e.failAll(errEngineDied)
	e.life++
	e.core = e.newCore()
	e.clock, e.born = newClock(e.speed), time.Now()
	e.held.clear()
	clear(e.content)
	e.pub.restart()
}
