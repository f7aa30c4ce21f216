package workers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
	"github.com/kvlane/kvlane/workers/engine"
)

// pages is an engine's HTTP side without sockets, for tests on the bubble's clock.
type pages struct {
	mu      sync.Mutex
	metrics string // empty: 500
	at      string // path of the metrics page
	refuse  error
	began   time.Time
	reads   []time.Duration // of the metrics page
	health  int
}

// RoundTrip implements [http.RoundTripper].
func (p *pages) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse != nil {
		return nil, p.refuse
	}
	status, body := http.StatusOK, ""
	switch r.URL.Path {
	case "/health":
		p.health++
	case "/v1/models":
		body = `{"data":[{"id":"base"}]}`
	case p.at:
		p.reads = append(p.reads, time.Since(p.began))
		if body = p.metrics; body == "" {
			status = http.StatusInternalServerError
		}
	default:
		status = http.StatusNotFound
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}, Request: r}, nil
}

func (p *pages) set(metrics string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.metrics = metrics
}

// readings are the times of the reads since the last call.
func (p *pages) readings() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.reads
	p.reads, p.health = nil, 0
	return out
}

func testLog(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(quietWriter{t}, nil))
}

// vllmPage is a metrics page of vLLM.
func vllmPage(running, waiting int) string {
	return fmt.Sprintf("vllm:num_requests_running %d\nvllm:num_requests_waiting %d\nvllm:kv_cache_usage_perc 0.25\n"+
		"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n", running, waiting)
}

// bare is a follower of a bare engine behind p, as a collector has it, and its end.
func bare(t *testing.T, p *pages, log kvindex.Log, engines int) *follower {
	t.Helper()
	p.began = time.Now()
	if p.at == "" {
		p.at = "/metrics"
	}
	client, err := engine.NewClient("http://10.0.0.1:8000", p)
	if err != nil {
		t.Fatal(err)
	}
	c := &Collector{cfg: DefaultCollector()}
	c.count.Store(int64(engines))
	f := newFollower(c.cfg.of(Target{Engine: "http://10.0.0.1:8000"}), Deps{Log: log, Logger: testLog(t)}, NewMetrics(prometheus.NewRegistry()), client)
	f.bare, f.load.bare = true, true
	f.prober.pace = &pace{fast: c.cfg.Fast, slow: c.cfg.Slow, least: c.least}
	f.open()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return f
}

// TestScrapeInterval: fast while the engine works, slower and slower when it does not,
// no faster than the rate of all engines allows.
func TestScrapeInterval(t *testing.T) {
	for _, c := range []struct {
		name       string
		engines    int
		page       string
		least, end int // reads in the second 10 s
	}{
		{"busy", 1, vllmPage(3, 0), 95, 101},
		{"idle", 1, vllmPage(0, 0), 5, 6},
		{"busy among 200", 200, vllmPage(3, 0), 24, 26},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &pages{metrics: c.page}
				bare(t, p, memlog.New(memlog.Options{}), c.engines)
				<-time.After(10 * time.Second) // on the bubble's clock
				p.readings()
				<-time.After(10 * time.Second) // on the bubble's clock
				p.mu.Lock()
				health := p.health
				p.mu.Unlock()
				if n := len(p.readings()); n < c.least || n > c.end {
					t.Errorf("%d reads in 10 s, want %d to %d", n, c.least, c.end)
				}
				if health < 5 || health > 21 {
					t.Errorf("%d looks at its health in 10 s", health)
				}
			})
		})
	}
}

