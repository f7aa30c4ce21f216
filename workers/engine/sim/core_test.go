package sim

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
)

// deployment is an engine with the constants of a real one.
func deployment(tb testing.TB, name string) Config {
	tb.Helper()
	d, err := timing.Known().Find(name)
	if err != nil {
		tb.Fatal(err)
	}
	return Config{
		Timing: d.Timing(), Transfer: timing.Known().Transfer, KVBytesPerToken: d.KVBytesPerToken,
		BlockSize: 16, Blocks: d.KVTokens / 16, MaxBatchedTokens: 8192, MaxSeqs: 256, MaxModelLen: 131072,
		PrefixCaching: true, Next: WordNext([]uint32{3, 5, 7, 11, 13, 17, 19, 23}, 0),
	}
}

func mustNew(tb testing.TB, cfg Config) *Core {
	tb.Helper()
	c, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func mustSubmit(tb testing.TB, c *Core, now time.Duration, r Request) {
	tb.Helper()
	if err := c.Submit(now, r); err != nil {
		tb.Fatal(err)
	}
}

// stepOnce does what is due next and says when.
func stepOnce(tb testing.TB, c *Core) (time.Duration, Output) {
	tb.Helper()
	at, ok := c.NextAt()
	if !ok {
		tb.Fatal("nothing is due")
	}
	return at, c.Step(at)
}

// generate runs a prompt alone and returns its text.
func generate(tb testing.TB, c *Core, r Request) []uint32 {
	tb.Helper()
	mustSubmit(tb, c, 0, r)
	var text []uint32
	for {
		_, out := stepOnce(tb, c)
		for _, tok := range out.Tokens {
			text = append(text, tok.Token)
			if tok.Finish != Running {
				return text
			}
		}
	}
}

func numbered(from, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(from + i)
	}
	return tokens
}

// TestStepTimes compares step by step with the formula of internal/timing,
// written out again: a prompt in three chunks, beside a decoding sequence.
func TestStepTimes(t *testing.T) {
	for _, d := range timing.Known().Deployments {
		cfg := deployment(t, d.Name)
		c := mustNew(t, cfg)
		p, q := d.Prefill, d.Decode
		now := 7 * time.Millisecond
		mustSubmit(t, c, now, Request{ID: "short", Prompt: numbered(0, 1000), MaxTokens: 100})
		stepOnce(t, c) // starts
		mustSubmit(t, c, now, Request{ID: "long", Prompt: numbered(5000, 20000), MaxTokens: 3})
		chunk := func(u, c float64) float64 { return p.B*u + p.G*u*(c+u/2) }
		for i, want := range []float64{
			p.A + chunk(1000, 0),
			p.A + chunk(8191, 0) + q.D + q.E + q.F*1001,
			p.A + chunk(8191, 8191) + q.D + q.E + q.F*1002,
			p.A + chunk(20000-2*8191, 2*8191) + q.D + q.E + q.F*1003,
			q.D + 2*q.E + q.F*(1004+20001),
			q.D + 2*q.E + q.F*(1005+20002),
			q.D + q.E + q.F*1006,
		} {
			at, _ := stepOnce(t, c)
			if got := float64(at-now) / 1e6; math.Abs(got-want) > 1e-6 {
				t.Errorf("%s: step %d took %v ms, want %v", d.Name, i, got, want)
			}
			now = at
		}
	}
}

// TestTransferTime is a prompt that comes as a whole from elsewhere.
func TestTransferTime(t *testing.T) {
	cfg := deployment(t, timing.DefaultDeployment)
	c := mustNew(t, cfg)
	mustSubmit(t, c, 0, Request{ID: "d", Prompt: numbered(0, 5000), MaxTokens: 1, RemoteTokens: 5000})
	stepOnce(t, c)
	at, _ := stepOnce(t, c)
	if got, want := float64(at)/1e6, cfg.Transfer.Ms(5000, cfg.KVBytesPerToken); math.Abs(got-want) > 1e-6 {
		t.Errorf("transfer took %v ms, want %v", got, want)
	}
	if st := c.Stats(); st.TransferredTokens != 5000 || st.BusyTime != 0 {
		t.Errorf("stats %+v", st)
	}
}

