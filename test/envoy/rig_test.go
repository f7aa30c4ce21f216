package envoy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"

	"github.com/kvlane/kvlane/extproc"
	"github.com/kvlane/kvlane/internal/envoyconf"
	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// binary is KVLANE_ENVOY, the PATH's envoy, or the one that `make deps` installed.
func binary(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("KVLANE_ENVOY"); p != "" {
		return p
	}
	if p, err := exec.LookPath("envoy"); err == nil {
		return p
	}
	p, err := filepath.Abs("../../.tools/envoy/bin/envoy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		t.Fatal("no Envoy found: run `make deps`, or name one in KVLANE_ENVOY")
	}
	return p
}

// rig is Envoy with a picker and workers behind it.
type rig struct {
	t       *testing.T
	url     string // of the listener
	admin   string // of Envoy
	pool    *picker.Pool
	server  *extproc.Server
	metrics *extproc.Metrics
	grpc    *grpc.Server
	workers []*fakeWorker
}

// fakeWorker records what reaches it and answers with handle.
type fakeWorker struct {
	*httptest.Server

	mu     sync.Mutex
	seen   []seen
	handle http.HandlerFunc
}

// seen is one request as the worker got it, body and all.
type seen struct {
	method, path, sum string
	size              int
	header, trailer   http.Header
	length            int64
}

func (w *fakeWorker) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	h := sha256.New()
	n, err := io.Copy(h, r.Body)
	if err != nil {
		return // the client left
	}
	w.mu.Lock()
	w.seen = append(w.seen, seen{method: r.Method, path: r.URL.Path, sum: hex.EncodeToString(h.Sum(nil)), size: int(n),
		header: r.Header.Clone(), trailer: r.Trailer.Clone(), length: r.ContentLength})
	handle := w.handle
	w.mu.Unlock()
	handle(rw, r)
}

func (w *fakeWorker) requests() []seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]seen(nil), w.seen...)
}

func (w *fakeWorker) answer(h http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handle = h
}

// settings may be changed before a rig starts.
type settings struct {
	envoy   envoyconf.Options
	extproc extproc.Config
	picker  picker.Config
	// rewrites change models; bootstrap, if set, changes what Envoy is started with.
	rewrites  []picker.Rewrite
	bootstrap func(string) string
	// dead are addresses that are members of the pool and of Envoy's cluster,
	// where nobody listens.
	dead []string
}

// start brings up n workers, a picker and Envoy.
func start(t *testing.T, n int, change func(*settings)) *rig {
	t.Helper()
	s := settings{envoy: envoyconf.Default(), extproc: extproc.Default(), picker: picker.DefaultConfig()}
	s.envoy.StripHeaders = extproc.RoutingHeaders()
	s.extproc.LeaveStreaming = false // no agent reports the ends of answers here
	s.envoy.Listen, s.envoy.Admin = porttest.Address(t), porttest.Address(t)
	r := &rig{t: t, url: "http://" + s.envoy.Listen, admin: "http://" + s.envoy.Admin}
	for range n {
		w := &fakeWorker{handle: func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "ok") }}
		w.Server = httptest.NewServer(w)
		t.Cleanup(w.Close)
		r.workers = append(r.workers, w)
		s.envoy.Endpoints = append(s.envoy.Endpoints, w.Listener.Addr().String())
	}
	if change != nil {
		change(&s)
	}
	s.envoy.Endpoints = append(s.envoy.Endpoints, s.dead...)
	s.envoy.ExtProc = []string{r.startPicker(s)}
	for i, a := range s.envoy.Endpoints {
		r.join(i, a)
	}
	r.startEnvoy(s)
	return r
}

