package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/epp"
	"github.com/kvlane/kvlane/internal/porttest"
)

// TestRedis has one stack of two pickers that share the log in a Redis.
func TestRedis(t *testing.T) {
	s := startUp(t, 3, "--redis", "embedded", "--time-scale", "20")
	s.top = t
	for _, tc := range []struct {
		name string
		test func(*stack, *testing.T)
	}{
		{"Same", (*stack).testSame},
		{"Burst", (*stack).testBurst},
		{"RedisDies", (*stack).testRedisDies},
		{"PickerDies", (*stack).testPickerDies}, // the last: it does not come back
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(s, t) })
	}
}

// testSame: whichever picker made the plans, both know the same afterwards and
// would do the same.
func (s *stack) testSame(t *testing.T) {
	s.load(t, 24, 60)
	made := 0
	for i := range 12 {
		q := rules(s.model, fmt.Sprintf("yard %d", i), 60, 20)
		s.samePlan(t, q, 256)
	}
	for _, r := range s.pickers {
		if n := metric(t, r.page, "kvlane_pool_picks_total"); n > 0 {
			made++
		}
		if metric(t, r.page, "kvlane_log_connected") != 1 || metric(t, r.page, "kvlane_log_bookings_total") == 0 {
			t.Errorf("%s is not connected, or saw no bookings", r.name)
		}
		if n := metric(t, r.page, "kvlane_log_dropped_records_total"); n != 0 {
			t.Errorf("%s dropped %g bookings", r.name, n)
		}
	}
	a := s.gateway.ask(t, rules(s.model, "yard 0", 60, 4))
	var pages []string
	for _, r := range s.pickers {
		pages = append(pages, strings.TrimPrefix(r.page, "http://"))
	}
	contains(t, mustRun(t, "", "explain", "--admin", strings.Join(pages, ","), a.request), a.request, "reason   cached")
	if made != len(s.pickers) {
		t.Errorf("%d pickers made plans, want %d", made, len(s.pickers))
	}
}

// samePlan waits until every picker that is left would send a question to the same
// worker, for the same cached tokens, at least n.
func (s *stack) samePlan(t *testing.T, q question, n int) {
	t.Helper()
	body := q.body(t)
	waitFor(t, "the pickers to agree", patience, func() error {
		var first epp.PlanView
		for i, r := range s.pickers {
			v, err := r.admin.Explain(t.Context(), q.path(), "", body)
			if err != nil {
				return err
			}
			if v.Cached < n {
				return fmt.Errorf("%s knows of %d cached tokens: %+v", r.name, v.Cached, v)
			}
			if i == 0 {
				first = v
			}
			if v.Decode != first.Decode || v.Cached != first.Cached || v.ISL != first.ISL {
				return fmt.Errorf("%s: %+v\n%s: %+v", s.pickers[0].name, first, r.name, v)
			}
		}
		return nil
	})
}

// testBurst: requests that come at once to both pickers spread over the workers:
// each sees what the other has booked (case C18 d).
func (s *stack) testBurst(t *testing.T) {
	s.awaitAllIdle(t)
	s.faultAll(t, `{"kind":"slow","factor":400}`)
	defer s.faultAll(t, `{"kind":"none"}`)
	const n = 90
	ctx, abort := context.WithCancel(t.Context())
	var sent sync.WaitGroup
	for i := range n {
		q := question{Model: s.model, Prompt: fmt.Sprintf("%d: a door, a lamp and a table", i), MaxTokens: 400, IgnoreEOS: true}
		sent.Go(func() { _, _ = s.gateway.try(ctx, q) }) // aborted below
	}
	var counts []float64
	waitFor(t, "all requests to be at the workers", patience, func() error {
		counts = counts[:0]
		sum := 0.0
		for _, w := range s.workers {
			c := metric(t, w.admin, "kvlane_agent_requests_in_flight")
			counts, sum = append(counts, c), sum+c
		}
		if sum != n {
			return fmt.Errorf("%v", counts)
		}
		return nil
	})
	abort()
	sent.Wait()
	if least, most := slices.Min(counts), slices.Max(counts); most > 2*least {
		t.Errorf("requests of the workers: %v", counts)
	}
	s.awaitAllIdle(t)
}

