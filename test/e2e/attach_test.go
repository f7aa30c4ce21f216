package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/extproc"
	"github.com/kvlane/kvlane/internal/epp"
	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// bodyLimit is the picker's limit in these tests, bytes.
const bodyLimit = 1 << 16

// rig is a stock Envoy with a bootstrap from `kvlane envoy-config`, a picker
// with a configuration file, and workers that the test brings: how a team
// attaches kvlane to what it has.
type rig struct {
	*family
	gateway, page client
	admin         *epp.Client
	picker        *process
	log           string
}

// startRig starts picker and Envoy for workers at these addresses.
func startRig(t *testing.T, config string, workers ...string) *rig {
	t.Helper()
	r := &rig{family: newFamily(t)}
	base := porttest.Take(t, 6)
	r.log = addr(base + 2)
	file := filepath.Join(r.dir, "epp.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	r.picker = r.start(t, "picker", found.kvlane, "epp", "--config", file,
		"--ext-proc", addr(base), "--health", addr(base+1), "--log", r.log, "--admin", addr(base+3))
	bootstrap := filepath.Join(r.dir, "envoy.yaml")
	text := mustRun(t, "", "envoy-config", "--ext-proc", addr(base), "--listen", addr(base+4), "--admin", addr(base+5),
		"--endpoints", strings.Join(workers, ","))
	if err := os.WriteFile(bootstrap, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r.start(t, "envoy", found.envoy, "-c", bootstrap, "--disable-hot-restart", "--concurrency", "2")
	r.page, r.gateway = newClient(t, "http://"+addr(base+3)), newClient(t, "http://"+addr(base+4))
	r.admin = epp.NewClient(addr(base + 3))
	for _, c := range []client{{"http://" + addr(base+3), r.page.http}, {"http://" + addr(base+5), r.page.http}} {
		path := map[string]string{r.page.url: "/healthz"}[c.url]
		if path == "" {
			path = "/ready"
		}
		waitFor(t, c.url+path, patience, func() error {
			resp, err := c.send(t.Context(), http.MethodGet, path, http.NoBody)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("status %d", resp.StatusCode)
			}
			return nil
		})
	}
	return r
}

// awaitReady waits until the picker sees n workers ready.
func (r *rig) awaitReady(t *testing.T, n int) {
	t.Helper()
	(&stack{family: r.family, admin: r.admin}).awaitReady(t, n)
}

// recorded is one request as a server saw it.
type recorded struct {
	method, path string
	header       http.Header
	body         []byte
}

// recorder takes the place of an engine: it keeps what it is asked and answers
// as one with a small vocabulary would.
type recorder struct {
	addr string
	mu   sync.Mutex
	seen []recorded
}

func startRecorder(t *testing.T) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{addr: l.Addr().String()}
	server := &http.Server{Handler: r, ReadHeaderTimeout: patience}
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(l) }) // ends with Close
	t.Cleanup(func() { _ = server.Close(); served.Wait() })
	return r
}

// ServeHTTP keeps what is not the agent's own question.
func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // its sender sees the reset
	}
	if req.Header.Get("X-Request-Id") != "" {
		r.mu.Lock()
		r.seen = append(r.seen, recorded{req.Method, req.URL.Path, req.Header.Clone(), body})
		r.mu.Unlock()
	}
	switch req.URL.Path {
	case "/health":
	case "/metrics":
		fmt.Fprint(w, "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n")
	case "/v1/models":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"object":"list","data":[{"id":"base","object":"model"},{"id":"alias","object":"model"}]}`)
	case "/v1/completions":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"id":"cmpl-1","object":"text_completion","model":"base","choices":[{"index":0,"text":" y","finish_reason":"stop"}]}`)
	case "/v1/chat/completions":
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"base","choices":[{"index":0,"delta":{"content":" y"},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
	default:
		http.NotFound(w, req)
	}
}

// take returns what was recorded since the last call.
func (r *recorder) take() []recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.seen
	r.seen = nil
	return seen
}

