package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/epp"
	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/internal/up"
	"github.com/kvlane/kvlane/kvindex"
)

// stackStart bounds the start of a stack of race-detecting processes.
const stackStart = 90 * time.Second

// worker is one agent with its engine.
type worker struct {
	id            kvindex.WorkerID
	agent, engine client
	engineAddr    string
	admin         string // of the agent
	replay        string // the engine's replay socket
}

// replica is one picker.
type replica struct {
	admin *epp.Client
	page  string // the picker's admin page
	name  string
}

// stack is a running `kvlane up`.
type stack struct {
	*family
	process *process
	gateway client
	admin   *epp.Client // of the first picker
	page    string      // the first picker's admin page
	pickers []replica
	log     string // address of the log; empty if it is in Redis
	redis   string // URL of the stack's own Redis; empty for none
	model   string
	workers []worker
	ports   int        // the first
	count   int        // of ports
	top     *testing.T // the test that all others of the stack are part of
}

// startUp runs `kvlane up` with n engines and stops it at the end of the test as
// Ctrl-C does.
func startUp(t *testing.T, n int, args ...string) *stack {
	t.Helper()
	s := launch(t, n, args...)
	t.Cleanup(func() { s.stop(t) })
	s.model = s.gateway.models(t)[0]
	return s
}

// launch is startUp for tests that end the stack in their own way.
func launch(t *testing.T, n int, args ...string) *stack {
	t.Helper()
	o := up.Options{Engines: n}
	count := 6 + 5*n
	if slices.Contains(args, "--redis") {
		o.Redis = up.Embedded
		count += 3 // the second picker's
	}
	s := &stack{family: newFamily(t), count: count}
	s.ports = porttest.Take(t, s.count)
	args = append([]string{
		"up", "--no-demo", "--engines", strconv.Itoa(n), "--port-base", strconv.Itoa(s.ports), "--dir", s.dir,
	}, args...)
	s.process = s.run(t, "up", []string{"KVLANE_ENVOY=" + found.envoy}, found.kvlane, args...)
	t.Cleanup(func() { s.process.Stop(grace) }) // if the test does not get to its own end
	s.process.awaitLine(t, "ready in", stackStart)
	p := o.PortsFrom(s.ports)
	s.gateway = newClient(t, "http://"+addr(p.Envoy))
	for i, k := range p.Pickers {
		s.pickers = append(s.pickers, replica{epp.NewClient(addr(k.Admin)), "http://" + addr(k.Admin), fmt.Sprintf("picker-%d", i)})
	}
	s.admin, s.page = s.pickers[0].admin, s.pickers[0].page
	s.log = addr(p.Log)
	if p.Redis != 0 {
		s.log, s.redis = "", "redis://"+addr(p.Redis)
	}
	for _, e := range p.Engines {
		s.workers = append(s.workers, worker{
			id: kvindex.WorkerID(addr(e.Agent)), agent: newClient(t, "http://"+addr(e.Agent)),
			engine: newClient(t, "http://"+addr(e.Engine)), engineAddr: addr(e.Engine),
			admin: "http://" + addr(e.AgentAdmin), replay: "tcp://" + addr(e.Replay),
		})
	}
	return s
}

// stop ends the stack as Ctrl-C does and checks that it was clean.
func (s *stack) stop(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(s.process.PID(), syscall.SIGINT); err != nil {
		t.Errorf("interrupt up: %v", err)
	}
	if err := s.process.wait(t, grace); err != nil {
		t.Errorf("up after Ctrl-C: %v", err)
	}
	s.awaitGone(t)
}

// worker is the one that serves at an address.
func (s *stack) worker(t *testing.T, address string) *worker {
	t.Helper()
	i := slices.IndexFunc(s.workers, func(w worker) bool { return string(w.id) == address })
	if i < 0 {
		t.Fatalf("no worker serves at %q", address)
	}
	return &s.workers[i]
}

// plan is what the picker decided for an answer's request. It waits for the end
// of the request to be noted, which comes shortly after the client has it.
func (s *stack) plan(t *testing.T, a answer) epp.PlanView {
	t.Helper()
	var v epp.PlanView
	waitFor(t, "plan of "+a.request, patience, func() error {
		var err error
		if v, err = s.admin.Plan(t.Context(), a.request); err != nil {
			return err
		}
		if v.Outcome == "" {
			return fmt.Errorf("it is still under way: %+v", v)
		}
		return nil
	})
	return v
}

// explain is where a question would go now.
func (s *stack) explain(t *testing.T, q question) epp.PlanView {
	t.Helper()
	v, err := s.admin.Explain(t.Context(), q.path(), "", q.body(t))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// awaitCached waits until the picker knows that some worker holds at least n
// tokens of a question's prompt, and returns what it would do.
func (s *stack) awaitCached(t *testing.T, q question, n int) epp.PlanView {
	t.Helper()
	var v epp.PlanView
	waitFor(t, "KV events of an answer to reach the picker", patience, func() error {
		v = s.explain(t, q)
		best := 0
		for _, c := range v.Costs {
			best = max(best, c.Cached)
		}
		if best < n {
			return fmt.Errorf("%d tokens are known to be cached, want %d; plan %+v", best, n, v)
		}
		return nil
	})
	return v
}

// fault injects a fault into a worker's engine.
func (w *worker) fault(t *testing.T, body string) {
	t.Helper()
	if r := w.engine.do(t, http.MethodPost, "/sim/fault", body); r.status != http.StatusOK {
		t.Fatalf("fault %s: %s", body, r)
	}
}

// awaitReady waits until the picker sees n workers ready.
func (s *stack) awaitReady(t *testing.T, n int) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d ready workers", n), patience, func() error {
		endpoints, err := s.admin.Endpoints(t.Context())
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
			return fmt.Errorf("%d are ready", ready)
		}
		return nil
	})
}

// awaitIdle waits until nothing is under way anywhere.
func (s *stack) awaitIdle(t *testing.T) {
	t.Helper()
	waitFor(t, "all counts to return to zero", patience, func() error {
		for _, name := range []string{"kvlane_open_bookings", "kvlane_pool_bookings", "kvlane_streams", "kvlane_buffered_body_bytes", "kvlane_worker_requests"} {
			if v := metric(t, s.page, name); v != 0 {
				return fmt.Errorf("%s is %g", name, v)
			}
		}
		for _, w := range s.workers {
			for _, name := range []string{"vllm:num_requests_running", "vllm:num_requests_waiting"} {
				if v := metric(t, w.engine.url, name); v != 0 {
					return fmt.Errorf("%s of the engine of %s is %g", name, w.id, v)
				}
			}
			if v := metric(t, w.admin, "kvlane_agent_requests_in_flight"); v != 0 {
				return fmt.Errorf("requests in flight in the agent %s: %g", w.id, v)
			}
		}
		return nil
	})
}