// awaitAllIdle waits until no picker counts a request anywhere.
func (s *stack) awaitAllIdle(t *testing.T) {
	t.Helper()
	waitFor(t, "requests to end in every picker", patience, func() error {
		for _, r := range s.pickers {
			for _, name := range []string{"kvlane_open_bookings", "kvlane_pool_bookings", "kvlane_worker_requests"} {
				if v := metric(t, r.page, name); v != 0 {
					return fmt.Errorf("%s of %s is %g", name, r.name, v)
				}
			}
		}
		return nil
	})
}

// testRedisDies: without Redis requests are answered as before, with what is
// known, for longer than any lease; each picker says so once. When it is back,
// empty, all are told everything again.
func (s *stack) testRedisDies(t *testing.T) {
	q := rules(s.model, "bridge", 60, 8)
	s.gateway.ask(t, q)
	s.samePlan(t, q, 256)
	killed := s.kill(t, "redis-server")
	s.process.awaitLine(t, "redis ended (signal: killed); the others go on", patience)
	began := time.Now()
	waitFor(t, "longer than a lease without Redis", patience, func() error {
		if a, err := s.gateway.try(t.Context(), q); err != nil {
			t.Fatalf("%v after Redis died: %v", time.Since(began), err)
		} else if a.usage.Details.Cached < 256 {
			t.Fatalf("%v after Redis died: only %d tokens cached", time.Since(began), a.usage.Details.Cached)
		}
		for _, r := range s.pickers {
			if metric(t, r.page, "kvlane_log_connected") != 0 || metric(t, r.page, "kvlane_pool_workers_ready") != float64(len(s.workers)) {
				return fmt.Errorf("%s is connected or lost workers", r.name)
			}
		}
		if lag := time.Since(began); lag < 8*time.Second {
			return fmt.Errorf("%v so far", lag)
		}
		return nil
	})
	for _, r := range s.pickers {
		awaitLogLine(t, filepath.Join(s.dir, r.name+".log"), "the log is away")
	}

	s.start(s.top, "redis-again", killed[0], killed[1:]...) // for the tests that follow, too
	waitFor(t, "Redis to be used again", patience, func() error {
		for _, r := range s.pickers {
			if metric(t, r.page, "kvlane_log_connected") != 1 {
				return fmt.Errorf("%s is not connected", r.name)
			}
		}
		return nil
	})
	q = rules(s.model, "tunnel", 60, 8)
	s.gateway.ask(t, q)
	s.samePlan(t, q, 256)
	for _, r := range s.pickers {
		awaitLogLine(t, filepath.Join(s.dir, r.name+".log"), "the log is back")
	}
}

// kill kills the one process whose command line contains a text, and returns that
// line.
func (s *stack) kill(t *testing.T, text string) []string {
	t.Helper()
	pids := s.processes(text)
	if len(pids) != 1 {
		t.Fatalf("processes with %q: %v", text, pids)
	}
	line := strings.Split(strings.TrimSuffix(read(t, fmt.Sprintf("/proc/%d/cmdline", pids[0])), "\x00"), "\x00")
	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	return line
}

