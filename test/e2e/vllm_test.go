//go:build engines

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/epp"
	"github.com/kvlane/kvlane/internal/porttest"
)

const (
	// vllmStart bounds the start of real engines: 20 to 75 s on two free cores.
	vllmStart = 6 * time.Minute
	// vllmBlock is the smallest block of vLLM's CPU engine, tokens.
	vllmBlock = 32
	vllmName  = "tiny"
)

// vllm is a real engine with its agent.
type vllm struct {
	rig    *rig
	top    *testing.T // the test that the engine lasts for
	name   string
	engine client
	agent  client
	admin  string // address of the agent's pages
	port   int    // of the engine; events, replay and NIXL have ports after it
	args   []string
	env    []string
	runs   int
	proc   *process
	beside *process
}

// launch starts the engine at its port.
func (v *vllm) launch(t *testing.T) {
	t.Helper()
	v.runs++
	folder := filepath.Join(root, ".tools", "vllm")
	model, err := filepath.Abs(filepath.Join(folder, "model"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(model); err != nil {
		t.Fatalf("no vLLM (%v); run scripts/tool vllm", err)
	}
	events := fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d","topic":"kv@%s@%s"}`,
		v.port+2, v.port+4, addr(v.port), vllmName)
	args := append([]string{
		"serve", model, "--served-model-name", vllmName, "--host", "127.0.0.1", "--port", fmt.Sprint(v.port), "--enforce-eager",
		"--block-size", fmt.Sprint(vllmBlock), "--max-model-len", "4096", "--enable-prefix-caching", "--enable-prompt-tokens-details",
		"--dtype", "float32", "--kv-events-config", events,
	}, v.args...)
	env := append([]string{"VLLM_CPU_KVCACHE_SPACE=1", "OMP_NUM_THREADS=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1"}, v.env...)
	v.proc = v.rig.run(t, fmt.Sprintf("%s-%d", v.name, v.runs), env, filepath.Join(folder, "bin", "vllm"), args...)
	proc := v.proc
	v.top.Cleanup(func() { proc.Stop(grace) })
}

// startVLLM starts engines, their agents, a picker and Envoy, and waits until
// all are ready.
func startVLLM(t *testing.T, config string, engines ...*vllm) *rig {
	t.Helper()
	var agents []string
	for range engines {
		agents = append(agents, addr(porttest.Take(t, 1)))
	}
	r := startRig(t, config, agents...)
	for i, v := range engines {
		v.rig, v.top, v.port = r, t, porttest.Take(t, 8)
		v.admin = addr(porttest.Take(t, 1))
		v.engine, v.agent = newClient(t, "http://"+addr(v.port)), newClient(t, "http://"+agents[i])
		for j := range v.env {
			v.env[j] = strings.ReplaceAll(v.env[j], "NIXLPORT", fmt.Sprint(v.port+6))
		}
		v.launch(t)
		role := "aggregated"
		if _, r, ok := strings.Cut(v.name, "-"); ok {
			role = r
		}
		v.beside = r.start(t, "agent-"+v.name, found.kvlane, "agent", "--listen", agents[i], "--admin", v.admin,
			"--engine", v.engine.url, "--log", r.log, "--role", role, "--deployment", "qwen3-8b-bf16-1xh100",
			"--kv-events", fmt.Sprintf("tcp://127.0.0.1:%d", v.port+2), "--kv-replay", fmt.Sprintf("tcp://127.0.0.1:%d", v.port+4))
	}
	r.awaitEngines(t, len(engines))
	return r
}

// awaitEngines waits until the picker sees n workers ready.
func (r *rig) awaitEngines(t *testing.T, n int) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d real engines", n), vllmStart, func() error {
		endpoints, err := r.admin.Endpoints(t.Context())
		if err != nil {
			return err
		}
		ready := 0
		for _, e := range endpoints {
			if e.Ready {
				ready++
			}
		}
		if ready != n {
			return fmt.Errorf("%d of %d are ready", ready, len(endpoints))
		}
		return nil
	})
}

func (r *rig) stack() *stack { return &stack{family: r.family, admin: r.admin, gateway: r.gateway} }

func (r *rig) verifyIndex(t *testing.T) {
	t.Helper()
	waitFor(t, "an index that verifies", patience, func() error {
		out, stderr, err := command(t, "", "index", "verify", "--admin", strings.TrimPrefix(r.page.url, "http://"))
		if err != nil {
			return fmt.Errorf("%w: %s%s", err, out, stderr)
		}
		return nil
	})
}

// TestVLLM: two real vLLM engines behind the stock Envoy.
func TestVLLM(t *testing.T) {
	engines := []*vllm{{name: "vllm0"}, {name: "vllm1"}}
	r := startVLLM(t, "", engines...)
	t.Run("Conversations", func(t *testing.T) { r.testConversations(t) })
	t.Run("Prediction", func(t *testing.T) { r.testPrediction(t) })
	t.Run("Aborts", func(t *testing.T) { r.testAborts(t, engines) })
	t.Run("Restart", func(t *testing.T) { r.testRestart(t, engines[0]) })
	t.Run("Drain", func(t *testing.T) { r.testDrain(t, engines[1]) })
}

