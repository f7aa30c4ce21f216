package workers

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// runToEnd runs an agent that is expected to end by itself.
func runToEnd(t *testing.T, l kvindex.Log, change func(*Config)) error {
	t.Helper()
	cfg := Default()
	cfg.Listen, cfg.KVEvents, cfg.KVReplay, cfg.Engine = "127.0.0.1:0", nil, nil, "http://127.0.0.1:1"
	cfg.ProbeEvery = 20 * time.Millisecond
	change(&cfg)
	a, err := New(cfg, Deps{Log: l, Logger: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = a.Run(ctx)
	if ctx.Err() != nil {
		t.Fatal("the agent did not end")
	}
	return err
}

// TestEnds: every reason to end is one clear line.
func TestEnds(t *testing.T) {
	l := memlog.New(memlog.Options{})
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct {
		name, want string
		change     func(*Config)
	}{
		{"child fails", "the engine ended: engine: exit status 3", func(c *Config) { c.Command = []string{"sh", "-c", "exit 3"} }},
		{"child ends", "the engine ended with exit status 0", func(c *Config) { c.Command = []string{"true"} }},
		{"no such program", "start engine: ", func(c *Config) { c.Command = []string{"/does/not/exist"} }},
		{"child is slow", "the engine did not become ready within 100ms", func(c *Config) {
			c.Command, c.StartTimeout = []string{"sleep", "100"}, 100*time.Millisecond
		}},
		{"port taken", "listen for requests: ", func(c *Config) { c.Listen = taken.Addr().String() }},
		{"admin port taken", "listen for the admin pages: ", func(c *Config) { c.Admin = taken.Addr().String() }},
		{"bad configuration", "agent configuration: ", func(c *Config) { c.Listen, c.Engine = "0.0.0.0:80", "ftp://x" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := runToEnd(t, l, c.change)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestTakenOver: an agent whose name a newer one writes under ends.
func TestTakenOver(t *testing.T) {
	e, l := newFakeEngine(t), memlog.New(memlog.Options{})
	w := newWatch(t, l)
	ended := make(chan error, 1)
	go func() {
		ended <- runToEnd(t, l, func(c *Config) { c.Engine, c.WorkerID = e.URL, "w" })
	}()
	w.awaitReady("w", true)
	a := startAgent(t, e.URL, l, func(c *Config) { c.WorkerID = "w" })
	if err := <-ended; !errors.Is(err, kvindex.ErrFenced) {
		t.Errorf("the first agent ended with %v, want it fenced", err)
	}
	if err := a.stop(); err != nil {
		t.Error(err)
	}
}

// TestLogServerRestarts: over gRPC, a log that goes away and comes back empty is
// told everything again; requests are served meanwhile.
func TestLogServerRestarts(t *testing.T) {
	lis, err := net.Listen("tcp", porttest.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	serve := func(lis net.Listener) (*memlog.Log, *grpc.Server) {
		l, s := memlog.New(memlog.Options{}), grpc.NewServer()
		memlog.Register(s, l)
		go s.Serve(lis)
		return l, s
	}
	_, first := serve(lis)
	client, err := memlog.Dial(lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	e, p := newFakeEngine(t), newPublisherSocket(t, true)
	e.answersJSON(http.StatusOK, `{"choices":[]}`)
	var batches []batch
	for _, st := range lines[step](t, "C13-clear.map.jsonl")[1:] {
		if st.Do == "publish" && st.From == "w1" && st.Seq == 0 {
			batches = append(batches, batch{0, unhex(t, st.Hex)})
		}
	}
	p.router.set(batches, nil)
	a := startAgent(t, e.URL, client, func(c *Config) {
		c.WorkerID, c.KVEvents, c.KVReplay = "w1", []string{p.events}, []string{p.replay}
	})
	for waits := time.After(patience); a.metric("log_up") != 1 || a.metric("kv_batches_total", "applied") != 1; {
		select {
		case <-waits:
			t.Fatal("nothing was written")
		case <-time.After(time.Millisecond):
		}
	}
	first.Stop()
	if code, _, _ := post(t, a.url+"/v1/chat/completions", `{"messages":[{"content":"q"}]}`); code != 200 {
		t.Errorf("without a log: status %d", code)
	}
	lis, err = net.Listen("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	l, second := serve(lis)
	defer second.Stop()
	w := newWatch(t, l)
	w.awaitReady("w1", true)
	w.await("the engine's blocks", func([]kvindex.Record) bool {
		return len(w.index.Blocks(kvindex.Owner{Worker: "w1"})) == 8
	})
	w.await("the request that nobody was told of", func(rs []kvindex.Record) bool {
		return has(rs, func(r *kvindex.Record) bool { return r.Kind == kvindex.KindLoad && len(r.Load.Done) == 1 })
	})
}

// TestProcessStart: a later start of the engine's process is a new life, and one
// that the events had shown already is not a second one.
func TestProcessStart(t *testing.T) {
	e, a, w := attach(t, nil)
	e.mu.Lock()
	e.started = float64(time.Now().Add(time.Hour).Unix()) // later than the agent's first contact
	e.mu.Unlock()
	w.await("a new epoch", func(rs []kvindex.Record) bool { return rs[0].Epoch < rs[len(rs)-1].Epoch })
	if n := a.metric("engine_lives_total"); n != 1 {
		t.Errorf("%v lives, want 1", n)
	}
	e.mu.Lock()
	e.started = 1_700_000_100 // old news
	e.mu.Unlock()
	w.await("ten more loads", func(rs []kvindex.Record) bool { return len(rs) > 10 })
	if n := a.metric("engine_lives_total"); n != 1 {
		t.Errorf("%v lives, want 1", n)
	}
}

func TestAdminPages(t *testing.T) {
	e, a, w := attach(t, nil)
	admin, err := a.AdminAddr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get("http://" + admin.String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	var s State
	_, body := get("/agent/state")
	if err := json.Unmarshal([]byte(body), &s); err != nil || !s.Ready || s.Model != "base" || s.BlockSize != 16 || s.KVUsed != 500 {
		t.Errorf("state %s, %v", body, err)
	}
	for _, path := range []string{"/agent/health", "/healthz"} {
		if code, body := get(path); code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if _, body := get("/metrics"); !strings.Contains(body, "kvlane_agent_engine_up 1") {
		t.Error("no metrics")
	}
	if code, _, _ := post(t, a.url+"/agent/state", ""); code != 404 {
		t.Errorf("clients reach the admin pages: %d", code)
	}
	e.mu.Lock()
	e.down = true
	e.mu.Unlock()
	w.awaitReady(a.cfg.WorkerID, false)
	if code, body := get("/agent/health"); code != 503 || !strings.Contains(body, "the engine is not up") {
		t.Errorf("engine down: %d %s", code, body)
	}
}

// TestDrain: a stop lets a request finish and says "not ready" first.
func TestDrain(t *testing.T) {
	e, a, w := attach(t, nil)
	began, finish := make(chan struct{}), make(chan struct{})
	e.answers(func(rw http.ResponseWriter, _ *http.Request) {
		close(began)
		<-finish
		io.WriteString(rw, `{"choices":[]}`)
	})
	answered := make(chan int, 1)
	go func() {
		code, _, _ := post(t, a.url+"/v1/chat/completions", `{"messages":[{"content":"q"}]}`)
		answered <- code
	}()
	<-began
	stopped := make(chan error, 1)
	go func() { stopped <- a.stop() }()
	w.awaitReady(a.cfg.WorkerID, false)
	close(finish)
	if code := <-answered; code != 200 {
		t.Errorf("the request under way: %d", code)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	w.await("bye", func(rs []kvindex.Record) bool { return rs[len(rs)-1].Kind == kvindex.KindBye })
}
