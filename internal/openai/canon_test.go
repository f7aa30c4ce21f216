package openai

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/kvindex"
)

// shared is the number of chunks two prompts have in common.
func shared(a, b *kvindex.ChunkHasher) int {
	n := 0
	for n < min(len(a.Chunks()), len(b.Chunks())) && a.Chunks()[n] == b.Chunks()[n] {
		n++
	}
	return n
}

// TestContentParts is case C03.
func TestContentParts(t *testing.T) {
	var rs []*Request
	var hs []*kvindex.ChunkHasher
	for _, l := range caseLines(t, "C03-bodies.jsonl") {
		r := mustParse(t, APIChat, string(l))
		rs = append(rs, r)
		hs = append(hs, r.Hashers(r.Seed("secret", "base", ""))[0])
	}
	for _, line := range []int{2, 3} {
		if got := streams(rs[line-1])[0]; got != streams(rs[0])[0] {
			t.Errorf("line %d: got %q, want the stream of line 1", line, got)
		}
	}
	// Lines 4 and 5 differ in their image: the match ends before it.
	s4, s5 := streams(rs[3])[0], streams(rs[4])[0]
	image := strings.Index(s4, framePart)
	if s4[:image] != s5[:image] || s4 == s5 {
		t.Errorf("lines 4 and 5 do not part at the image: %q and %q", s4, s5)
	}
	if got, want := shared(hs[3], hs[4]), image/kvindex.ChunkSize; got != want {
		t.Errorf("lines 4 and 5: got %d chunks in common, want %d", got, want)
	}
	// Lines 6 and 7 begin with a part of another kind: nothing in common.
	if shared(hs[5], hs[6]) != 0 || shared(hs[6], hs[0]) != 0 {
		t.Error("lines 6 and 7 match past their first part")
	}
	// No content, no parts and a part without text are the same.
	if a, b := streams(rs[7])[0], streams(rs[8])[0]; a != b || a != "\x00Muser" {
		t.Errorf("lines 8 and 9: got %q and %q", a, b)
	}
	if shared(hs[9], hs[10]) == 0 {
		t.Error("lines 10 and 11 do not share their first message")
	}
}

func TestHashersHashTheStreams(t *testing.T) {
	r := mustParse(t, APICompletions, `{"prompt":["`+strings.Repeat(`a\u00e9`, 100)+`","b"]}`)
	for i, h := range r.Hashers(7) {
		want := kvindex.NewChunkHasher(7)
		fmt.Fprint(want, streams(r)[i])
		if !slices.Equal(h.Chunks(), want.Chunks()) || h.Len() != want.Len() {
			t.Errorf("prompt %d: got %d chunks of %d bytes, want %d of %d", i, len(h.Chunks()), h.Len(), len(want.Chunks()), want.Len())
		}
	}
	if hs := mustParse(t, APICompletions, `{"prompt":[1,2]}`).Hashers(7); len(hs) != 0 {
		t.Errorf("got %d hashers for token ids", len(hs))
	}
}

// TestNextTurn continues random conversations: the stream of each turn, with
// the reply, is the beginning of the next one's.
func TestNextTurn(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := speller{rng}
	for range 2_000 {
		c := randomChat(rng)
		r := mustParse(t, APIChat, s.body(c))
		h := r.Hashers(1)[0]
		prompt := streams(r)[0]
		reply := strings.Repeat(word(rng), 1+rng.IntN(100))
		r.Reply(h, reply)
		c.messages = append(c.messages,
			chatMessage{role: "assistant", content: []piece{{text: reply}}},
			chatMessage{role: "user", content: randomContent(rng)})
		next := mustParse(t, APIChat, s.body(c))
		if got := streams(next)[0]; !strings.HasPrefix(got, prompt) {
			t.Fatalf("%q does not begin with %q", got, prompt)
		}
		nh := next.Hashers(1)[0]
		if shared(h, nh) != len(h.Chunks()) || nh.Len() <= h.Len() {
			t.Fatalf("reply %q: %d of %d chunks in common, %d bytes then %d", reply, shared(h, nh), len(h.Chunks()), h.Len(), nh.Len())
		}
	}
}

func TestNextCompletion(t *testing.T) {
	reply := strings.Repeat("b\x00", 100)
	r := mustParse(t, APICompletions, `{"prompt":"a"}`)
	h := r.Hashers(1)[0]
	r.Reply(h, reply)
	next := mustParse(t, APICompletions, `{"prompt":"a`+strings.ReplaceAll(reply, "\x00", `\u0000`)+`c"}`).Hashers(1)[0]
	if shared(h, next) != len(h.Chunks()) || h.Len() != 201 {
		t.Errorf("got %d of %d chunks, %d bytes", shared(h, next), len(h.Chunks()), h.Len())
	}
}

