package workers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// patience bounds every wait of a test; nothing takes that long unless it hangs.
const patience = 20 * time.Second

// casesDir holds the inputs of the field cases.
const casesDir = "../test/data/cases/"

// fakeEngine is a scripted engine's HTTP side.
type fakeEngine struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	answer   http.HandlerFunc // for everything that is not about the engine itself
	down     bool
	started  float64 // process_start_time_seconds
	seen     []seenRequest
	models   string
	inFlight int
	aborted  int
}

// seenRequest is what reached the engine.
type seenRequest struct {
	method, path string
	header       http.Header
	body         string
}

func newFakeEngine(t *testing.T) *fakeEngine {
	e := &fakeEngine{
		t: t, started: 1_700_000_000,
		models: `{"object":"list","data":[{"id":"base","parent":null},{"id":"ad","parent":"base"}]}`,
	}
	e.Server = httptest.NewServer(http.HandlerFunc(e.serve))
	t.Cleanup(e.Close)
	return e
}

func (e *fakeEngine) serve(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	down, answer, started, models := e.down, e.answer, e.started, e.models
	e.mu.Unlock()
	if down {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	switch r.URL.Path {
	case "/health":
		return
	case "/v1/models":
		io.WriteString(w, models)
		return
	case "/metrics":
		fmt.Fprintf(w, "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n")
		fmt.Fprintf(w, "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\nprocess_start_time_seconds %f\n", started)
		return
	}
	body, _ := io.ReadAll(r.Body)
	e.mu.Lock()
	e.seen = append(e.seen, seenRequest{r.Method, r.URL.RequestURI(), r.Header.Clone(), string(body)})
	e.inFlight++
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.inFlight--
		if r.Context().Err() != nil {
			e.aborted++
		}
		e.mu.Unlock()
	}()
	if answer == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	answer(w, r)
}

func (e *fakeEngine) answers(h http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = h
}

// answersJSON makes the engine answer every request with this.
func (e *fakeEngine) answersJSON(status int, body string) {
	e.answers(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, body)
	})
}

func (e *fakeEngine) requests() []seenRequest {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]seenRequest(nil), e.seen...)
}

// last is the newest request that reached the engine.
func (e *fakeEngine) last() seenRequest {
	e.t.Helper()
	all := e.requests()
	if len(all) == 0 {
		e.t.Fatal("nothing reached the engine")
	}
	return all[len(all)-1]
}

// faultyLog is a log that can be taken away or exchanged for an empty one.
type faultyLog struct {
	mu    sync.Mutex
	inner kvindex.Log
	fault error
	calls chan struct{} // one signal is kept per refused Append
}

var errAway = errors.New("the log is away")

func newFaultyLog(inner kvindex.Log) *faultyLog {
	return &faultyLog{inner: inner, calls: make(chan struct{}, 1)}
}

func (l *faultyLog) set(inner kvindex.Log, fault error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inner, l.fault = inner, fault
}

func (l *faultyLog) now() (kvindex.Log, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inner, l.fault
}

func (l *faultyLog) Append(ctx context.Context, records []kvindex.Record) error {
	inner, fault := l.now()
	if fault != nil {
		select {
		case l.calls <- struct{}{}:
		default:
		}
		return fault
	}
	return inner.Append(ctx, records)
}

func (l *faultyLog) CheckpointDue(w kvindex.WorkerID) bool {
	inner, fault := l.now()
	return fault == nil && inner.CheckpointDue(w)
}

func (l *faultyLog) Checkpoint(ctx context.Context, records []kvindex.Record) error {
	inner, fault := l.now()
	if fault != nil {
		return fault
	}
	return inner.Checkpoint(ctx, records)
}

func (l *faultyLog) Tail(ctx context.Context, apply func([]kvindex.Record) error) error {
	inner, _ := l.now()
	return inner.Tail(ctx, apply)
}

func (l *faultyLog) Members(ctx context.Context, apply func([]kvindex.Record) error) error {
	inner, _ := l.now()
	return inner.Members(ctx, apply)
}

// watch follows a log: into an index, and record by record.
type watch struct {
	t     *testing.T
	index *kvindex.Index
	texts *kvindex.PrefixMap

	mu      sync.Mutex
	news    chan struct{} // closed and replaced at each batch
	records []kvindex.Record
	refused []error
}