// TestScrapeFails: the last figures stay, with their age; then the worker takes no
// requests, and takes them again when the page is back.
func TestScrapeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pages{}
		f := bare(t, p, memlog.New(memlog.Options{}), 1)
		<-time.After(20 * time.Second) // on the bubble's clock
		if f.load.known() || f.notReady() == nil {
			t.Errorf("never read: load %+v, ready: %v", f.load.now(), f.notReady())
		}
		p.set(vllmPage(3, 2))
		<-time.After(5 * time.Second) // on the bubble's clock
		if l := f.load.now(); l.Running != 3 || l.Waiting != 2 || l.KVUsed != 250 || l.KVTotal != 1000 || l.ContextTokens != 4000 || l.AgeMs < 1 || l.AgeMs > 101 {
			t.Errorf("%+v", l)
		}
		if err := f.notReady(); err != nil {
			t.Error(err)
		}
		h := f.hello()
		if !h.Bare || !h.Ready || h.Address != "10.0.0.1:8000" || h.Model != "base" || h.BlockSize != 16 || h.KVBlocks != 1000 || !h.NoEvents {
			t.Errorf("%+v", h)
		}
		p.set("vllm:num_requests_running 0\n") // not all of it
		<-time.After(2 * time.Second)          // on the bubble's clock
		if l := f.load.now(); l.Running != 3 || l.Waiting != 2 || l.AgeMs < 1900 || l.AgeMs > 2200 || f.notReady() != nil {
			t.Errorf("after 2 s: %+v, %v", l, f.notReady())
		}
		<-time.After(6 * time.Second) // on the bubble's clock
		if l := f.load.now(); l.Running != 3 || f.notReady() == nil || !strings.Contains(f.notReady().Error(), errNoFigures.Error()) {
			t.Errorf("after 8 s: %+v, %v", l, f.notReady())
		}
		p.set(vllmPage(1, 0))
		<-time.After(time.Second) // on the bubble's clock
		if l := f.load.now(); l.Running != 1 || f.notReady() != nil {
			t.Errorf("back again: %+v, %v", l, f.notReady())
		}
	})
}

// TestScrapedEngines: the three engines' pages.
func TestScrapedEngines(t *testing.T) {
	for name, p := range map[string]*pages{
		"vllm":   {metrics: vllmPage(3, 2)},
		"sglang": {metrics: "sglang:num_running_reqs 3\nsglang:num_queue_reqs 2\nsglang:token_usage 0.25\nsglang:cache_config_info{page_size=\"16\",num_pages=\"1000\"} 1\n"},
		"trtllm": {at: "/prometheus/metrics", metrics: "trtllm_num_requests_running 3\ntrtllm_num_requests_waiting 2\ntrtllm_kv_cache_utilization 0.25\ntrtllm_kv_cache_tokens_per_block 16\ntrtllm_kv_cache_max_blocks 1000\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := bare(t, p, memlog.New(memlog.Options{}), 1)
				<-time.After(time.Second) // on the bubble's clock
				l, h := f.load.now(), f.hello()
				if l.Running != 3 || l.Waiting != 2 || l.KVUsed != 250 || l.KVTotal != 1000 || l.ContextTokens != 4000 || h.BlockSize != 16 || !h.Ready {
					t.Errorf("load %+v, hello %+v", l, h)
				}
			})
		})
	}
}

// collect runs a collector over a list that the test changes.
type collect struct {
	*Collector
	mu   sync.Mutex
	list []Target
	err  error
	stop func()
}

