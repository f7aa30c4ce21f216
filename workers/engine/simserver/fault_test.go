package simserver

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestRestartFailsRequests checks what running requests see: 500, or an error
// in the stream that has begun.
func TestRestartFailsRequests(t *testing.T) {
	s := start(t, func(c *Config) { c.Speed = 1 })
	const endless = `"prompt":"Once upon a time","max_tokens":8000,"ignore_eos":true`
	resp, err := request(t.Context(), t, s, http.MethodPost, "/v1/completions", `{`+endless+`,"stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	stream := bufio.NewReader(resp.Body)
	nextEvent(t, stream)
	type result struct {
		status int
		body   string
	}
	unary := make(chan result, 1)
	go func() {
		status, body := call(t, s, http.MethodPost, "/v1/completions", `{`+endless+`}`)
		unary <- result{status, body}
	}()
	until(t, "both run", func() bool { return stats(t, s).Running == 2 })
	setFault(t, s, `{"kind":"restart"}`)

	if r := <-unary; r.status != http.StatusInternalServerError || !strings.Contains(r.body, "EngineCore") {
		t.Errorf("unary: %d %s", r.status, r.body)
	}
	rest, err := io.ReadAll(stream)
	if err != nil {
		t.Fatal(err)
	}
	all := events(t, string(rest))
	last := parse(t, all[len(all)-2])
	if all[len(all)-1] != "[DONE]" || last.Error == nil || last.Error.Code != http.StatusInternalServerError {
		t.Errorf("stream ends with %v", all[max(0, len(all)-2):])
	}
	idle(t, s)
	post(t, s, "/v1/completions", `{"prompt":"x","max_tokens":2}`)
}

// TestHang checks that nothing is answered while the engine hangs, and all of
// it afterwards.
func TestHang(t *testing.T) {
	s := start(t, nil)
	setFault(t, s, `{"kind":"hang"}`)
	for _, path := range []string{"/health", "/v1/models", "/metrics"} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		resp, err := request(ctx, t, s, http.MethodGet, path, "")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s answered: %v, %v", path, resp, err)
		}
		if err == nil {
			resp.Body.Close()
		}
		cancel()
	}
	answered := make(chan string, 1)
	go func() { answered <- post(t, s, "/v1/completions", `{"prompt":"x","max_tokens":2}`) }()
	setFault(t, s, `{"kind":"none"}`)
	<-answered
	call(t, s, http.MethodGet, "/health", "")
}

// TestHangStopsStreams checks that a stream that runs stands still, too.
func TestHangStopsStreams(t *testing.T) {
	s := start(t, func(c *Config) { c.Speed = 1 })
	resp, err := request(t.Context(), t, s, http.MethodPost, "/v1/completions", `{"prompt":"x","max_tokens":60,"ignore_eos":true,"stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	stream := bufio.NewReader(resp.Body)
	nextEvent(t, stream)
	setFault(t, s, `{"kind":"hang"}`)
	at := stats(t, s).Steps
	if again := stats(t, s).Steps; again != at {
		t.Errorf("%d steps while the engine hangs", again-at)
	}
	setFault(t, s, `{"kind":"none"}`)
	if _, err := io.ReadAll(stream); err != nil {
		t.Fatal(err)
	}
}

// TestClock checks the line that slow and hang bend.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock(10)
		<-time.After(time.Second)
		if got := c.now(); got != 10*time.Second {
			t.Errorf("after 1 s at rate 10: %v", got)
		}
		c.setRate(2.5) // slow, factor 4
		if d, ok := c.until(15 * time.Second); !ok || d != 2*time.Second {
			t.Errorf("until 15 s: %v, %v", d, ok)
		}
		<-time.After(2 * time.Second)
		c.setRate(0)
		<-time.After(time.Hour)
		if got := c.now(); got != 15*time.Second {
			t.Errorf("after a hang: %v", got)
		}
		if _, ok := c.until(16 * time.Second); ok {
			t.Error("a clock that stands still reaches 16 s")
		}
		c.setRate(10)
		if d, ok := c.until(14 * time.Second); !ok || d != 0 {
			t.Errorf("until the past: %v, %v", d, ok)
		}
	})
}

