package extproc

import (
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kvlane/kvlane/picker"
)

// TestPanics: a fault in the index degrades the pick to load alone, one in the
// pool is an HTTP answer; neither ends the stream with an error.
func TestPanics(t *testing.T) {
	w := newWorld(t, Default(), picker.DefaultConfig())
	w.worker("w1", hello("192.0.2.10:8000"))
	body := []byte(`{"model":"base","prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}`)
	w.server.router.index = nil
	a, b := newStream(w.server), newStream(w.server)
	w.send(a, post("/v1/completions"))
	out := w.send(a, requestBodyMessage(body, true))
	if got, _ := checkOrder(t, out); !slices.Equal(got, body) || checkDestination(t, out[0]) != "192.0.2.10:8000" {
		t.Errorf("without an index: %v", out)
	}
	w.send(a, responseHeadersMessage(true))
	a.end(w.now)

	w.send(b, post("/v1/completions"))
	w.server.router.pool = nil
	out = w.send(b, requestBodyMessage(body, true))
	if len(out) != 1 || out[0].GetImmediateResponse().GetStatus().GetCode() != 503 {
		t.Errorf("without a pool: %v", out)
	}
	b.end(w.now)
	if got := w.metrics(); got["faults_total{panic}"] != 3 || got["requests_total{internal}"] != 1 || got["open_bookings"] != 0 || got["buffered_body_bytes"] != 0 {
		t.Errorf("metrics: %v", got)
	}
}

func TestConfigListsAllFaults(t *testing.T) {
	c := Config{MaxBodyBytes: 0, MaxBufferedBytes: -1, MaxStreams: 0, BodyIdleTimeout: 0, BodyTimeout: -time.Second, Plans: -1,
		MinPriority: 40_000, MaxPriority: -1, Objectives: "a", EnginePriority: "x",
		Flow: FlowConfig{BufferedWait: -1, DrainTimeout: -1, TenantLabels: -1},
	}
	err := c.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, key := range []string{"maxBodyBytes", "maxBufferedBytes", "maxStreams", "bodyIdleTimeout", "bodyTimeout", "plans", "minPriority", "maxPriority",
		"objectives", "enginePriority", "flow.bufferedWait", "flow.drainTimeout", "flow.tenantLabels", "flow.queue.maxRequests", "flow.queue.quantum"} {
		if !strings.Contains(err.Error(), key+":") {
			t.Errorf("want %s among the faults: %v", key, err)
		}
	}
	if _, err := New(c, nil, NewMetrics(nil), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("New takes a faulty configuration")
	}
	if err := Default().Validate(); err != nil {
		t.Errorf("the default is faulty: %v", err)
	}
}

func TestPlans(t *testing.T) {
	entry := func(id string, at int64) Entry {
		return Entry{At: time.Unix(at, 0), Decision: Decision{Plan: picker.Plan{Request: id}}}
	}
	p := NewPlans(3)
	for i, id := range []string{"a", "b", "a", "c"} {
		p.add(entry(id, int64(i+1)))
	}
	p.update("a", func(e *Entry) { e.Served = "x" })
	p.update("gone", func(*Entry) { t.Error("update of an entry that was never there") })
	if e, ok := p.Get("a"); !ok || e.At != time.Unix(3, 0) || e.Served != "x" {
		t.Errorf("a: %v %t, want the newest", e, ok)
	}
	var got []string
	for _, e := range p.Last(10) {
		got = append(got, e.Decision.Plan.Request)
	}
	if !slices.Equal(got, []string{"c", "a", "b"}) {
		t.Errorf("last: %v", got)
	}
	p.add(entry("d", 5)) // pushes b out
	if _, ok := p.Get("b"); ok || len(p.byID) != 3 {
		t.Errorf("b is still there, %d ids", len(p.byID))
	}
	long := entry("e", 6)
	long.Path, long.Decision.Model = strings.Repeat("/é", 1<<20), strings.Repeat("m", 32<<20)
	long.Refusal = "no-model: " + long.Decision.Model
	p.add(long)
	if e, _ := p.Get("e"); len(e.Path)+len(e.Decision.Model)+len(e.Refusal) > 3*(maxShown+3) || !utf8.ValidString(e.Path) {
		t.Errorf("a client's texts of %d, %d and %d bytes are kept", len(e.Path), len(e.Decision.Model), len(e.Refusal))
	}
	none := NewPlans(0)
	none.add(entry("a", 1))
	if _, ok := none.Get("a"); ok || none.Last(1) != nil {
		t.Error("a ring of none keeps one")
	}
}

func TestDensity(t *testing.T) {
	var d density
	if d.tokens(0) != 0 || d.tokens(-1) != 0 || d.tokens(400) != 100 || d.tokens(401) != 101 {
		t.Errorf("default: %d for 400 bytes", d.tokens(400))
	}
	d.learn(6400, minLearnedTokens-1)
	d.learn(0, 1000)
	if d.bytesPerToken() != defaultDensity {
		t.Error("learned from too little")
	}
	d.learn(640, 128)
	if got := d.bytesPerToken(); got != 5 {
		t.Errorf("after one prompt of 5 bytes a token: %v", got)
	}
	for range 500 {
		d.learn(640, 320)
	}
	if got := d.bytesPerToken(); math.Abs(got-2) > 0.01 {
		t.Errorf("after many prompts of 2 bytes a token: %v", got)
	}
}

func TestCompressed(t *testing.T) {
	for encoding, want := range map[string]bool{"": false, "identity": false, " Identity , identity": false, "gzip": true, "identity, br": true, "GZIP": true, "x": true} {
		if compressed(encoding) != want {
			t.Errorf("%q: want %t", encoding, want)
		}
	}
}
