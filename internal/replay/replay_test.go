package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/workers/engine/bpe"
)

func describe(e Entry) string {
	return fmt.Sprintf("at=%s isl=%d osl=%d blocks=%v\n", e.At, e.ISL, e.OSL, e.Blocks)
}

func unwrapAll(err error) error {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err
}

func testPrompter(t *testing.T) (*Prompter, *bpe.Tokenizer) {
	t.Helper()
	tokens, err := bpe.Load()
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPrompter(tokens)
	if err != nil {
		t.Fatal(err)
	}
	return p, tokens
}

// TestPromptLength holds what the replay rests on: a prompt has exactly ISL
// tokens, and equal ids give equal tokens at equal places.
func TestPromptLength(t *testing.T) {
	p, tokens := testPrompter(t)
	for _, isl := range []int{1, 2, 37, 511, 512, 513, 1024, 5000} {
		blocks := make([]uint64, (isl+BlockTokens-1)/BlockTokens)
		for i := range blocks {
			blocks[i] = uint64(isl + i)
		}
		ids := tokens.Encode(p.Prompt(Entry{ISL: isl, Blocks: blocks}))
		if len(ids) != isl {
			t.Errorf("isl %d: prompt has %d tokens", isl, len(ids))
		}
	}
	a := tokens.Encode(p.Prompt(Entry{ISL: 1536, Blocks: []uint64{7, 8, 9}}))
	b := tokens.Encode(p.Prompt(Entry{ISL: 1536, Blocks: []uint64{7, 8, 10}}))
	for i := range a {
		if (a[i] == b[i]) != (i < 1024) && i < 1024 {
			t.Fatalf("prompts part at token %d, want 1024", i)
		}
	}
	if fmt.Sprint(a[1024:]) == fmt.Sprint(b[1024:]) {
		t.Error("different ids gave the same text")
	}
}

// TestPromptDensity guards the point of mixed text: a constant number of bytes
// a token would make byte-proportional depths trivially exact.
func TestPromptDensity(t *testing.T) {
	p, tokens := testPrompter(t)
	text := p.Prompt(Entry{ISL: 2048, Blocks: []uint64{1, 2, 3, 4}})
	least, most := 1e9, 0.0
	for i := 0; i+256 <= len(text); i += 256 {
		d := float64(len(tokens.Encode(text[i : i+256])))
		least, most = min(least, d), max(most, d)
	}
	if most < 1.2*least {
		t.Errorf("tokens in 256 bytes between %.0f and %.0f: too even", least, most)
	}
}

// gateway answers like an engine behind the gateway and keeps what it got.
type gateway struct {
	mu     sync.Mutex
	bodies []completionRequest
	header http.Header
	answer func(w http.ResponseWriter)
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasPrefix(r.URL.Path, "/plans/"):
		_, _ = io.WriteString(w, `{"decode":{"worker":"w1"},"reason":"cached","ttftMs":12.5,"cached":512}`) // the test would see it missing
	case r.URL.Path == "/v1/models":
		_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
	default:
		var body completionRequest
		_ = json.NewDecoder(r.Body).Decode(&body)
		g.mu.Lock()
		g.bodies, g.header = append(g.bodies, body), r.Header
		g.mu.Unlock()
		g.answer(w)
	}
}

const goodStream = "data: {\"choices\":[{\"index\":0,\"text\":\" a\"}]}\n\ndata: {\"choices\":[{\"index\":0,\"text\":\" b\",\"finish_reason\":\"length\"}]}\n\n" +
	"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":600,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":512}}}\n\ndata: [DONE]\n\n"

