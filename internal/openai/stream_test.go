package openai

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// feed writes data in pieces that end at the cuts, which are in order. It
// returns what was passed on and what was read.
func feed(data []byte, opts StreamOptions, cuts ...int) ([]byte, *Answer) {
	s := NewStream(opts)
	out, at := []byte{}, 0
	for _, c := range append(cuts, len(data)) {
		// A copy with no room behind it: the stream must not keep or grow it.
		chunk := append(make([]byte, 0, c-at), data[at:c]...)
		out = append(out, s.Write(chunk)...)
		clear(chunk)
		at = c
	}
	return append(out, s.Close()...), s.Answer()
}

func everyByte(n int) []int {
	cuts := make([]int, 0, n)
	for i := 1; i < n; i++ {
		cuts = append(cuts, i)
	}
	return cuts
}

const c10Text = "Der Wert von \"usage\" ist 7, data: [DONE] steht hier  \u6f22\u5b57 🙂."

// TestCuts is case C10: each stream whole, byte by byte, and with one cut at
// every position gives the same bytes and the same counts.
func TestCuts(t *testing.T) {
	for _, line := range caseLines(t, "C10-want.jsonl") {
		want := decode(t, line)
		name := fmt.Sprint(want["file"])
		data := caseFile(t, name)
		if strings.HasSuffix(name, ".json") {
			a, err := ParseAnswer(data)
			if err != nil {
				t.Fatal(err)
			}
			checkC10(t, name, a, want, `"usage": 7`)
			continue
		}
		// These differ from C10-usage.sse in their ends only.
		ends := name == "C10-no-final-blank.sse" || name == "C10-no-usage.sse" || name == "C10-cut-before-done.sse"
		runs := [][]int{nil, everyByte(len(data))}
		for i := range data {
			runs = append(runs, []int{i})
		}
		for _, opts := range []StreamOptions{{Collect: true}, {Collect: true, Strip: true}} {
			for i, cuts := range runs {
				if (opts.Strip || ends) && i > 500 && i < len(data)-500 {
					continue // the same events over and over
				}
				out, a := feed(data, opts, cuts...)
				if !bytes.Equal(out, data) {
					t.Fatalf("%s: the bytes changed", name)
				}
				checkC10(t, name, a, want, c10Text)
			}
		}
	}
}

func checkC10(t *testing.T, name string, a *Answer, want map[string]any, text string) {
	t.Helper()
	got := map[string]any{"file": want["file"], "prompt_tokens": nil, "completion_tokens": nil, "cached_tokens": nil}
	if u := a.Usage; u != nil {
		got["prompt_tokens"], got["completion_tokens"], got["cached_tokens"] = fmt.Sprint(u.Prompt), fmt.Sprint(u.Completion), fmt.Sprint(u.Cached)
	}
	for k, v := range want {
		if v != nil && fmt.Sprint(v) != got[k] || v == nil && got[k] != nil {
			t.Fatalf("%s: got %s=%v, want %v", name, k, got[k], v)
		}
	}
	if len(a.Choices) != 1 || a.Choices[0].Text != text || a.Choices[0].Finish != "stop" || !a.Choices[0].Plain || !a.Started {
		t.Fatalf("%s: got %+v, want one plain choice with %q", name, a.Choices, text)
	}
	if a.Done == strings.Contains(name, "cut-before-done") {
		t.Fatalf("%s: done is %v", name, a.Done)
	}
	if a.Skipped != 0 || a.Overflowed {
		t.Fatalf("%s: skipped %d, overflowed %v", name, a.Skipped, a.Overflowed)
	}
}

// TestBytesPassAtOnce: without Strip every chunk is passed on as it comes, with
// Strip every event as soon as it is complete.
func TestBytesPassAtOnce(t *testing.T) {
	chunk := []byte("data: {\"a\"")
	s := NewStream(StreamOptions{})
	if got := s.Write(chunk); &got[0] != &chunk[0] || len(got) != len(chunk) {
		t.Error("the chunk is not passed on as it is")
	}
	s = NewStream(StreamOptions{Strip: true})
	for _, w := range []struct{ in, out string }{
		{"data: {\"a\"", ""}, {":1}\n", ""}, {"\ndata", "data: {\"a\":1}\n\n"}, {": {}\r", ""}, {"\n\r", "data: {}\r\n\r"},
		{"\n", "\n"}, {": ping\r\n\r\n: x", ": ping\r\n\r\n"}, {"\r\r", ": x\r\r"}, {"a: b", ""},
	} {
		if got := string(s.Write([]byte(w.in))); got != w.out {
			t.Errorf("wrote %q: got %q, want %q", w.in, got, w.out)
		}
	}
	if got := string(s.Close()); got != "a: b" {
		t.Errorf("close: got %q", got)
	}
}

// TestAnswers runs testdata/answer.txt: answers in; what was read, and what is
// left without token ids, out.
func TestAnswers(t *testing.T) {
	datadriven.RunTest(t, "testdata/answer.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "unary":
			a, err := ParseAnswer([]byte(d.Input))
			stripped := StripTokenIDs([]byte(d.Input))
			if err != nil {
				return fmt.Sprintf("%s\n%s", err, stripped)
			}
			return fmt.Sprintf("%s%s", showAnswer(a), stripped)
		case "stream":
			in := []byte(strings.ReplaceAll(d.Input, "~", "\n") + "\n\n")
			out, a := feed(in, StreamOptions{Strip: true, Collect: true})
			return showAnswer(a) + strings.ReplaceAll(strings.TrimSuffix(string(out), "\n\n"), "\n\n", "~~")
		default:
			d.Fatalf(t, "unknown command")
			return ""
		}
	})
}