// introduce says Hello for a worker that has no agent of ours, as anything that
// speaks the log's protocol may.
func (r *rig) introduce(t *testing.T, address string, ready bool) {
	t.Helper()
	c, err := memlog.Dial(r.log)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	now := uint64(time.Now().UnixNano())
	err = c.Append(t.Context(), []kvindex.Record{{
		Owner: kvindex.Owner{Worker: kvindex.WorkerID(address)}, Epoch: 1, Term: now, Kind: kvindex.KindHello,
		Hello: &kvindex.Hello{Address: address, Ready: ready, Model: "base", Served: []string{"base", "alias"}, BlockSize: 16, KVBlocks: 1000, LeaseMs: 600_000},
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// agent starts an agent that attaches to an engine.
func (r *rig) agent(t *testing.T, name, listen, engine string, args ...string) *process {
	t.Helper()
	port := porttest.Take(t, 1)
	return r.start(t, name, found.kvlane, append([]string{
		"agent", "--listen", listen, "--admin", addr(port), "--engine", "http://" + engine, "--log", r.log, "--kv-events", "", "--kv-replay", "",
	}, args...)...)
}

// TestOwnEnvoy: a worker of somebody else, which introduces itself, and an agent
// in front of somebody else's engine. Every second request goes to each.
func TestOwnEnvoy(t *testing.T) {
	bare, engine := startRecorder(t), startRecorder(t)
	behind := addr(porttest.Take(t, 1)) // of the agent
	r := startRig(t, fmt.Sprintf("picker:\n  policy: round-robin\nextproc:\n  maxBodyBytes: %d\n", bodyLimit), bare.addr, behind)
	r.introduce(t, bare.addr, true)
	r.agent(t, "agent", behind, engine.addr)
	r.awaitReady(t, 2)
	t.Run("Bytes", func(t *testing.T) { r.testBytes(t, bare, engine) })
	t.Run("TooLarge", r.testTooLarge)
	t.Run("Steering", func(t *testing.T) { r.testSteering(t, bare, engine, behind) })
}

// added is what an agent may put into a body.
var added = regexp.MustCompile(`\s*,\s*"return_token_ids"\s*:\s*true`)

// Cases C02 and C04: bodies arrive byte for byte; an agent adds one member.
func (r *rig) testBytes(t *testing.T, bare, engine *recorder) {
	for file, path := range map[string]string{
		"C02-bigint.json":         "/v1/completions",
		"C02-spelling.json":       "/v1/completions",
		"C04-unknown-fields.json": "/v1/chat/completions",
	} {
		body := read(t, filepath.Join(cases, file))
		for range 2 {
			if resp := r.gateway.do(t, http.MethodPost, path, body); resp.status != http.StatusOK {
				t.Errorf("%s: %s", file, resp)
			}
		}
		direct, behind := bare.take(), engine.take()
		if len(direct) != 1 || len(behind) != 1 {
			t.Fatalf("%s: %d requests at the worker, %d at the engine", file, len(direct), len(behind))
		}
		if got := string(direct[0].body); got != body {
			t.Errorf("%s at the worker:\n%q\nwant\n%q", file, got, body)
		}
		got := string(behind[0].body)
		if n := len(added.FindAllString(got, -1)); n != 1 || added.ReplaceAllString(got, "") != body {
			t.Errorf("%s at the engine (return_token_ids %d times):\n%q\nwant\n%q", file, n, got, body)
		}
		for _, seen := range slices.Concat(direct, behind) {
			if n := seen.header.Get("Content-Length"); n != "" && n != strconv.Itoa(len(seen.body)) {
				t.Errorf("%s: content-length %s of %d bytes", file, n, len(seen.body))
			}
		}
	}
}

// The picker's limit is the operator's.
func (r *rig) testTooLarge(t *testing.T) {
	text := strings.Repeat("word ", bodyLimit/5)
	body := string(question{Model: "base", Prompt: text}.body(t))
	r.gateway.do(t, http.MethodPost, "/v1/completions", body).wantError(t, http.StatusRequestEntityTooLarge)
	if n := metric(t, r.page.url, "kvlane_requests_total", `outcome="body-too-large"`); n != 1 {
		t.Errorf("counted %g times", n)
	}
	body = string(question{Model: "base", Prompt: text[:bodyLimit/2]}.body(t))
	if resp := r.gateway.do(t, http.MethodPost, "/v1/completions", body); resp.status != http.StatusOK {
		t.Errorf("half the limit: %s", resp)
	}
}

// trap is a server that nobody may connect to.
type trap struct {
	addr string
	hits atomic.Int32
}

func startTrap(t *testing.T) *trap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tr := &trap{addr: l.Addr().String()}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			tr.hits.Add(1)
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = l.Close(); accepting.Wait() })
	return tr
}

// forgery is one row of case C25.
type forgery struct {
	Name    string
	Headers [][2]string
}

// forgeries are the rows with the trap in place of every foreign address, and a
// worker of this test in place of the known one.
func forgeries(t *testing.T, tr *trap, worker string) []forgery {
	t.Helper()
	_, port, _ := net.SplitHostPort(tr.addr)
	replace := strings.NewReplacer(
		"192.0.2.99:22", tr.addr, "192.0.2.99:80", tr.addr, "192.0.2.99/", tr.addr+"/", "169.254.169.254:80", tr.addr,
		"192.0.2.20:22", tr.addr, "192.0.2.10:8000", worker, "192.0.2.20:8000", worker, "localhost:6379", "localhost:"+port)
	var out []forgery
	for line := range strings.Lines(read(t, filepath.Join(cases, "C25-headers.jsonl"))) {
		var f forgery
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatal(err)
		}
		if f.Headers[0][0] == "<each of them>" {
			value := f.Headers[0][1]
			f.Headers = nil
			for _, name := range extproc.RoutingHeaders() {
				f.Headers = append(f.Headers, [2]string{name, value})
			}
		}
		for i := range f.Headers {
			f.Headers[i][1] = replace.Replace(f.Headers[i][1])
		}
		out = append(out, f)
	}
	if len(out) != 17 {
		t.Fatalf("%d rows", len(out))
	}
	return out
}