func TestRun(t *testing.T) {
	cases := []struct {
		name    string
		answer  func(http.ResponseWriter)
		wantErr string
	}{
		{"good", func(w http.ResponseWriter) { _, _ = io.WriteString(w, goodStream) }, ""},
		{"refused", func(w http.ResponseWriter) { http.Error(w, "busy", http.StatusTooManyRequests) }, "status 429: busy"},
		{"cut", func(w http.ResponseWriter) { _, _ = io.WriteString(w, goodStream[:60]) }, "answer cut before [DONE]: EOF"},
		{"error event", func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, "data: {\"error\":{\"message\":\"engine died\"}}\n\n")
		}, `error in the stream: {"message":"engine died"}`},
		{"no usage", func(w http.ResponseWriter) { _, _ = io.WriteString(w, "data: [DONE]\n\n") }, "the answer ended without usage"},
	}
	p, _ := testPrompter(t)
	entries := []Entry{{At: 0, ISL: 600, OSL: 2, Blocks: []uint64{1, 2}}, {At: time.Millisecond, ISL: 3, OSL: 1, Blocks: []uint64{4}}}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			g := &gateway{answer: c.answer}
			server := httptest.NewServer(g)
			defer server.Close()
			client := &Client{HTTP: server.Client(), URL: server.URL, Model: "m", Policy: "kv", Admin: strings.TrimPrefix(server.URL, "http://")}
			var seen int
			answers := Run(context.Background(), client, p, entries, Options{
				Speed: 1, TimeScale: 1, Prefix: "t", Progress: func(done, _ int) { seen = done },
			})
			if seen != len(entries) || len(answers) != len(entries) {
				t.Fatalf("progress %d, answers %d, want %d", seen, len(answers), len(entries))
			}
			for _, a := range answers {
				if a.Err != c.wantErr || a.Worker != "w1" || a.PredictedMs != 12.5 || a.PredictedCached != 512 {
					t.Errorf("answer %+v, want error %q", a, c.wantErr)
				}
			}
			if got := g.bodies[0]; got.Model != "m" || !got.Stream || !got.IgnoreEOS || got.MaxTokens != got.MinTokens {
				t.Errorf("sent %+v", got)
			}
			if got := g.header.Get("x-kvlane-policy"); got != "kv" {
				t.Errorf("policy header %q", got)
			}
		})
	}
}

func TestRunCancelled(t *testing.T) {
	p, _ := testPrompter(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	answers := Run(ctx, &Client{HTTP: http.DefaultClient, URL: "http://127.0.0.1:0"}, p,
		[]Entry{{At: time.Hour, ISL: 1, OSL: 1, Blocks: []uint64{1}}}, Options{Speed: 1, TimeScale: 1})
	if !strings.Contains(answers[0].Err, "context canceled") {
		t.Errorf("got %+v, want it marked as not sent", answers[0])
	}
}

func TestSummarize(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	r := Summarize([]Answer{
		{First: ms(100), Last: ms(200), PromptTokens: 1000, CachedTokens: 250, OutputTokens: 11, Worker: "a", Reason: "cached", PredictedMs: 90, PredictedCached: 300},
		{First: ms(300), Last: ms(300), PromptTokens: 1000, OutputTokens: 1, Worker: "b", Reason: "least-cost", PredictedCached: -1},
		{Err: "status 503", Worker: ""},
	}, 10, SLO{TTFTMs: 2000, TPOTMs: 100})
	if r.TTFT.Mean != 2000 || r.TTFT.P50 != 1000 || r.TTFT.P99 != 3000 || r.TPOT.Mean != 100 {
		t.Errorf("latencies in trace time: %+v %+v", r.TTFT, r.TPOT)
	}
	if r.Goodput != 1.0/3 || r.HitRate != 0.125 || r.Errors != 1 || len(r.Workers) != 2 {
		t.Errorf("got %+v", r)
	}
	if p := r.Prediction; p == nil || p.Requests != 1 || math.Abs(p.TTFT.P90-0.1) > 1e-9 || p.CachedOver != 0.05 || p.CachedUnder != 0 {
		t.Errorf("prediction %+v", p)
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "TTFT p50 10.0 %") || !strings.Contains(out.String(), "error: status 503") {
		t.Errorf("Print: %v\n%s", err, out.String())
	}
}

func TestObeyed(t *testing.T) {
	priced := Result{Reasons: []Share{{"cached", 3}, {"overloaded", 1}}}
	compared := Result{Reasons: []Share{{"policy", 3}, {"no-endpoint", 1}}}
	if !priced.Obeyed("kv") || priced.Obeyed("random") || compared.Obeyed("kv") || !compared.Obeyed("random") || !(Result{}).Obeyed("random") {
		t.Error("a picker that ignores the policy is not told from one that follows it")
	}
}

func TestBar(t *testing.T) {
	var lines, line bytes.Buffer
	plain, terminal := NewBar(&lines, 20, false), NewBar(&line, 20, true)
	for i := 1; i <= 20; i++ {
		plain.Update(i, 0)
		terminal.Update(i, 1)
	}
	if got := strings.Count(lines.String(), "\n"); got != 11 {
		t.Errorf("plain bar wrote %d lines, want 11:\n%s", got, lines.String())
	}
	if !strings.HasSuffix(line.String(), "20/20, 1 errors\n") || strings.Count(line.String(), "\n") != 1 {
		t.Errorf("terminal bar: %q", line.String())
	}
}

func TestFirstModel(t *testing.T) {
	server := httptest.NewServer(&gateway{})
	defer server.Close()
	c := &Client{HTTP: server.Client(), URL: server.URL}
	if got, err := c.FirstModel(context.Background()); err != nil || got != "m" {
		t.Errorf("FirstModel = %q, %v", got, err)
	}
}
