package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/internal/verify"
	"github.com/kvlane/kvlane/kvindex"
)

// bareEngine is a simulated engine without an agent.
type bareEngine struct {
	worker
	process *process
	entry   string // in the collector's file
	args    []string
}

// startBare starts an engine on three ports from base on.
func (r *rig) startBare(t *testing.T, name string, base int) *bareEngine {
	t.Helper()
	at, events, replay := addr(base), "tcp://"+addr(base+1), "tcp://"+addr(base+2)
	e := &bareEngine{
		worker: worker{id: kvindex.WorkerID(at), engine: newClient(t, "http://"+at), engineAddr: at, replay: replay},
		entry:  fmt.Sprintf("- engine: http://%s\n  kv-events: [%s]\n  kv-replay: [%s]\n", at, events, replay),
		args:   []string{"engine", "sim", "--listen", at, "--kv-events", events, "--kv-replay", replay, "--speed", "20"},
	}
	e.process = r.start(t, name, found.kvlane, e.args...)
	return e
}

// kill ends the engine as a crash does and waits until it is gone.
func (e *bareEngine) kill(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(e.process.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = e.process.wait(t, grace) // it was killed
}

// TestCollector: two engines without agents behind a stock Envoy, watched from outside.
func TestCollector(t *testing.T) {
	ports := porttest.Take(t, 7)
	admin := addr(ports + 6)
	r := startRig(t, "picker:\n  timeScale: 20\n", addr(ports), addr(ports+3))
	engines := []*bareEngine{r.startBare(t, "engine-0", ports), r.startBare(t, "engine-1", ports+3)}
	file := filepath.Join(r.dir, "engines.yaml")
	list := func(some ...*bareEngine) {
		t.Helper()
		text := "# bare engines\n"
		for _, e := range some {
			text += e.entry
		}
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	list(engines[0])
	collector := r.start(t, "collector", found.kvlane, "collector", "--engines-file", file, "--log", r.log, "--admin", admin)
	r.awaitReady(t, 1)
	list(engines...)
	r.awaitReady(t, 2)
	s := &stack{family: r.family, admin: r.admin, page: r.page.url, gateway: r.gateway}
	s.model = s.gateway.models(t)[0]

	t.Run("Holder", func(t *testing.T) { s.testHolder(t) })
	t.Run("Load", func(t *testing.T) { r.testScraped(t, s.model) })
	t.Run("Verify", func(t *testing.T) { r.testVerifyBare(t) })
	top := t // what is started in a part serves the next ones too
	again := func() {
		for i, e := range engines {
			e.process = r.start(top, fmt.Sprintf("engine-%d-again", i), found.kvlane, e.args...)
		}
	}
	t.Run("Crash", func(t *testing.T) { r.testBareCrash(t, s, engines, again) })
	t.Run("Handover", func(t *testing.T) {
		// The engines go on without a collector, and with the next one.
		collector.Stop(grace)
		r.gateway.ask(t, question{Model: s.model, Prompt: tokens(7, 40), MaxTokens: 2})
		r.start(top, "collector-2", found.kvlane, "collector", "--engines-file", file, "--log", r.log, "--admin", admin)
		waitFor(t, "second collector", patience, func() error {
			resp, err := r.page.http.Get("http://" + admin + "/healthz")
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("status %d", resp.StatusCode)
			}
			return nil
		})
		r.testVerifyBare(t)
	})
	t.Run("Leave", func(t *testing.T) {
		list(engines[1])
		waitFor(t, "one worker", patience, func() error {
			endpoints, err := r.admin.Endpoints(t.Context())
			if err != nil || len(endpoints) != 1 {
				return fmt.Errorf("%+v, %w", endpoints, err)
			}
			return nil
		})
		if a := s.plan(t, r.gateway.ask(t, question{Model: s.model, Prompt: tokens(8, 40), MaxTokens: 2})); a.Plan.Decode.Worker != engines[1].id {
			t.Errorf("served by %s", a.Plan.Decode.Worker)
		}
	})
}

// tokens is a prompt of n token ids that no other seed shares a block with.
func tokens(seed, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(100 + (seed*131+i*7)%1000)
	}
	return ids
}