func newWatch(t *testing.T, l kvindex.Log) *watch {
	w := &watch{t: t, index: kvindex.NewIndex(), texts: kvindex.NewPrefixMap(1 << 24), news: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.Tail(ctx, w.apply) // ends with the test
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *watch) apply(records []kvindex.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range records {
		r := &records[i]
		if err := w.index.Apply(r); err != nil {
			w.refused = append(w.refused, err)
		}
		if r.Kind == kvindex.KindLearned {
			w.texts.Learn(r.Learned)
		}
		w.records = append(w.records, *r)
	}
	close(w.news)
	w.news = make(chan struct{})
	return nil
}

// await returns when cond holds. cond sees all records so far and is asked again
// after each batch.
func (w *watch) await(what string, cond func([]kvindex.Record) bool) {
	w.t.Helper()
	timeout := time.After(patience)
	for {
		w.mu.Lock()
		ok, news := cond(w.records), w.news
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-news:
		case <-timeout:
			w.t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// has reports whether a record meets a condition.
func has(records []kvindex.Record, cond func(*kvindex.Record) bool) bool {
	for i := range records {
		if cond(&records[i]) {
			return true
		}
	}
	return false
}

// lastOf is the newest record of a kind, nil if there is none.
func lastOf(records []kvindex.Record, k kvindex.Kind) *kvindex.Record {
	for i := len(records) - 1; i >= 0; i-- {
		if records[i].Kind == k {
			return &records[i]
		}
	}
	return nil
}

func (w *watch) awaitReady(worker kvindex.WorkerID, ready bool) {
	w.t.Helper()
	w.await(fmt.Sprintf("%s ready=%v", worker, ready), func(rs []kvindex.Record) bool {
		for _, r := range slices.Backward(rs) {
			if r.Kind == kvindex.KindHello && r.Owner.Worker == worker {
				return r.Hello.Ready == ready
			}
		}
		return false
	})
}

// running is an agent under test.
type running struct {
	*Agent
	t    *testing.T
	url  string
	reg  *prometheus.Registry
	stop func() error // ends the agent and returns what Run returned
}

type quietWriter struct{ t *testing.T }

func (w quietWriter) Write(b []byte) (int, error) {
	if testing.Verbose() {
		w.t.Log(strings.TrimRight(string(b), "\n"))
	}
	return len(b), nil
}

// startAgent runs an agent of the engine, with a short configuration.
func startAgent(t *testing.T, engine string, l kvindex.Log, change func(*Config)) *running {
	t.Helper()
	return startAgentWith(t, engine, l, change, nil)
}

// startAgentWith also changes the agent once it listens, before it follows events.
func startAgentWith(t *testing.T, engine string, l kvindex.Log, change func(*Config), prepare func(*Agent)) *running {
	t.Helper()
	cfg := Default()
	cfg.Listen, cfg.Engine, cfg.KVEvents, cfg.KVReplay = "127.0.0.1:0", engine, nil, nil
	cfg.ProbeEvery = 20 * time.Millisecond
	cfg.EventIdleCheck = time.Hour
	if change != nil {
		change(&cfg)
	}
	reg := prometheus.NewRegistry()
	done := false
	var mu sync.Mutex
	logger := slog.New(slog.NewTextHandler(quietWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	a, err := New(cfg, Deps{Log: l, Logger: logger, Registry: reg})
	if err != nil {
		t.Fatal(err)
	}
	a.prepared = prepare
	r := &running{Agent: a, t: t, reg: reg}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	r.stop = func() error {
		mu.Lock()
		defer mu.Unlock()
		if done {
			return nil
		}
		done = true
		cancel()
		return <-ended
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("agent: %v", err)
		}
	})
	actx, acancel := context.WithTimeout(t.Context(), patience)
	defer acancel()
	addr, err := a.Addr(actx)
	if err != nil {
		t.Fatalf("the agent does not listen: %v", err)
	}
	r.url = "http://" + addr.String()
	return r
}

// attach runs an engine, a log and an agent, and waits until it is ready.
func attach(t *testing.T, change func(*Config)) (*fakeEngine, *running, *watch) {
	t.Helper()
	e, l := newFakeEngine(t), memlog.New(memlog.Options{})
	w := newWatch(t, l)
	a := startAgent(t, e.URL, l, change)
	w.awaitReady(a.cfg.WorkerID, true)
	return e, a, w
}

// metric is the value of one series: name, then label values in any order.
func (r *running) metric(name string, labels ...string) float64 {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "kvlane_agent_"+name {
			continue
		}
		sum := 0.0
		for _, m := range f.GetMetric() {
			if matches(m, labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		return sum
	}
	return 0
}

func matches(m *dto.Metric, labels []string) bool {
	for _, want := range labels {
		found := false
		for _, l := range m.GetLabel() {
			found = found || l.GetValue() == want
		}
		if !found {
			return false
		}
	}
	return true
}

// post sends a body and returns status, headers and body.
func post(t *testing.T, url, body string, header ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read answer: %v (after %q)", err, b)
	}
	return resp.StatusCode, resp.Header, string(b)
}

// idle waits until no request is counted anywhere.
func (r *running) idle() {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		l := r.load.now()
		if l.Running == 0 && l.Waiting == 0 && l.QueuedTokens == 0 && l.ContextTokens == 0 && r.metric("requests_in_flight") == 0 {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("counters do not return to 0: %+v", l)
		}
		<-ticker.C
	}
}