// testConversations: a follow-up goes to the engine that holds it, and vLLM's own
// count of cached tokens is the prediction, give or take a chunk.
func (r *rig) testConversations(t *testing.T) {
	type talk struct {
		q    question
		at   string
		held int // tokens that are known to be cached
	}
	talks := make([]talk, 6)
	for i := range talks {
		// Conversations in pairs share a prefix.
		talks[i].q = rules(vllmName, fmt.Sprintf("house %d", i/2), 20, 24)
		talks[i].q.IgnoreEOS = true
		talks[i].q.Messages[1].Content += fmt.Sprintf(" Say it %d times.", i)
	}
	s := r.stack()
	used := map[string]bool{}
	var errs []float64
	for turn := range 4 {
		for i := range talks {
			d := &talks[i]
			if turn == 0 && i%2 == 1 {
				d.held = 256 // of what the one before began with
			}
			if d.held > 0 {
				s.awaitCached(t, d.q, d.held)
			}
			q := d.q
			if turn%2 == 1 {
				q = q.streamed()
			}
			began := time.Now()
			a := r.gateway.ask(t, q)
			took := time.Since(began)
			plan := s.plan(t, a)
			used[plan.Served] = true
			if d.at != "" && plan.Served != d.at {
				t.Errorf("talk %d, turn %d went to %s, not to %s that holds it: %+v", i, turn, plan.Served, d.at, plan)
			}
			// One block more: the answer's ids are learned for the next turn, and an engine of
			// random weights writes what its tokenizer, reading it again, cuts otherwise.
			if got := a.usage.Details.Cached; plan.Cached-got > vllmBlock || got-plan.Cached > 2*vllmBlock {
				t.Errorf("talk %d, turn %d: %d tokens predicted to be cached, vLLM reports %d", i, turn, plan.Cached, got)
			}
			errs = append(errs, float64(plan.Cached-a.usage.Details.Cached))
			t.Logf("talk %d, turn %d: %d prompt tokens, %d predicted cached, %d reported, whole answer %v", i, turn, a.usage.Prompt, plan.Cached, a.usage.Details.Cached, took)
			d.at, d.held = plan.Served, max(1, a.usage.Total-3*vllmBlock)
			d.q.Messages = append(slices.Clone(d.q.Messages), message{"assistant", a.text}, message{"user", fmt.Sprintf("And number %d?", turn)})
		}
	}
	if len(used) != 2 {
		t.Errorf("all conversations went to %v", used)
	}
	slices.Sort(errs)
	t.Logf("predicted less reported cached tokens, least to greatest: %v", errs)
	r.verifyIndex(t)
}

// testPrediction shows how well the time to first token is predicted on a real engine.
// The constants that the picker starts from are those of a GPU and another model, so
// the later requests show what it has learned. Nothing is asserted of times.
func (r *rig) testPrediction(t *testing.T) {
	const n = 120
	s := r.stack()
	var errs []float64
	for i := range n {
		q := question{Model: vllmName, Prompt: story(fmt.Sprintf("lot %d", i), 3+i*7%60), MaxTokens: 4, IgnoreEOS: true}.streamed()
		a := r.gateway.ask(t, q)
		var plan epp.PlanView
		waitFor(t, "the worker's report of "+a.request, patience, func() error {
			if plan = s.plan(t, a); plan.Reported == nil {
				return fmt.Errorf("plan %+v", plan)
			}
			return nil
		})
		errs = append(errs, math.Abs(plan.TTFTMs-plan.Reported.TTFTMs)/plan.Reported.TTFTMs)
	}
	for _, part := range [][]float64{errs[:len(errs)/3], errs[len(errs)/3 : 2*len(errs)/3], errs[2*len(errs)/3:]} {
		sorted := slices.Sorted(slices.Values(part))
		t.Logf("%d predictions of the time to first token: off by %.0f %% in the median, %.0f %% at p90",
			len(sorted), 100*sorted[len(sorted)/2], 100*sorted[len(sorted)*9/10])
	}
}

// testAborts: what clients give up leaves the engines.
func (r *rig) testAborts(t *testing.T, engines []*vllm) {
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i := range 12 {
		q := question{Model: vllmName, Prompt: fmt.Sprintf("Count to %d:", i), MaxTokens: 3000, IgnoreEOS: true, Stream: i%2 == 0}
		clients.Go(func() {
			if _, err := r.gateway.try(ctx, q); !errors.Is(err, context.Canceled) {
				t.Errorf("an answer of 3,000 tokens ended before its client left: %v", err)
			}
		})
	}
	requests := func(t *testing.T) (sum float64) {
		t.Helper()
		for _, v := range engines {
			sum += metric(t, v.engine.url, "vllm:num_requests_running") + metric(t, v.engine.url, "vllm:num_requests_waiting")
		}
		return sum
	}
	waitFor(t, "all requests to reach the engines", time.Minute, func() error {
		if n := requests(t); n < 12 {
			return fmt.Errorf("%g are there", n)
		}
		return nil
	})
	cancel()
	clients.Wait()
	waitFor(t, "the engines to be idle", time.Minute, func() error {
		if n := requests(t); n != 0 {
			return fmt.Errorf("%g requests are left", n)
		}
		return nil
	})
}