// testHolder: the next turn of a prompt of token ids goes to the engine that has the
// beginning, as the engine's own count shows.
func (s *stack) testHolder(t *testing.T) {
	for i := range 6 {
		prompt := tokens(i, 320)
		first := s.plan(t, s.gateway.ask(t, question{Model: s.model, Prompt: prompt, MaxTokens: 1}))
		next := question{Model: s.model, Prompt: append(prompt, tokens(50+i, 40)...), MaxTokens: 4}
		s.awaitCached(t, next, 320)
		a := s.gateway.ask(t, next.streamed())
		v := s.plan(t, a)
		if v.Plan.Decode.Worker != first.Plan.Decode.Worker || v.Plan.Cached != 320 || a.usage.Details.Cached != 320 {
			t.Errorf("turn %d: %s then %s, %d tokens predicted, %d found", i, first.Plan.Decode.Worker, v.Plan.Decode.Worker, v.Plan.Cached, a.usage.Details.Cached)
		}
	}
}

// testScraped: what runs is counted once, and goes back to nothing.
func (r *rig) testScraped(t *testing.T, model string) {
	requests := func() (float64, error) {
		endpoints, err := r.admin.Endpoints(t.Context())
		sum := 0.0
		for _, e := range endpoints {
			sum += float64(e.Requests)
		}
		return sum, err
	}
	const n = 6
	var streams sync.WaitGroup
	for i := range n {
		streams.Go(func() {
			q := question{Model: model, Prompt: tokens(20+i, 64), MaxTokens: 1500, IgnoreEOS: true}
			if _, err := r.gateway.try(t.Context(), q.streamed()); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, "all to run, counted once", patience, func() error {
		got, err := requests()
		running := 0.0
		for _, at := range r.engines(t) {
			running += metric(t, at, "vllm:num_requests_running")
		}
		if err != nil || got != n || running != n {
			return fmt.Errorf("%v requests counted, %v run, want %d of both (%w)", got, running, n, err)
		}
		return nil
	})
	streams.Wait()
	waitFor(t, "nothing to run", patience, func() error {
		if got, err := requests(); err != nil || got != 0 {
			return fmt.Errorf("%v requests counted, %w", got, err)
		}
		for _, name := range []string{"kvlane_open_bookings", "kvlane_pool_bookings", "kvlane_streams"} {
			if v := metric(t, r.page.url, name); v != 0 {
				return fmt.Errorf("%s is %g", name, v)
			}
		}
		return nil
	})
}

// engines are the URLs of the workers that the picker knows.
func (r *rig) engines(t *testing.T) []string {
	t.Helper()
	endpoints, err := r.admin.Endpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	urls := make([]string, 0, len(endpoints))
	for _, e := range endpoints {
		urls = append(urls, "http://"+e.Address)
	}
	return urls
}

// testVerifyBare: the index is what the engines hold.
func (r *rig) testVerifyBare(t *testing.T) {
	report, stderr, err := r.verify(t, strings.TrimPrefix(r.page.url, "http://"))
	if err != nil || len(report.Rows) != 2 {
		t.Fatalf("%v, %s, %+v", err, stderr, report)
	}
	for _, row := range report.Rows {
		if row.State != verify.Same {
			t.Errorf("%+v", row)
		}
	}
}

// testBareCrash: an engine that is killed is not ready and others serve; with the same
// address it comes back empty.
func (r *rig) testBareCrash(t *testing.T, s *stack, engines []*bareEngine, again func()) {
	prompt := question{Model: s.model, Prompt: tokens(90, 320), MaxTokens: 1}
	v := s.plan(t, r.gateway.ask(t, prompt))
	s.awaitCached(t, prompt, 304) // the last block is computed anew
	at := 0
	if v.Plan.Decode.Worker == engines[1].id {
		at = 1
	}
	victim, other := engines[at], engines[1-at]
	victim.kill(t)
	r.awaitReady(t, 1)
	if v := s.explain(t, prompt); v.Plan.Decode.Worker != other.id || v.Plan.Cached != 0 {
		t.Errorf("with %s gone: %+v", victim.id, v.Plan)
	}
	if v := s.plan(t, r.gateway.ask(t, prompt)); v.Plan.Decode.Worker != other.id {
		t.Errorf("with %s gone, %s served", victim.id, v.Plan.Decode.Worker)
	}
	other.kill(t)
	r.awaitReady(t, 0)
	r.gateway.do(t, http.MethodPost, prompt.path(), string(prompt.body(t))).wantError(t, http.StatusServiceUnavailable)
	again()
	r.awaitReady(t, 2)
	if v := s.explain(t, prompt); v.Plan.Cached != 0 {
		t.Errorf("credit for a life that is over: %+v", v.Plan)
	}
	if a := r.gateway.ask(t, prompt); a.usage.Details.Cached != 0 {
		t.Errorf("%d tokens were cached", a.usage.Details.Cached)
	}
	r.testVerifyBare(t)
}