func TestGarbage(t *testing.T) {
	s := start(t, nil)
	setFault(t, s, `{"kind":"garbage","count":2}`)
	const body = `{"prompt":"x","max_tokens":2}`
	for i := range 3 {
		answer := post(t, s, "/v1/completions", body)
		if good := strings.HasPrefix(answer, `{"id"`); good != (i == 2) {
			t.Errorf("answer %d: %q", i, answer)
		}
	}
}

func TestCrash(t *testing.T) {
	codes := make(chan int, 1)
	s := start(t, func(c *Config) { c.Exit = func(code int) { codes <- code } })
	call(t, s, http.MethodPost, "/sim/fault", `{"kind":"crash"}`)
	if code := <-codes; code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}

// TestFaultsAreLocal checks that other machines cannot inject faults.
func TestFaultsAreLocal(t *testing.T) {
	s := start(t, nil)
	for addr, want := range map[string]int{"192.0.2.1:1234": http.StatusForbidden, "[::1]:1234": http.StatusOK, "127.0.0.1:9": http.StatusOK} {
		r := httptest.NewRequest(http.MethodPost, "/sim/fault", strings.NewReader(`{"kind":"none"}`))
		r.RemoteAddr = addr
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("from %s: status %d, want %d", addr, w.Code, want)
		}
		r = httptest.NewRequest(http.MethodPost, "/sim/fault", strings.NewReader(`{"kind":"none"}`))
		r.RemoteAddr = addr
		r.Header.Set("X-Forwarded-Proto", "http") // through a gateway and an agent
		w = httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if w.Code != http.StatusForbidden {
			t.Errorf("from %s for another: status %d, want 403", addr, w.Code)
		}
	}
}

// TestPortInUse checks the error that a second engine on the same port gives.
func TestPortInUse(t *testing.T) {
	s := start(t, func(c *Config) { c.Events = "tcp://127.0.0.1:0" })
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Listen = s.Addr() }, "the port is in use, perhaps by another engine"},
		{func(c *Config) { c.Listen, c.Events = "127.0.0.1:0", s.EventsEndpoint() }, "open KV events: bind " + s.EventsEndpoint()},
	} {
		cfg := Default()
		c.change(&cfg)
		second, err := New(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
	}
}

// TestConfig checks that all faults are reported at once.
func TestConfig(t *testing.T) {
	cfg := Default()
	cfg.Deployment, cfg.Listen, cfg.BlockSize, cfg.Speed, cfg.Replay = "none", "x", 0, 0, "tcp://127.0.0.1:x"
	_, err := New(cfg, slog.New(slog.DiscardHandler))
	for _, want := range []string{`deployment "none" is not known`, "qwen3-32b-bf16-2xh100", `listen "x"`, "block size", "speed", "tcp://127.0.0.1:x", "without an events endpoint"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	cfg = Default()
	cfg.Blocks, cfg.MaxModelLen = 4, 65
	if _, err := New(cfg, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a model length beyond the cache was taken")
	}
}

// TestStopWaitsForRequests checks that the end of Run's context lets a running
// request finish.
func TestStopWaitsForRequests(t *testing.T) {
	cfg := Default()
	cfg.Listen, cfg.Speed, cfg.Grace = "127.0.0.1:0", 5, patience
	s, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Ready()
	resp, err := request(t.Context(), t, s, http.MethodPost, "/v1/completions", `{"prompt":"x","max_tokens":40,"ignore_eos":true,"stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	stream := bufio.NewReader(resp.Body)
	nextEvent(t, stream)
	stop()
	rest, err := io.ReadAll(stream)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the stream ends with %q, %v", rest[max(0, len(rest)-40):], err)
	}
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
}