func (f forgery) list() []string {
	var out []string
	for _, h := range f.Headers {
		out = append(out, h[0], h[1])
	}
	return out
}

// Case C25: what a client sends to steer goes nowhere and reaches nobody.
func (r *rig) testSteering(t *testing.T, bare, engine *recorder, agent string) {
	tr := startTrap(t)
	rows := forgeries(t, tr, bare.addr)
	q := question{Model: "base", Messages: []message{{"user", "hello"}}}.streamed()
	body := string(q.body(t))
	send := func(t *testing.T, f forgery, status int) {
		t.Helper()
		for _, resp := range []response{
			r.gateway.do(t, http.MethodPost, q.path(), body, f.list()...),
			r.gateway.do(t, http.MethodGet, "/v1/models", "", f.list()...),
		} {
			if resp.status != status {
				t.Errorf("want status %d, got %s", status, resp)
			}
		}
	}
	for _, f := range rows {
		t.Run(f.Name, func(t *testing.T) {
			bare.take()
			engine.take()
			send(t, f, http.StatusOK)
			send(t, f, http.StatusOK) // round robin: the other worker
			direct, behind := bare.take(), engine.take()
			if len(direct) != 2 || len(behind) != 2 {
				t.Fatalf("%d requests at the worker, %d at the engine", len(direct), len(behind))
			}
			for _, seen := range direct {
				wantUnforged(t, seen, tr)
				if got := seen.header.Values(extproc.HeaderDestination); len(got) != 1 || !strings.HasPrefix(got[0], bare.addr) {
					t.Errorf("destination %q, want %s first", got, bare.addr)
				}
			}
			for _, seen := range behind {
				wantUnforged(t, seen, tr)
				for name := range seen.header {
					if slices.Contains(extproc.RoutingHeaders(), strings.ToLower(name)) {
						t.Errorf("the engine got %s: %q", name, seen.header[name])
					}
				}
			}
		})
	}
	t.Run("past the gateway", func(t *testing.T) { // the agent itself refuses prefill targets that it does not know
		c := newClient(t, "http://"+agent)
		for _, f := range rows {
			if !strings.HasPrefix(f.Name, "prefill, ") {
				continue
			}
			c.do(t, http.MethodPost, q.path(), body, f.list()...).wantError(t, http.StatusForbidden)
		}
		if seen := engine.take(); len(seen) > 0 {
			t.Errorf("the engine was asked: %v", seen)
		}
	})
	t.Run("no worker", func(t *testing.T) {
		r.introduce(t, bare.addr, false)
		for _, pid := range r.processes("kvlane agent ") {
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
		r.awaitReady(t, 0)
		for _, f := range rows {
			send(t, f, http.StatusServiceUnavailable)
		}
	})
	t.Run("no picker", func(t *testing.T) {
		r.picker.Stop(grace)
		for _, f := range rows {
			send(t, f, http.StatusServiceUnavailable)
		}
	})
	if seen := slices.Concat(bare.take(), engine.take()); len(seen) > 0 {
		t.Errorf("without a picker or a ready worker %d requests went through: %v", len(seen), seen[0])
	}
	if n := tr.hits.Load(); n != 0 {
		t.Errorf("%d connections to the forged address", n)
	}
}

// wantUnforged wants no trace of the trap's address in what a server saw.
func wantUnforged(t *testing.T, seen recorded, tr *trap) {
	t.Helper()
	_, port, _ := net.SplitHostPort(tr.addr)
	for name, values := range seen.header {
		for _, v := range values {
			if strings.Contains(v, ":"+port) {
				t.Errorf("%s %s: %s is %q", seen.method, seen.path, name, v)
			}
		}
	}
}

// TestLostPrefill: a prefill worker that dies without a word is not missed by
// the requests that were sent its way.
func TestLostPrefill(t *testing.T) {
	base := porttest.Take(t, 10)
	decode, prefill := addr(base), addr(base+1)
	r := startRig(t, "picker:\n  timeScale: 20\n  policy: round-robin\n", decode, prefill)
	var victim *process
	for i, role := range []string{"decode", "prefill"} {
		engine, events, replay := addr(base+2+i), "tcp://"+addr(base+4+i), "tcp://"+addr(base+6+i)
		p := r.start(t, role, found.kvlane, "agent", "--listen", addr(base+i), "--admin", addr(base+8+i), "--engine", "http://"+engine,
			"--log", r.log, "--role", role, "--kv-events", events, "--kv-replay", replay, "--deployment", "qwen3-32b-bf16-2xh100",
			"--", found.kvlane, "engine", "sim", "--listen", engine, "--speed", "20", "--kv-events", events, "--kv-replay", replay)
		if role == "prefill" {
			victim = p
		}
	}
	r.awaitReady(t, 2)
	page := "http://" + addr(base+8)
	model := r.gateway.models(t)[0]
	ask := func(name string) answer {
		t.Helper()
		q := rules(model, name, 60, 12)
		a := r.gateway.ask(t, q)
		if direct := newClient(t, "http://"+addr(base+2)).ask(t, q); a.text != direct.text {
			t.Errorf("%s: %q, from the engine itself %q", name, a.text, direct.text)
		}
		return a
	}
	ask("abbey") // the comparison policies use prefill workers wherever there are any
	if n := metric(t, page, "kvlane_agent_prefill_total", `result="ok"`); n != 1 {
		t.Fatalf("%g prefill legs", n)
	}
	if err := syscall.Kill(victim.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-victim.Done()
	a := ask("bridge") // the picker does not know yet
	plan, err := r.admin.Plan(t.Context(), a.request)
	if err != nil || plan.Prefill == nil || plan.Prefill.Address != prefill {
		t.Errorf("plan %+v, %v; want it prefilled by %s", plan, err, prefill)
	}
	if n := metric(t, page, "kvlane_agent_prefill_total", `result="fallback"`); n != 1 {
		t.Errorf("%g fallbacks were counted", n)
	}
	r.awaitReady(t, 1)
	a = ask("castle")
	if plan, err = r.admin.Plan(t.Context(), a.request); err != nil || plan.Prefill != nil {
		t.Errorf("plan %+v, %v; want no prefill leg", plan, err)
	}
}
