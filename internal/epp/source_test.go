package epp

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

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
		if _, err := build(c, "", slog.New(slog.DiscardHandler)); err == nil || strings.Contains(err.Error(), "pass") {
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
	p, err := build(c, "", logger)
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