func showAnswer(a *Answer) string {
	var sb strings.Builder
	fmt.Fprintf(&sb, "started=%v done=%v skipped=%d prompt=%v\n", a.Started, a.Done, a.Skipped, a.PromptTokenIDs)
	for _, c := range a.Choices {
		fmt.Fprintf(&sb, "choice %d %q ids=%v prompt=%v finish=%q plain=%v\n", c.Index, c.Text, c.TokenIDs, c.PromptTokenIDs, c.Finish, c.Plain)
	}
	if a.Usage != nil {
		fmt.Fprintf(&sb, "usage %+v\n", *a.Usage)
	}
	if a.KVTransferParams != nil {
		fmt.Fprintf(&sb, "kv %s\n", a.KVTransferParams)
	}
	if a.Error != nil {
		fmt.Fprintf(&sb, "error %s\n", a.Error)
	}
	return sb.String()
}

// TestOverflow: from an event over the bound on, bytes pass unread, wherever
// they are cut.
func TestOverflow(t *testing.T) {
	data := []byte("data: {\"usage\":{\"prompt_tokens\":1}}\n\ndata: {\"token_ids\":[1],\"x\":\"" +
		strings.Repeat("y", 100) + "\"}\n\ndata: [DONE]\n\n")
	for _, strip := range []bool{false, true} {
		for _, cuts := range [][]int{nil, everyByte(len(data)), {60}, {110}} {
			out, a := feed(data, StreamOptions{Strip: strip, MaxEvent: 64}, cuts...)
			if !bytes.Equal(out, data) || !a.Overflowed || a.Done || a.Usage == nil {
				t.Errorf("strip %v, cuts %v: got %q, %+v", strip, cuts, out, a)
			}
		}
	}
}

// TestCountOnly: without Collect, texts and ids are not kept.
func TestCountOnly(t *testing.T) {
	_, a := feed([]byte("data: {\"prompt_token_ids\":[1],\"choices\":[{\"text\":\"x\",\"token_ids\":[2]}]}\n\n"), StreamOptions{})
	want := &Answer{Started: true, Choices: []Choice{{Plain: true}}}
	if !reflect.DeepEqual(a, want) {
		t.Errorf("got %+v, want %+v", a, want)
	}
}

// TestEndlessChoices: an engine that counts without end does not fill memory.
func TestEndlessChoices(t *testing.T) {
	var sb strings.Builder
	for i := range maxChoices + 10 {
		fmt.Fprintf(&sb, "data: {\"choices\":[{\"index\":%d,\"text\":\"x\"}]}\n\n", i)
	}
	if _, a := feed([]byte(sb.String()), StreamOptions{}); len(a.Choices) != maxChoices || a.Skipped != 10 {
		t.Errorf("got %d choices, %d skipped", len(a.Choices), a.Skipped)
	}
}

// randomStream has events of all kinds, well formed and not.
func randomStream(rng *rand.Rand) []byte {
	parts := []string{
		"data: ", "data:", "data", ": ping", "event: x", "\n", "\n\n", "\r\n", "\r\n\r\n", "\r", "[DONE]", "{", "}", "}\n\n",
		`{"choices":[{"index":0,"token_ids":[1,2],"text":"a"}]}` + "\n\n", `"prompt_token_ids":[7]`, ",", `{"token_ids":[1],` + "\ndata: \"usage\":",
		`data: {"usage":{"prompt_tokens":3,"completion_tokens":1},"prompt_token_ids": [1, 2]}` + "\r\n\r\n", "\n data: x", "é",
	}
	var b []byte
	for range rng.IntN(20) {
		b = append(b, parts[rng.IntN(len(parts))]...)
	}
	return b
}

// checkCuts compares a stream cut in pieces with the same stream as a whole.
func checkCuts(t *testing.T, data []byte, maxEvent int, cuts []int) {
	t.Helper()
	for _, strip := range []bool{false, true} {
		opts := StreamOptions{Strip: strip, Collect: true, MaxEvent: maxEvent}
		whole, wantAnswer := feed(data, opts)
		cut, gotAnswer := feed(data, opts, cuts...)
		if !bytes.Equal(whole, cut) || !reflect.DeepEqual(gotAnswer, wantAnswer) {
			t.Fatalf("%q cut at %v, strip %v: got %q and %+v, want %q and %+v", data, cuts, strip, cut, gotAnswer, whole, wantAnswer)
		}
		if !strip && !bytes.Equal(whole, data) {
			t.Fatalf("%q: the bytes changed to %q", data, whole)
		}
	}
}

func TestRandomCuts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 2_000 {
		data := randomStream(rng)
		var cuts []int
		for i := range data {
			if rng.IntN(4) == 0 {
				cuts = append(cuts, i)
			}
		}
		checkCuts(t, data, rng.IntN(100), cuts)
	}
}

func FuzzStream(f *testing.F) {
	for _, name := range []string{"C10-usage.sse", "C10-usage-crlf.sse", "C10-comments.sse"} {
		f.Add(caseFile(f, name)[:200], uint64(1))
	}
	f.Add([]byte("data: {\"choices\":[\ndata: {\"token_ids\":[1],\"a\":1}]}\n\n"), uint64(7))
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var cuts []int
		for i := range data {
			if rng.IntN(8) == 0 {
				cuts = append(cuts, i)
			}
		}
		checkCuts(t, data, int(seed%300), cuts)
		checkCuts(t, data, 0, everyByte(len(data)))
	})
}