// TestSeed: what changes the rendered prompt changes the seed, its spelling and
// other members do not.
func TestSeed(t *testing.T) {
	const plain = `{"messages":[{"role":"user"}]`
	base := mustParse(t, APIChat, plain+`}`).Seed("s", "b", "l")
	for _, more := range []string{
		`,"temperature":1`, `,"response_format":{"type":"text"}`, `,"tool_choice":null`, `,"tools":[{}]`,
		`,"chat_template_kwargs":{"x":1},"chat_template_kwargs":null`, `,"cache_salt":""`,
	} {
		if mustParse(t, APIChat, plain+more+`}`).Seed("s", "b", "l") != base {
			t.Errorf("%s changes the seed", more)
		}
	}
	seen := map[kvindex.Seed]string{base: "the plain body"}
	for _, more := range []string{
		`"cache_salt":"x"`, `"chat_template":"x"`, `"chat_template_kwargs":{"x":1}`, `"chat_template_kwargs":{"x":2}`,
		`"chat_template_next_year":1`, `"reasoning_effort":"low"`, `"documents":[{"text":"d"}]`, `"tool_choice":"none"`,
		`"add_generation_prompt":false`, `"continue_final_message":false`, `"continue_final_message":true`,
		`"truncate_prompt_tokens":4`, `"add_special_tokens":true`, `"mm_processor_kwargs":{"n":4}`,
	} {
		got := mustParse(t, APIChat, plain+","+more+`}`).Seed("s", "b", "l")
		if was, ok := seen[got]; ok {
			t.Errorf("%s has the seed of %s", more, was)
		}
		seen[got] = more
	}
	r := mustParse(t, APIChat, plain+`}`)
	for _, other := range []kvindex.Seed{
		r.Seed("t", "b", "l"), r.Seed("s", "c", "l"), r.Seed("s", "b", "m"), r.Seed("s", "bl", ""),
		mustParse(t, APICompletions, `{"prompt":"x"}`).Seed("s", "b", "l"),
	} {
		if was, ok := seen[other]; ok {
			t.Errorf("a seed of other parts is that of %s", was)
		}
		seen[other] = "another"
	}
	a := mustParse(t, APIChat, plain+`,"chat_template_kwargs":{"a":"A/","b":[1,2]},"documents":[]}`)
	b := mustParse(t, APIChat, `{"documents":[ ],"chat_template_kwargs" : { "a" : "\u0041\/" , "b" : [ 1, 2 ] },"messages":[{"role":"user"}]}`)
	if a.Seed("s", "b", "") != b.Seed("s", "b", "") {
		t.Error("the seed depends on spelling or order")
	}
}

// TestOrderOfFreeJSON: templates render tools as they come.
func TestOrderOfFreeJSON(t *testing.T) {
	a := mustParse(t, APIChat, `{"messages":[{}],"tools":[{"a":1,"b":2}]}`)
	b := mustParse(t, APIChat, `{"messages":[{}],"tools":[{"b":2,"a":1}]}`)
	if streams(a)[0] == streams(b)[0] {
		t.Error("tools of another order are the same")
	}
}

// TestLargeBodies: the memory used does not depend on the number of messages,
// members or escapes, but for the hashes themselves.
func TestLargeBodies(t *testing.T) {
	text := strings.Repeat(`word \"quoted\" caf\u00e9\n`, 17)
	for _, c := range []struct {
		name, body string
	}{
		{"one message", `{"messages":[{"role":"user","content":"` + strings.Repeat(text, 1000) + `"}]}`},
		{"1,000 messages", `{"messages":[` + strings.Repeat(`{"role":"user","content":"`+text+`"},`, 1000) + `{}]}`},
		{"20,000 parts", `{"messages":[{"role":"user","content":[` + strings.Repeat(`{"type":"text","text":"x"},`, 20_000) + `""]}]}`},
		{"many members", `{"messages":[{"role":"user"` + strings.Repeat(`,"member":"some text"`, 20_000) + `}]}`},
		{"many top members", `{"messages":[{"role":"user"}]` + strings.Repeat(`,"member":"some text"`, 20_000) + `}`},
	} {
		body := []byte(c.body)
		if len(body) < 400_000 {
			t.Fatalf("%s: only %d bytes", c.name, len(body))
		}
		allocs := testing.AllocsPerRun(3, func() {
			r, err := Parse(APIChat, body)
			if err != nil {
				t.Fatal(err)
			}
			r.Hashers(r.Seed("s", "b", ""))
		})
		if allocs > 60 {
			t.Errorf("%s: %v allocations", c.name, allocs)
		}
	}
}

func TestTooManyTemplateOptions(t *testing.T) {
	var sb strings.Builder
	for i := range maxSeedParts + 1 {
		fmt.Fprintf(&sb, `,"chat_template_%d":1`, i)
	}
	if _, err := Parse(APIChat, []byte(`{"messages":[{}]`+sb.String()+`}`)); err == nil {
		t.Error("no error")
	}
}