// testRestart: an engine that was killed and started again at its address has no
// credit for what it had.
func (r *rig) testRestart(t *testing.T, v *vllm) {
	s := r.stack()
	q := rules(vllmName, "mill", 25, 4)
	if _, err := v.agent.try(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	s.awaitCached(t, q, 128)
	v.proc.Stop(0)
	r.awaitEngines(t, 1)
	v.launch(t)
	r.awaitEngines(t, 2)
	address := strings.TrimPrefix(v.agent.url, "http://")
	for _, c := range s.explain(t, q).Costs {
		if c.Target.Address == address && c.Cached != 0 {
			t.Errorf("after the restart %s has credit for %d tokens", address, c.Cached)
		}
	}
	again, err := v.agent.try(t.Context(), q)
	if err != nil || again.usage.Details.Cached != 0 {
		t.Errorf("after the restart: %v, %d tokens cached", err, again.usage.Details.Cached)
	}
	s.awaitCached(t, q, 128)
	r.verifyIndex(t)
}

// testDrain: an agent that is told to end while requests run loses none of them.
func (r *rig) testDrain(t *testing.T, v *vllm) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients sync.WaitGroup
	var mu sync.Mutex
	done := 0
	for i := range 6 {
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				q := question{Model: vllmName, Prompt: fmt.Sprintf("Client %d asks %d:", i, n), MaxTokens: 40, IgnoreEOS: true, Stream: n%2 == 0}
				if _, err := r.gateway.try(t.Context(), q); err != nil {
					t.Errorf("client %d, request %d: %v", i, n, err)
					return
				}
				mu.Lock()
				done++
				mu.Unlock()
			}
		})
	}
	count := func() int { mu.Lock(); defer mu.Unlock(); return done }
	waitFor(t, "some answers", time.Minute, func() error {
		if n := count(); n < 12 {
			return fmt.Errorf("%d answers", n)
		}
		return nil
	})
	if err := syscall.Kill(v.beside.PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := v.beside.wait(t, time.Minute); err != nil {
		t.Errorf("the agent after SIGTERM: %v", err)
	}
	before := count()
	waitFor(t, "answers after the drain", time.Minute, func() error {
		if n := count(); n < before+12 {
			return fmt.Errorf("%d more answers", n-before)
		}
		return nil
	})
	cancel()
	clients.Wait()
}

// TestVLLMPrefillDecode: prefill and decode on two real engines, KV over NIXL. The
// answers are those of one engine.
func TestVLLMPrefillDecode(t *testing.T) {
	side := func(role string) *vllm {
		kv := map[string]string{"prefill": "kv_producer", "decode": "kv_consumer"}[role]
		return &vllm{
			name: "vllm-" + role,
			args: []string{"--kv-transfer-config", fmt.Sprintf(`{"kv_connector":"NixlConnector","kv_role":%q,"kv_buffer_device":"cpu"}`, kv)},
			env:  []string{"VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT=NIXLPORT", "UCX_TLS=tcp,self", "UCX_MEM_MMAP_HOOK_MODE=none"},
		}
	}
	prefill, decode := side("prefill"), side("decode")
	r := startVLLM(t, "extproc:\n  allowPolicyHeader: true\n", prefill, decode)
	s := r.stack()
	for i := range 6 {
		q := rules(vllmName, fmt.Sprintf("fort %d", i), 25, 16)
		q.IgnoreEOS, q.Temperature = true, new(float64)
		want, err := prefill.engine.try(t.Context(), q) // alone, on the engine that prefills
		if err != nil {
			t.Fatal(err)
		}
		if r := prefill.engine.do(t, http.MethodGet, "/health", ""); r.status != http.StatusOK {
			t.Fatal(r)
		}
		if i%2 == 1 {
			q = q.streamed()
		}
		// Any policy but kv prefills elsewhere whenever it can.
		a := r.gateway.ask(t, q, "x-kvlane-policy", "round-robin")
		plan := s.plan(t, a)
		if plan.Prefill == nil {
			t.Fatalf("request %d was not prefilled elsewhere: %+v", i, plan)
		}
		if a.text != want.text || a.usage.Completion != want.usage.Completion {
			t.Errorf("request %d: %q, alone %q", i, a.text, want.text)
		}
	}
	if n := metric(t, "http://"+decode.admin, "kvlane_agent_prefill_total", `result="ok"`); n != 6 {
		t.Errorf("%g prefills elsewhere, want 6", n)
	}
}
