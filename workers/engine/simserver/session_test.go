package simserver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/workers/engine/sim"
)

// idle waits until no request is in the engine and checks that none of its
// blocks is in use.
func idle(t *testing.T, s *Server) {
	t.Helper()
	var st sim.Stats
	until(t, "the engine is idle", func() bool {
		st = stats(t, s)
		return st.Running+st.Waiting == 0
	})
	if st.UsedBlocks != 0 || st.QueuedTokens != 0 || st.HeldRequests != 0 {
		t.Errorf("an idle engine has %+v", st)
	}
}

// TestConversation checks what D3's learning rests on: the next turn's prompt
// begins with this turn's prompt and reply, token by token, and is a cache hit.
func TestConversation(t *testing.T) {
	s := start(t, nil)
	type msg struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := []msg{{"system", "You answer at length and with care."}}
	var before []uint32
	for turn := range 6 {
		messages = append(messages, msg{"user", fmt.Sprintf("Question %d: what is it, and why?", turn)})
		body, err := json.Marshal(map[string]any{"messages": messages, "max_tokens": 37, "return_token_ids": true, "ignore_eos": true})
		if err != nil {
			t.Fatal(err)
		}
		a := parse(t, post(t, s, "/v1/chat/completions", string(body)))
		if !slices.Equal(a.PromptIDs[:len(before)], before) {
			t.Fatalf("turn %d: prompt %v does not begin with %v", turn, a.PromptIDs, before)
		}
		if want := len(before) / 16 * 16; a.Usage.Details.Cached < want-16 {
			t.Errorf("turn %d: %d cached tokens, want about %d", turn, a.Usage.Details.Cached, want)
		}
		before = slices.Concat(a.PromptIDs, a.Choices[0].TokenIDs)
		messages = append(messages, msg{"assistant", a.Choices[0].Message.Content})
	}
	idle(t, s)
}

// TestAbort checks that a client that goes away takes its sequences out of the
// engine at once, streaming or not, running or waiting.
func TestAbort(t *testing.T) {
	s := start(t, func(c *Config) { c.Speed, c.MaxSeqs = 1, 2 })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const endless = `"prompt":"Once upon a time","max_tokens":8000,"ignore_eos":true`
	resp, err := request(ctx, t, s, http.MethodPost, "/v1/completions", `{`+endless+`,"stream":true,"n":3}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	nextEvent(t, bufio.NewReader(resp.Body))

	unary := make(chan error, 1)
	go func() {
		r, err := request(ctx, t, s, http.MethodPost, "/v1/completions", `{`+endless+`}`)
		if err == nil {
			r.Body.Close()
		}
		unary <- err
	}()
	until(t, "two run, two wait", func() bool { st := stats(t, s); return st.Running == 2 && st.Waiting == 2 })
	cancel()
	if err := <-unary; err == nil {
		t.Error("the unary request was answered")
	}
	idle(t, s)
	until(t, "four aborts are counted", func() bool {
		_, m := call(t, s, http.MethodGet, "/metrics", "")
		return strings.Contains(m, `finished_reason="abort",model_name="tiny"} 4`)
	})
}

// TestStopStringFreesTheEngine checks that a stop string ends the sequence, not
// only the answer.
func TestStopStringFreesTheEngine(t *testing.T) {
	s := start(t, func(c *Config) { c.Speed = 2 })
	a := parse(t, post(t, s, "/v1/completions", `{"prompt":"Once upon a time","max_tokens":8000,"ignore_eos":true,"stop":["created"],"n":1}`))
	if a.Choices[0].StopReason == nil || *a.Choices[0].StopReason != "created" {
		t.Errorf("answer %+v", a)
	}
	idle(t, s)
}

// TestManyStreams runs streams in parallel and compares each with its own
// unary answer.
func TestManyStreams(t *testing.T) {
	s := start(t, func(c *Config) { c.MaxSeqs = 16; c.Blocks = 256; c.MaxModelLen = 2048 })
	var wg sync.WaitGroup
	for i := range 48 {
		wg.Go(func() {
			body := fmt.Sprintf(`"prompt":"Story number %d begins with a %s","max_tokens":40,"ignore_eos":true`, i%12, strings.Repeat("very ", i))
			one := parse(t, post(t, s, "/v1/completions", "{"+body+"}")).Choices[0].Text
			var text strings.Builder
			all := events(t, post(t, s, "/v1/completions", "{"+body+`,"stream":true}`))
			for _, e := range all[:len(all)-1] {
				text.WriteString(parse(t, e).Choices[0].Text)
			}
			if text.String() != one || one == "" {
				t.Errorf("stream %d: %q, unary %q", i, text.String(), one)
			}
			if all[len(all)-1] != "[DONE]" {
				t.Errorf("stream %d ends with %q", i, all[len(all)-1])
			}
		})
	}
	wg.Wait()
	idle(t, s)
}

// TestChunkAllocations holds the cost of a token on its way out.
func TestChunkAllocations(t *testing.T) {
	s := start(t, nil)
	for _, chat := range []bool{true, false} {
		j := &job{id: "x", model: "tiny", chat: chat, n: 1, prompts: [][]uint32{{1}}, sampling: sampling{ReturnTokenIDs: true}}
		r := newRun(s, j, 0)
		st := &streamer{run: r, head: j.chunkHead(), begun: true, buf: make([]byte, 0, 1024), dirty: make([]int, 0, 1)}
		c := &r.choices[0]
		c.tokens, c.text = make([]uint32, 0, 1<<12), make([]byte, 0, 1<<16)
		items := []item{{}}
		n := testing.AllocsPerRun(1000, func() {
			st.buf = st.buf[:0]
			c.add(sim.Token{Token: 6893, Index: 1}, " word")
			st.chunks(items)
		})
		if n != 0 {
			t.Errorf("chat %v: %v allocations for a chunk", chat, n)
		}
	}
}
