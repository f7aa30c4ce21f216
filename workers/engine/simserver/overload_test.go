package simserver

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestOverload: an engine that is asked to be faster than the machine can be
// still answers, and says how late it runs.
func TestOverload(t *testing.T) {
	s := start(t, func(c *Config) { c.Speed, c.Blocks = 1e6, 1<<16 })
	ctx, stop := context.WithCancel(t.Context())
	resp, err := request(ctx, t, s, http.MethodPost, "/v1/completions",
		`{"prompt":"Once upon a time","n":50,"max_tokens":20000,"ignore_eos":true,"stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	asked := time.Now()
	for sample(t, s, "sim:slipped_seconds_total") == 0 {
		if time.Since(asked) > patience {
			t.Fatal("the engine keeps up")
		}
	}
	for range 3 {
		asked = time.Now()
		stats(t, s)
		if took := time.Since(asked); took > 20*maxCatchUp {
			t.Errorf("an answer took %v", took)
		}
	}
	stop()
	idle(t, s)
}

// TestStartTime: a restart looks like a new process.
func TestStartTime(t *testing.T) {
	s := start(t, nil)
	first := sample(t, s, "process_start_time_seconds")
	if age := float64(time.Now().UnixMilli())/1000 - first; age < 0 || age > patience.Seconds() {
		t.Errorf("started %g s ago", age)
	}
	until(t, "a millisecond has passed", func() bool { return float64(time.Now().UnixMilli())/1000 > first })
	setFault(t, s, `{"kind":"restart"}`)
	if again := sample(t, s, "process_start_time_seconds"); again <= first {
		t.Errorf("started at %f, restarted at %f", first, again)
	}
}

// sample is a sample of the metrics page.
func sample(t *testing.T, s *Server, name string) float64 {
	t.Helper()
	_, page := call(t, s, http.MethodGet, "/metrics", "")
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == '{' || rest[0] == ' ') {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no %s in:\n%s", name, page)
	return 0
}
