package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/epp"
)

const (
	// clients ask questions all the time, each after a rest, so that two cores
	// are busy and not overrun.
	loadClients = 6
	loadRest    = 50 * time.Millisecond
	// probeEvery is the pause between two requests that only measure.
	probeEvery = 25 * time.Millisecond
)

// outcome is one request of the load.
type outcome struct {
	id           string
	began, ended time.Time
	probe        bool // it asks for nothing that takes an engine time
	err          error
}

// steadyLoad asks questions from several clients until it is stopped.
type steadyLoad struct {
	stop    chan struct{}
	running sync.WaitGroup

	mu   sync.Mutex
	done []outcome
}

// startLoad begins; the end of the test stops it.
func (s *shared) startLoad(t *testing.T) *steadyLoad {
	l := &steadyLoad{stop: make(chan struct{})}
	every := func(d time.Duration, ask func(i int)) {
		l.running.Go(func() {
			tick := time.NewTicker(d)
			defer tick.Stop()
			for i := 0; ; i++ {
				ask(i)
				select {
				case <-l.stop:
					return
				case <-tick.C:
				}
			}
		})
	}
	for c := range loadClients {
		every(loadRest, func(i int) {
			// Prefixes that come again, in more variety than the caches can hold.
			q := rules(s.model, fmt.Sprintf("quay %d", (c*7+i)%40), 20+i%30, 8)
			if i%2 == 0 {
				q = q.streamed()
			}
			o := outcome{id: fmt.Sprintf("load-%d-%d", c, i), began: time.Now()}
			_, o.err = s.gateway.try(t.Context(), q, "X-Request-Id", o.id)
			l.add(o)
		})
	}
	every(probeEvery, func(i int) {
		o := outcome{id: fmt.Sprintf("probe-%d", i), began: time.Now(), probe: true}
		resp, err := s.gateway.send(t.Context(), http.MethodGet, "/v1/models", http.NoBody, "X-Request-Id", o.id)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("status %d", resp.StatusCode)
			}
		}
		o.err = err
		l.add(o)
	})
	t.Cleanup(l.end)
	return l
}

// end stops the load and waits for what is under way.
func (l *steadyLoad) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.running.Wait()
}

func (l *steadyLoad) add(o outcome) {
	o.ended = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = append(l.done, o)
}

// take is what ended since the last call.
func (l *steadyLoad) take() []outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	done := l.done
	l.done = nil
	return done
}

func (l *steadyLoad) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.done)
}

// hold lets a fault last for some time, with requests coming in.
func (l *steadyLoad) hold(t *testing.T, d time.Duration) {
	t.Helper()
	began, before := time.Now(), l.count()
	waitFor(t, "requests during the fault", d+patience, func() error {
		if n, lasted := l.count()-before, time.Since(began); n == 0 || lasted < d {
			return fmt.Errorf("%d requests ended in %v", n, lasted)
		}
		return nil
	})
}

// victim is something that was killed: what was inside it is lost.
type victim struct {
	// The signal was sent at from, and it was gone at at.
	from, at time.Time
	// address is the agent's, of the killed one or of the killed engine; empty for a
	// picker.
	address string
}

// judge wants every request answered except those that were inside a victim,
// which must have ended within a second, and returns how many those were.
func (s *shared) judge(t *testing.T, done []outcome, victims []victim) (inside int) {
	t.Helper()
	for _, o := range done {
		if o.err == nil {
			continue
		}
		v, ok := s.insideOf(t, o, victims)
		switch {
		case !ok:
			t.Errorf("%s, %v long, ended %v ago: %v", o.id, o.ended.Sub(o.began), time.Since(o.ended), o.err)
		case o.ended.Sub(v.at) > insideLimit:
			t.Errorf("%s was inside %q when it was killed and ended %v later: %v", o.id, v.address, o.ended.Sub(v.at), o.err)
		default:
			inside++
		}
	}
	return inside
}

// insideOf finds the victim that a request was at: the one that the plan sent it
// to, or the picker, if no picker that lives has a plan of it.
func (s *shared) insideOf(t *testing.T, o outcome, victims []victim) (victim, bool) {
	t.Helper()
	var plan epp.PlanView
	for _, page := range s.pages {
		if v, err := epp.NewClient(page).Plan(t.Context(), o.id); err == nil {
			plan = v
		}
	}
	for _, v := range victims {
		if o.began.Before(v.at) && o.ended.After(v.from) && v.address == plan.Decode.Address {
			return v, true
		}
	}
	return victim{}, false
}

// latencies are the half, 99 % and largest of the requests that only measure.
func latencies(done []outcome) string {
	var list []time.Duration
	for _, o := range done {
		if o.probe {
			list = append(list, o.ended.Sub(o.began))
		}
	}
	if len(list) == 0 {
		return "no requests"
	}
	slices.Sort(list)
	at := func(share float64) string {
		return fmt.Sprintf("%.1f", float64(list[int(share*float64(len(list)-1))].Microseconds())/1000)
	}
	return fmt.Sprintf("%d requests for the models: p50 %s, p99 %s, longest %s ms", len(list), at(0.5), at(0.99), at(1))
}

// picks is how many picks the pickers made and how long they took together.
func (s *shared) picks(t *testing.T) (n, seconds float64) {
	t.Helper()
	for _, page := range s.pages {
		n += metric(t, "http://"+page, "kvlane_pick_duration_seconds_count")
		seconds += metric(t, "http://"+page, "kvlane_pick_duration_seconds_sum")
	}
	return n, seconds
}

func readyWorkers(t *testing.T, page string) (int, error) {
	t.Helper()
	endpoints, err := epp.NewClient(page).Endpoints(t.Context())
	if err != nil {
		return 0, err
	}
	ready := 0
	for _, e := range endpoints {
		if e.Ready {
			ready++
		}
	}
	return ready, nil
}

// lenient is four times as long in a binary with the race detector.
func lenient(d time.Duration) time.Duration {
	if strings.HasSuffix(raceFlag, "false") {
		return d
	}
	return 4 * d
}
