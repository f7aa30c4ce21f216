package simserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/workers/engine/sim"
)

// patience bounds every wait in these tests; it is never reached in a run
// that passes.
const patience = 30 * time.Second

// start runs an engine on free ports until the test ends.
func start(t testing.TB, change func(*Config)) *Server {
	t.Helper()
	cfg := Default()
	cfg.Listen = "127.0.0.1:0"
	cfg.Served = []string{"tiny", "tiny-alias"}
	cfg.Blocks = 512
	cfg.Speed = 500
	cfg.Grace = time.Second
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	select {
	case <-s.Ready():
	case err := <-done:
		done <- err
		t.Fatalf("run: %v", err)
	case <-time.After(patience):
		t.Fatal("the engine does not start")
	}
	return s
}

// stats asks the core.
func stats(t testing.TB, s *Server) (st sim.Stats) {
	t.Helper()
	if err := s.engine.do(t.Context(), func() { st = s.engine.core.Stats() }); err != nil {
		t.Fatal(err)
	}
	return st
}

// until waits for a condition.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", patience, what)
		}
	}
}

func request(ctx context.Context, t testing.TB, s *Server, method, path, body string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.Addr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Request-Id", "req")
	return http.DefaultClient.Do(req)
}

func call(t testing.TB, s *Server, method, path, body string) (status int, answer string) {
	t.Helper()
	resp, err := request(t.Context(), t, s, method, path, body)
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

func post(t testing.TB, s *Server, path, body string) string {
	t.Helper()
	status, answer := call(t, s, http.MethodPost, path, body)
	if status != http.StatusOK {
		t.Fatalf("POST %s %s: status %d: %s", path, body, status, answer)
	}
	return answer
}

func setFault(t testing.TB, s *Server, body string) {
	t.Helper()
	post(t, s, "/sim/fault", body)
}

// reply is what tests read of an answer, unary or one chunk.
type reply struct {
	ID      string `json:"id"`
	Choices []struct {
		Index int    `json:"index"`
		Text  string `json:"text"`
		Delta struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"delta"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Finish     *string  `json:"finish_reason"`
		StopReason *string  `json:"stop_reason"`
		TokenIDs   []uint32 `json:"token_ids"`
		PromptIDs  []uint32 `json:"prompt_token_ids"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	PromptIDs []uint32        `json:"prompt_token_ids"`
	Transfer  json.RawMessage `json:"kv_transfer_params"`
	Error     *errorInfo      `json:"error"`
}

func parse(t testing.TB, body string) (r reply) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return r
}

// events splits a stream into its data fields.
func events(t testing.TB, body string) []string {
	t.Helper()
	var out []string
	for e := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(e, "data: ")
		if !ok || strings.Contains(data, "\n") {
			t.Fatalf("event %q", e)
		}
		out = append(out, data)
	}
	return out
}

// nextEvent reads one event of a running stream.
func nextEvent(t testing.TB, r *bufio.Reader) string {
	t.Helper()
	line, err := r.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	if blank, err := r.ReadBytes('\n'); err != nil || len(blank) != 1 {
		t.Fatalf("after an event: %q, %v", blank, err)
	}
	return string(bytes.TrimPrefix(bytes.TrimSpace(line), []byte("data: ")))
}