// TestTextIsTheSameEverywhere: the text depends on the prompt and the seed, not
// on the engine, and goes on the same way on another one.
func TestTextIsTheSameEverywhere(t *testing.T) {
	small := deployment(t, timing.DefaultDeployment)
	small.BlockSize, small.Blocks, small.MaxBatchedTokens, small.MaxSeqs = 512, 8, 64, 1
	prompt := numbered(100, 700)
	whole := generate(t, mustNew(t, deployment(t, "llama-3.1-8b-bf16-1xh100")), Request{ID: "a", Prompt: prompt, MaxTokens: 60})
	if got := generate(t, mustNew(t, small), Request{ID: "b", Prompt: prompt, MaxTokens: 60}); !slices.Equal(got, whole) {
		t.Errorf("another engine wrote %v, want %v", got, whole)
	}
	rest := generate(t, mustNew(t, small), Request{ID: "c", Prompt: slices.Concat(prompt, whole[:25]), MaxTokens: 35})
	if !slices.Equal(rest, whole[25:]) {
		t.Errorf("another engine went on with %v, want %v", rest, whole[25:])
	}
	seeded := Request{ID: "d", Prompt: prompt, MaxTokens: 60, Seed: 1}
	if got := generate(t, mustNew(t, small), seeded); slices.Equal(got, whole) {
		t.Error("another seed wrote the same text")
	}
}

func TestWordNext(t *testing.T) {
	words := []uint32{2, 4, 6}
	count := make(map[uint32]int)
	stops := 0
	next, never := WordNext(words, 10), WordNext(words, 0)
	for state := range uint64(30000) {
		token, stop := next(state)
		count[token]++
		if stop {
			stops++
		}
		if again, stop := never(state); again != token || stop {
			t.Fatalf("state %d: %d %v without stops, %d with", state, again, stop, token)
		}
	}
	for _, w := range words {
		if count[w] < 9000 || count[w] > 11000 {
			t.Errorf("word %d came %d times of 30000, want about 10000", w, count[w])
		}
	}
	if len(count) != len(words) || stops < 2500 || stops > 3500 {
		t.Errorf("%d words and %d stops, want 3 and about 3000", len(count), stops)
	}
}

func TestNewListsAllFaults(t *testing.T) {
	cfg := Config{MaxModelLen: 1, KVBytesPerToken: 1, Blocks: math.MaxInt32}
	cfg.Timing.Prefill.B = math.NaN()
	cfg.Timing.Decode.F = -1
	cfg.Transfer.SetupMs = math.Inf(1)
	_, err := New(cfg)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"BlockSize is 0", "Blocks is 2147483647", "MaxBatchedTokens is 0", "MaxSeqs is 0", "MaxModelLen is 1",
		"Timing.Prefill.B is NaN", "Timing.Decode.F is -1", "Transfer.SetupMs is +Inf", "Transfer.BytesPerSecond is 0", "Next is missing",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

func TestRequestError(t *testing.T) {
	c := mustNew(t, deployment(t, timing.DefaultDeployment))
	mustSubmit(t, c, 0, Request{ID: "a", Prompt: numbered(0, 3), MaxTokens: 1})
	for _, tc := range []struct {
		name string
		r    Request
		want Fault
	}{
		{"no id", Request{Prompt: numbered(0, 3), MaxTokens: 1}, Invalid},
		{"no prompt", Request{ID: "b", MaxTokens: 1}, Invalid},
		{"nothing to generate", Request{ID: "b", Prompt: numbered(0, 3)}, Invalid},
		{"negative", Request{ID: "b", Prompt: numbered(0, 3), MaxTokens: 1, RemoteTokens: -1}, Invalid},
		{"model length", Request{ID: "b", Prompt: numbered(0, 131072), MaxTokens: 1}, TooLong},
		{"largest int", Request{ID: "b", Prompt: numbered(0, 3), MaxTokens: math.MaxInt}, TooLong},
		{"again", Request{ID: "a", Prompt: numbered(0, 3), MaxTokens: 1}, Duplicate},
	} {
		var e *RequestError
		if err := c.Submit(0, tc.r); !errors.As(err, &e) || e.Fault != tc.want || e.ID != tc.r.ID {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if st := c.Stats(); st.Waiting != 1 {
		t.Errorf("%d requests wait, want 1", st.Waiting)
	}
}

// BenchmarkDecodeStep is a step of a full batch of long contexts.
func BenchmarkDecodeStep(b *testing.B) {
	cfg := deployment(b, timing.DefaultDeployment)
	cfg.Blocks, cfg.MaxModelLen = 1<<21, 1<<26
	c := mustNew(b, cfg)
	for i := range 256 {
		mustSubmit(b, c, 0, Request{ID: strconv.Itoa(i), Prompt: numbered(i, 8000), MaxTokens: 1 << 22, LoRA: strconv.Itoa(i)})
	}
	for c.Stats().QueuedTokens > 0 {
		stepOnce(b, c)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		stepOnce(b, c)
	}
}

// BenchmarkLongPrompt is a prompt of 100,000 tokens from Submit to its token.
func BenchmarkLongPrompt(b *testing.B) {
	c := mustNew(b, deployment(b, timing.DefaultDeployment))
	var now time.Duration
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		mustSubmit(b, c, now, Request{ID: "a", Prompt: numbered(i, 100000), MaxTokens: 1})
		for c.Stats().Waiting+c.Stats().Running > 0 {
			now, _ = stepOnce(b, c)
		}
	}
}