func (r *rig) startPicker(s settings) string {
	r.t.Helper()
	r.pool = picker.NewPool(s.picker, timing.Known())
	r.metrics = extproc.NewMetrics(prometheus.NewRegistry())
	router := extproc.NewRouter(kvindex.NewIndex(), kvindex.NewPrefixMap(1<<20), r.pool, "secret")
	rewrites, err := picker.NewRewrites(s.rewrites)
	if err != nil {
		r.t.Fatal(err)
	}
	router.UseRewrites(rewrites, extproc.NewRewriteMetrics(nil, &rewrites))
	if r.server, err = extproc.New(s.extproc, router, r.metrics, slog.New(slog.DiscardHandler)); err != nil {
		r.t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(r.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.grpc = grpc.NewServer(s.extproc.ServerOptions()...)
	r.server.Register(r.grpc)
	served, ran := make(chan error, 1), make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() { served <- r.grpc.Serve(l) }()
	go func() { ran <- r.server.Run(ctx) }()
	r.t.Cleanup(func() {
		r.grpc.Stop()
		stop()
		if err := <-ran; err != nil {
			r.t.Error(err)
		}
		if err := <-served; err != nil {
			r.t.Error(err)
		}
	})
	return l.Addr().String()
}

// join makes an address a ready member of the pool.
func (r *rig) join(i int, address string) {
	r.pool.Apply(&kvindex.Record{
		Owner: kvindex.Owner{Worker: kvindex.WorkerID(fmt.Sprintf("w%d", i))}, Epoch: 1, Term: 1, Kind: kvindex.KindHello,
		Hello: &kvindex.Hello{Address: address, Ready: true, Model: "base", Served: []string{"base"}, BlockSize: 16, LeaseMs: 3_600_000},
	}, time.Now())
}

func (r *rig) startEnvoy(s settings) {
	r.t.Helper()
	b, err := envoyconf.Render(s.envoy)
	if err != nil {
		r.t.Fatal(err)
	}
	if s.bootstrap != nil {
		b = []byte(s.bootstrap(string(b)))
	}
	file := filepath.Join(r.t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		r.t.Fatal(err)
	}
	var log strings.Builder
	cmd := exec.Command(binary(r.t), "-c", file, "--concurrency", "1", "--log-level", "error", "--disable-hot-restart")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if r.t.Failed() {
			r.t.Logf("envoy:\n%s", log.String())
		}
	})
	r.eventually("Envoy answers on its admin page", func() bool {
		resp, err := http.Get(r.admin + "/ready")
		if err != nil {
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode == http.StatusOK
	})
}

// eventually asks until the condition holds, for at most 20 s.
func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-tick.C {
		if ok() {
			return
		}
	}
	r.t.Fatalf("not within 20s: %s", what)
}

// idle waits until no booking is left in the picker.
func (r *rig) idle() {
	r.t.Helper()
	r.eventually("all bookings are closed", func() bool { return r.pool.Stats(time.Now()).Bookings == 0 })
}

// stats reads Envoy's counters whose names contain part.
func (r *rig) stats(part string) map[string]string {
	r.t.Helper()
	resp, err := http.Get(r.admin + "/stats?filter=" + part)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	out := make(map[string]string)
	for line := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), ": ")
		out[k] = v
	}
	return out
}

// do sends a request and reads the whole answer.
func (r *rig) do(req *http.Request) (*http.Response, []byte) {
	r.t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp, b
}

func (r *rig) request(method, path string, body io.Reader) *http.Request {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, body)
	if err != nil {
		r.t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req
}

// completion is a body of about size bytes.
func completion(size int) []byte {
	return []byte(`{"model":"base","prompt":"` + strings.Repeat("a", size) + `"}`)
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// value is a counter's or a gauge's.
func value(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

// serve has a worker serve another model.
func (r *rig) serve(i int, model string) {
	r.pool.Apply(&kvindex.Record{
		Owner: kvindex.Owner{Worker: kvindex.WorkerID(fmt.Sprintf("w%d", i))}, Epoch: 1, Term: 1, Kind: kvindex.KindHello,
		Hello: &kvindex.Hello{Address: r.workers[i].Listener.Addr().String(), Ready: true, Model: model, Served: []string{model}, BlockSize: 16, LeaseMs: 3_600_000},
	}, time.Now())
}
