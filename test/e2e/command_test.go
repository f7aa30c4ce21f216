package e2e_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/porttest"
)

// command runs kvlane to its end and returns its standard output and error.
func command(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut strings.Builder
	cmd := exec.CommandContext(t.Context(), found.kvlane, args...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // the race detector waits a second for nothing here
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

func mustRun(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	stdout, stderr, err := command(t, stdin, args...)
	if err != nil {
		t.Fatalf("kvlane %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout
}

func contains(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in:\n%s", w, text)
		}
	}
}

// testExplain: the plan of a request that was made, and of one that might be.
func (s *stack) testExplain(t *testing.T) {
	page := strings.TrimPrefix(s.page, "http://")
	q := rules(s.model, "chapel", 60, 4)
	a := s.gateway.ask(t, q)
	plan := s.plan(t, a)
	s.awaitCached(t, q, 256)

	byID := mustRun(t, "", "explain", "--admin", page, a.request)
	contains(t, byID, a.request, s.model, "served   by "+plan.Served+", answered", "reason   "+string(plan.Reason), "total ms")
	for _, w := range s.workers {
		contains(t, byID, string(w.id))
	}
	body := string(q.body(t))
	contains(t, mustRun(t, body, "explain", "--admin", page), "reason   cached", "choice   "+plan.Served)
	contains(t, mustRun(t, body, "explain", "--admin", page, "--policy", "round-robin"), "reason   policy")
	var v struct{ Reason, Model string }
	if err := json.Unmarshal([]byte(mustRun(t, body, "explain", "--admin", page, "--json")), &v); err != nil || v.Reason != "cached" || v.Model != s.model {
		t.Errorf("as JSON: %v, %+v", err, v)
	}
	// What would be refused is shown too, and is an error.
	out, _, err := command(t, `{"model": "gpt-0", "messages": [{"role": "user", "content": "x"}]}`, "explain", "--admin", page)
	contains(t, out, "refused  no-model")
	if err == nil {
		t.Error("an unknown model is no error")
	}
	out, _, err = command(t, `{"messages": []}`, "explain", "--admin", page)
	if !strings.Contains(out, "refused  malformed: ") || strings.Contains(out, "reason") || err == nil {
		t.Errorf("a malformed body: %v\n%s", err, out)
	}
	for want, args := range map[string][]string{
		"kvlane: ask the picker: status 404": {"--admin", page, "no-such-request"},
		"kvlane: standard input is empty":    {"--admin", page},
		"kvlane: no picker at ":              {"--admin", addr(porttest.Take(t, 1)), "any"},
	} {
		if _, stderr, err := command(t, "", append([]string{"explain"}, args...)...); err == nil || !strings.HasPrefix(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("explain %v: %v, %q", args, err, stderr)
		}
	}
}

// testReplay sends the first requests of a recorded trace.
func (s *stack) testReplay(t *testing.T) {
	result := filepath.Join(t.TempDir(), "replay.json")
	trace := filepath.Join(root, "test", "data", "traces", "conversation_trace.jsonl.gz")
	out := mustRun(t, "", "replay", trace, "--limit", "30", "--time-scale", "20", "--speed", "4",
		"--url", s.gateway.url, "--admin", strings.TrimPrefix(s.page, "http://"), "--json", result)
	contains(t, out, "TTFT")
	text, err := os.ReadFile(result)
	if err != nil {
		t.Fatal(err)
	}
	type dist struct{ Mean, P50, P90, P99 float64 }
	var r struct {
		Requests, Errors int
		TTFT             dist    `json:"ttft_ms"`
		TPOT             dist    `json:"tpot_ms"`
		E2E              dist    `json:"e2e_ms"`
		HitRate          float64 `json:"hit_rate"`
		Goodput          *float64
		PromptTokens     int `json:"prompt_tokens"`
		OutputTokens     int `json:"output_tokens"`
		Workers          []struct {
			Name     string
			Requests int
		}
	}
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	// The prompts are as long as the trace says: 424,999 tokens in the first 30.
	const tokens = 424999
	sum := 0
	for _, w := range r.Workers {
		sum += w.Requests
	}
	if r.Requests != 30 || r.Errors != 0 || sum != 30 || len(r.Workers) != len(s.workers) || r.Goodput == nil ||
		r.TTFT.Mean <= 0 || r.TPOT.P50 <= 0 || r.E2E.P99 < r.TTFT.P50 || r.HitRate <= 0 || r.OutputTokens <= 0 ||
		r.PromptTokens < tokens*95/100 || r.PromptTokens > tokens*105/100 {
		t.Errorf("result %s", text)
	}
	if _, stderr, err := command(t, "", "replay", result, "--url", s.gateway.url); err == nil || strings.Count(stderr, "\n") != 1 {
		t.Errorf("a file that is no trace: %v, %q", err, stderr)
	}
}

// What envoy-config prints is what Envoy takes.
func TestEnvoyConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	text := mustRun(t, "", "envoy-config", "--endpoints", "10.0.0.5:8000,10.0.0.6:8000")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), found.envoy, "--mode", "validate", "--log-level", "warn", "-c", file).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for want, args := range map[string][]string{
		"kvlane: envoy options: endpoints":  nil,
		"kvlane: envoy options: listen \"x": {"--endpoints", "10.0.0.5:8000", "--listen", "x"},
	} {
		if _, stderr, err := command(t, "", append([]string{"envoy-config"}, args...)...); err == nil || !strings.HasPrefix(stderr, want) {
			t.Errorf("envoy-config %v: %v, %q", args, err, stderr)
		}
	}
}

func TestVersion(t *testing.T) {
	contains(t, mustRun(t, "", "version"), "kvlane ", " commit ", " go1.")
}