func startCollector(t *testing.T, log kvindex.Log, list ...Target) *collect {
	t.Helper()
	c := &collect{list: list}
	cfg := DefaultCollector()
	cfg.Admin = "127.0.0.1:0"
	var err error
	c.Collector, err = NewCollector(cfg, func() ([]Target, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.list, c.err
	}, Deps{Log: log, Logger: testLog(t), Registry: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	c.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(c.stop)
	return c
}

func (c *collect) set(err error, list ...Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list, c.err = list, err
}

// TestCollectorList: engines that come are introduced, ones that leave the list say
// Bye; a list that is wrong changes nothing, and the collector's own end neither.
func TestCollectorList(t *testing.T) {
	log := memlog.New(memlog.Options{})
	w := newWatch(t, log)
	one, two := newFakeEngine(t), newFakeEngine(t)
	a, b := Target{Engine: one.URL}, Target{Engine: two.URL}
	c := startCollector(t, log, a)
	w.awaitReady(a.worker(), true)
	c.set(nil, a, b)
	w.awaitReady(b.worker(), true)
	w.await("load", func(rs []kvindex.Record) bool {
		l := lastOf(rs, kvindex.KindLoad)
		return l != nil && l.Load.AgeMs > 0 && l.Load.KVUsed == 500
	})
	c.set(errors.New("no list today"))
	at, err := c.AdminAddr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	waitPage(t, "http://"+at.String()+"/healthz", "no list today")
	c.set(nil, b)
	w.await("Bye of the one that left", func(rs []kvindex.Record) bool {
		bye := lastOf(rs, kvindex.KindBye)
		return bye != nil && bye.Owner.Worker == a.worker()
	})
	waitPage(t, "http://"+at.String()+"/healthz", "ok")
	waitPage(t, "http://"+at.String()+"/collector/state", string(b.worker()))
	waitPage(t, "http://"+at.String()+"/engines/"+string(b.worker())+"/agent/state", "base")
	waitPage(t, "http://"+at.String()+"/engines/"+string(a.worker())+"/agent/state", "no such engine")
	waitPage(t, "http://"+at.String()+"/metrics", `kvlane_agent_engine_up{worker="`+string(b.worker())+`"} 1`)
	c.set(nil, a, b) // the same names again
	w.awaitReady(a.worker(), true)
	c.stop()
	w.await("no Bye of the ones that stay", func(rs []kvindex.Record) bool {
		byes := 0
		for i := range rs {
			if rs[i].Kind == kvindex.KindBye {
				byes++
			}
		}
		return byes == 1
	})
}

// waitPage asks for a page until it has a text.
func waitPage(t *testing.T, url, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		body := []byte{}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			body, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if err == nil && strings.Contains(string(body), want) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: no %q in %s (%v)", url, want, body, err)
		case <-ticker.C:
		}
	}
}

func TestTargets(t *testing.T) {
	got, err := ParseTarget("10.0.0.1:8000,kv-events=tcp://10.0.0.1:5557,kv-events=tcp://10.0.0.1:5558,kv-replay=tcp://10.0.0.1:5657,kv-replay=tcp://10.0.0.1:5658,deployment=d")
	want := Target{
		Engine: "10.0.0.1:8000", KVEvents: []string{"tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558"},
		KVReplay: []string{"tcp://10.0.0.1:5657", "tcp://10.0.0.1:5658"}, Deployment: "d",
	}
	if err != nil || !got.equal(want) || got.worker() != "10.0.0.1:8000" {
		t.Errorf("%+v, %v", got, err)
	}
	for text, fault := range map[string]string{
		"http://pod:8000":                  "its host is no IP address",
		"http://pod:8000,address=pod:8000": "want IP:PORT",
		"ftp://10.0.0.1":                   "want http://HOST:PORT",
		"10.0.0.1:1,kv-replay=tcp://h:1":   "1 endpoints for 0",
		"10.0.0.1:1,kv-events=h:1":         "want tcp://HOST:PORT",
		"10.0.0.1:1,events=tcp://h:1":      "unknown option",
		"10.0.0.1:1,kv-events":             "want KEY=VALUE",
	} {
		if _, err := ParseTarget(text); err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: %v, want %s", text, err, fault)
		}
	}
	if got, err := ParseTarget("http://pod,address=10.0.0.1:80"); err != nil || got.address() != "10.0.0.1:80" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := ParseTarget("https://10.0.0.1"); err != nil || got.address() != "10.0.0.1:443" {
		t.Errorf("%+v, %v", got, err)
	}
	twice := []Target{{Engine: "http://10.0.0.1:80"}, {Engine: "http://pod", Address: "10.0.0.1:80"}}
	if err := ValidateTargets(twice); err == nil || !strings.Contains(err.Error(), "is that of engine") {
		t.Error(err)
	}
	bad := CollectorConfig{Admin: "x", Advertise: "y", Lease: time.Second, Fast: time.Millisecond, Slow: 0}
	err = bad.Validate()
	for _, name := range []string{"admin ", "admin-advertise ", "lease ", "scrape-fast ", "scrape-slow ", "scrape-rate "} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