// testPickerDies: a picker that is killed under load costs at most requests that
// were with it, and none that comes later. (TestPickerCrash of test/envoy holds
// that an answer which its picker has left to the agent goes on.)
func (s *stack) testPickerDies(t *testing.T) {
	var load struct {
		sync.Mutex
		running sync.WaitGroup
		stop    bool
		killed  time.Time
		done    int // after the kill
		lost    int // begun before it
		faults  []error
	}
	asked := func(q question) {
		began := time.Now()
		_, err := s.gateway.try(t.Context(), q)
		load.Lock()
		defer load.Unlock()
		switch {
		case load.killed.IsZero() && err != nil:
			load.faults = append(load.faults, fmt.Errorf("before the kill: %w", err))
		case err == nil && !load.killed.IsZero() && began.After(load.killed):
			load.done++
		case err == nil:
		case began.After(load.killed):
			load.faults = append(load.faults, fmt.Errorf("begun %v after the kill: %w", began.Sub(load.killed), err))
		default:
			t.Logf("lost: %v", err)
			load.lost++
		}
	}
	stopped := func() bool { load.Lock(); defer load.Unlock(); return load.stop }
	const clients = 12
	for c := range clients {
		load.running.Go(func() {
			for i := 0; !stopped(); i++ {
				asked(rules(s.model, fmt.Sprintf("quay %d", c), 10+i%20, 12).streamed())
			}
		})
	}
	waitFor(t, "load on both pickers", patience, func() error {
		for _, r := range s.pickers {
			if metric(t, r.page, "kvlane_streams")+metric(t, r.page, "kvlane_pool_bookings") == 0 {
				return fmt.Errorf("%s has nothing to do", r.name)
			}
		}
		return nil
	})
	load.Lock() // answers wait for it: none is judged in between
	s.kill(t, "--replica picker-0")
	// Only when it is gone are its sockets closed: on a busy machine a request that
	// begins between the signal and that moment may still be sent to it.
	s.process.awaitLine(t, "picker-0 ended (signal: killed); the others go on", patience)
	load.killed = time.Now()
	load.Unlock()
	waitFor(t, "requests after the kill", patience, func() error {
		load.Lock()
		defer load.Unlock()
		if load.done < 20*clients {
			return fmt.Errorf("%d so far", load.done)
		}
		return nil
	})
	load.Lock()
	load.stop = true
	load.Unlock()
	load.running.Wait()
	for _, err := range load.faults {
		t.Error(err)
	}
	t.Logf("%d requests were at the picker that was killed; %d after it were answered", load.lost, load.done)
	if load.lost > clients {
		t.Errorf("%d requests were lost", load.lost)
	}
	s.pickers = s.pickers[1:]
	s.admin, s.page = s.pickers[0].admin, s.pickers[0].page
	s.awaitAllIdle(t) // the dead one's bookings end, too
}

// awaitLogLine waits for a line with a text in a log, and wants only one.
func awaitLogLine(t *testing.T, path, text string) {
	t.Helper()
	n := 0
	waitFor(t, "line "+strconv.Quote(text), patience, func() error {
		if n = strings.Count(read(t, path), text); n == 0 {
			return fmt.Errorf("not in %s", filepath.Base(path))
		}
		return nil
	})
	if n != 1 {
		t.Errorf("%s has %d lines with %q", filepath.Base(path), n, text)
	}
}

// TestRedisComesLater: a picker without its Redis becomes ready and says what is
// wrong; when Redis and a worker come, it has them.
func TestRedisComesLater(t *testing.T) {
	f := newFamily(t)
	base := porttest.Take(t, 8)
	redis := "redis://" + addr(base)
	f.start(t, "picker", found.kvlane, "epp", "--redis", redis, "--ext-proc", addr(base+1), "--health", addr(base+2), "--admin", addr(base+3))
	page := newClient(t, "http://"+addr(base+3))
	waitFor(t, "the picker to be ready", patience, func() error {
		resp, err := page.send(t.Context(), http.MethodGet, "/healthz", http.NoBody)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	})
	if v := metric(t, page.url, "kvlane_log_connected"); v != 0 {
		t.Errorf("kvlane_log_connected is %g", v)
	}
	server, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("%v; run `make deps`", err)
	}
	f.start(t, "redis", server, "--port", strconv.Itoa(base), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", f.dir)
	f.start(t, "agent", found.kvlane, "agent", "--redis", redis, "--listen", addr(base+4), "--admin", "off", "--engine", "http://"+addr(base+5),
		"--kv-events", "tcp://"+addr(base+6), "--kv-replay", "tcp://"+addr(base+7), "--",
		found.kvlane, "engine", "sim", "--listen", addr(base+5), "--kv-events", "tcp://"+addr(base+6), "--kv-replay", "tcp://"+addr(base+7))
	(&stack{family: f, admin: epp.NewClient(addr(base + 3))}).awaitReady(t, 1)
	if v := metric(t, page.url, "kvlane_log_connected"); v != 1 {
		t.Errorf("kvlane_log_connected is %g", v)
	}
	awaitLogLine(t, filepath.Join(f.dir, "picker.log"), "the log is away")
	awaitLogLine(t, filepath.Join(f.dir, "picker.log"), "the log is back")
}
