package epp

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/extproc"
	"github.com/kvlane/kvlane/internal/config"
	"github.com/kvlane/kvlane/internal/redistest"
	"github.com/kvlane/kvlane/kvindex"
)

// What is shown of a URL has no password in it, and an error neither.
func TestNoSecrets(t *testing.T) {
	for url, want := range map[string]string{
		"redis://127.0.0.1:6379":                                            "redis://127.0.0.1:6379",
		"rediss://me:pass@word@192.0.2.1:6379/2?ca=/x":                      "rediss://192.0.2.1:6379/2",
		"redis-sentinel://u:pass@192.0.2.1:1,192.0.2.2:1/m?sentinel-user=u": "redis-sentinel://192.0.2.1:1,192.0.2.2:1/m",
		"pass": "Redis",
	} {
		if got := withoutSecrets(url); got != want {
			t.Errorf("%s is shown as %s, want %s", url, got, want)
		}
	}
	for _, url := range []string{"pass", "https://u:pass@192.0.2.1:1", "redis://u:pass@192.0.2.1:1?no=1"} {
		c := config.Default()
		c.Log.Redis = url
		if _, err := build(c, Options{}, slog.New(slog.DiscardHandler)); err == nil || strings.Contains(err.Error(), "pass") {
			t.Errorf("%s: got %v", url, err)
		}
	}
}

// lines collects a log's messages.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// await asks until ok.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-limit:
			t.Fatalf("%s: not within 30 s", what)
		case <-tick.C:
		}
	}
}

// A picker whose Redis goes away keeps its workers for longer than their leases,
// says so once, and drops its bookings; when Redis is back it says that, too.
func TestRedisGoesAway(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	proxy := redistest.NewProxy(t, server.Addr)
	c := config.Default()
	c.Log.Redis, c.Picker.Replica = "redis://"+proxy.Addr, "a"
	var out lines
	logger := slog.New(slog.NewTextHandler(io.Writer(&out), nil))
	p, err := build(c, Options{}, logger)
	if err != nil {
		t.Fatal(err)
	}
	defer p.log.close()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var reports sync.Map
	for _, run := range []func() error{
		func() error { return p.follower.run(ctx) },
		func() error { return p.follower.hold(ctx) },
		func() error { return p.follower.dropSilent(ctx) },
		func() error { return p.announcer.run(ctx) },
		func() error { return p.log.watch(ctx, func(arrive bool) { reports.Store("arrive", arrive) }, logger) },
	} {
		running.Go(func() { _ = run() }) // they end with ctx
	}
	err = p.log.Append(ctx, []kvindex.Record{{
		Owner: kvindex.Owner{Worker: "w"}, Epoch: 1, Term: 1, Kind: kvindex.KindHello, Hello: &kvindex.Hello{
			Address: "192.0.2.1:8000", Ready: true, Model: "m", Served: []string{"m"}, BlockSize: 16, LeaseMs: 3000,
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ready := func() bool { return p.follower.readyWorkers() == 1 }
	await(t, "the worker", ready)

	proxy.Set(redistest.Stall, 0)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	picks := 0
	for stalled := time.Now(); time.Since(stalled) < 5*time.Second; picks++ { // longer than a lease
		begun := <-tick.C
		pick(t, p.follower.pool, picks)
		p.follower.pool.Close(fmt.Sprint(picks), begun)
		await(t, "the worker without Redis", ready)
	}
	await(t, "line that the log is away", func() bool { return out.count("the log is away") == 1 })
	if v := p.logView(); v.Connected || v.Error == "" || v.Dropped == 0 || v.Kind != "redis" {
		t.Errorf("without Redis: %+v", v)
	}
	if v, _ := reports.Load("arrive"); v != false {
		t.Errorf("reports arrive: %v", v)
	}

	proxy.Set(redistest.Pass, 0)
	await(t, "line that the log is back", func() bool { return out.count("the log is back") == 1 })
	if v := p.logView(); !v.Connected || v.Error != "" {
		t.Errorf("with Redis again: %+v", v)
	}
	if n := out.count("the log is away"); n != 1 {
		t.Errorf("%d lines say that it was away", n)
	}
}

// The model of a worker whose lease ran out is not unknown: it is unavailable, even
// while the pool serves other models, and with a log in Redis as with one here.
func TestSilentWorkersModelIsUnavailable(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	c := config.Default()
	c.Log.Redis = server.URL()
	p, err := build(c, Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer p.log.close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.follower.run(ctx) }() // ends with ctx
	defer func() { cancel(); <-done }()
	hello := func(w kvindex.WorkerID, model string, lease time.Duration) kvindex.Record {
		return kvindex.Record{Owner: kvindex.Owner{Worker: w}, Epoch: 1, Term: 1, Kind: kvindex.KindHello, Hello: &kvindex.Hello{
			Address: "192.0.2.1:8000", Ready: true, Model: model, Served: []string{model}, BlockSize: 16, LeaseMs: uint32(lease.Milliseconds()),
		}}
	}
	for _, r := range []kvindex.Record{
		hello("quiet", "m", time.Second), hello("here", "n", time.Hour),
		{Owner: kvindex.Owner{Worker: "quiet"}, Epoch: 1, Term: 1, Seq: 1, Kind: kvindex.KindStored, Stored: &kvindex.Stored{Hashes: []kvindex.BlockHash{1}}},
	} {
		if err := p.log.Append(ctx, []kvindex.Record{r}); err != nil {
			t.Fatal(err)
		}
	}
	answer := func(model string) int {
		_, refusal := p.admin.router.Explain(time.Now(), extproc.Ask{
			ID: "x", Method: http.MethodPost, Path: "/v1/completions", Body: []byte(`{"model":"` + model + `","prompt":"hello"}`),
		})
		if refusal == nil {
			return http.StatusOK
		}
		return refusal.Answer(false).Status
	}
	await(t, "the other worker", func() bool { return answer("n") == http.StatusOK })
	await(t, "the end of the lease", func() bool { return len(p.follower.members.names()) == 1 })
	for model, want := range map[string]int{"m": http.StatusServiceUnavailable, "n": http.StatusOK, "o": http.StatusNotFound} {
		if got := answer(model); got != want {
			t.Errorf("model %s: status %d, want %d", model, got, want)
		}
	}
	if n := p.follower.index.Stats().Blocks; n != 0 {
		t.Errorf("%d blocks are left of it", n)
	}
	// It comes back as what it was, then says Bye: now nobody serves its model.
	back := hello("quiet", "m", time.Hour)
	bye := kvindex.Record{Owner: back.Owner, Epoch: 1, Term: 1, Kind: kvindex.KindBye}
	for _, step := range []struct {
		r    kvindex.Record
		want int
	}{{back, http.StatusOK}, {bye, http.StatusNotFound}} {
		if err := p.log.Append(ctx, []kvindex.Record{step.r}); err != nil {
			t.Fatal(err)
		}
		await(t, step.r.Kind.String(), func() bool { return answer("m") == step.want })
	}
}
