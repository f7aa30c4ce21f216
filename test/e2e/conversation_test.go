package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// blockSize is that of the simulated engines, in tokens.
const blockSize = 16

// dialogue is one conversation under way.
type dialogue struct {
	name string
	next question // the turn to ask
	// held is what the worker must hold of next, as far as the picker can know: the
	// tokens of the last prompt and its answer, less the last block, which is
	// not complete, and less the last chunk of 64 bytes, which is not either. A
	// chunk of plain text has at most a block of tokens.
	held int
	at   string // the worker that holds it
}

// turn is how a kind of conversation goes on after an answer.
type turn func(t *testing.T, q question, a answer, line string) question

// testConversations: eight conversations, interleaved. Every follow-up goes to
// the worker that holds it, and that worker's engine finds as much in its cache
// as the picker predicted. Both count whole blocks; the prediction may be one
// block of 16 tokens short, as its text is known in chunks of 64 bytes.
func (s *stack) testConversations(t *testing.T) {
	t.Run("chat", func(t *testing.T) {
		s.converse(t, func(_ *testing.T, q question, a answer, line string) question {
			q.Messages = append(q.Messages, message{"assistant", a.text}, message{"user", line})
			return q
		}, func(i int) question { return rules(s.model, fmt.Sprintf("house %d", i), 30, 40) })
	})
	t.Run("text", func(t *testing.T) {
		s.converse(t, func(_ *testing.T, q question, a answer, line string) question {
			q.Prompt = q.Prompt.(string) + a.text + " " + line + "\n"
			return q
		}, func(i int) question {
			return question{Model: s.model, Prompt: story(fmt.Sprintf("street %d", i), 30), MaxTokens: 40}
		})
	})
	t.Run("ids", func(t *testing.T) {
		s.converse(t, func(t *testing.T, q question, a answer, line string) question {
			t.Helper()
			q.Prompt = slices.Concat(q.Prompt.([]uint32), a.ids, s.tokenize(t, " "+line))
			return q
		}, func(i int) question {
			ids := s.tokenize(t, story(fmt.Sprintf("town %d", i), 30))
			return question{Model: s.model, Prompt: ids, MaxTokens: 40, ReturnIDs: true}
		})
	})
}

func (s *stack) converse(t *testing.T, goOn turn, begin func(int) question) {
	t.Helper()
	list := make([]dialogue, 8)
	for i := range list {
		list[i] = dialogue{name: fmt.Sprintf("conversation %d", i), next: begin(i)}
	}
	workers := map[string]bool{}
	for n := range 4 {
		for i := range list {
			d := &list[i]
			s.turn(t, d, n, goOn)
			workers[d.at] = true
		}
	}
	if len(workers) < 2 {
		t.Errorf("all conversations went to %v", workers)
	}
}

// turn asks a conversation's next question, streamed in every second one.
func (s *stack) turn(t *testing.T, d *dialogue, n int, goOn turn) {
	t.Helper()
	if d.held > 0 {
		s.awaitCached(t, d.next, d.held)
	}
	q := d.next
	if n%2 == 1 {
		q = q.streamed()
	}
	a := s.gateway.ask(t, q)
	plan := s.plan(t, a)
	if plan.Served != plan.Decode.Address {
		t.Errorf("%s, turn %d: planned for %s, served by %q", d.name, n, plan.Decode.Address, plan.Served)
	}
	if d.at != "" && plan.Served != d.at {
		t.Errorf("%s, turn %d went to %s, not to %s that holds it: %+v", d.name, n, plan.Served, d.at, plan)
	}
	if reported := a.usage.Details.Cached; plan.Cached > reported || reported-plan.Cached > blockSize {
		t.Errorf("%s, turn %d: the picker predicted %d cached tokens, the engine reports %d", d.name, n, plan.Cached, reported)
	}
	if plan.Cached < d.held {
		t.Errorf("%s, turn %d: %d tokens predicted to be cached, want at least %d", d.name, n, plan.Cached, d.held)
	}
	if strings.TrimSpace(a.text) == "" {
		t.Fatalf("%s, turn %d: no text: %s", d.name, n, a.raw)
	}
	d.at = plan.Served
	d.held = max(1, a.usage.Total-2*blockSize)
	d.next = goOn(t, d.next, a, fmt.Sprintf("And what comes after number %d?", n))
}

// testEmptyRestart: an engine that lost its cache gets no credit for it, and
// serves on.
func (s *stack) testEmptyRestart(t *testing.T) {
	q := rules(s.model, "mill", 120, 8)
	plan := s.plan(t, s.gateway.ask(t, q))
	before := s.awaitCached(t, q, 512)
	if before.Decode != plan.Decode {
		t.Fatalf("asked at %+v, held by %+v", plan.Decode, before.Decode)
	}
	life := s.worker(t, plan.Served).life(t)
	s.worker(t, plan.Served).fault(t, `{"kind":"restart"}`)
	waitFor(t, "the picker to forget the cache of "+plan.Served, patience, func() error {
		for _, c := range s.explain(t, q).Costs {
			if c.Cached != 0 {
				return fmt.Errorf("%s still has credit for %d tokens", c.Target.Address, c.Cached)
			}
		}
		return nil
	})
	s.awaitReady(t, len(s.workers))
	again := s.gateway.ask(t, q)
	after := s.plan(t, again)
	if after.Cached != 0 || again.usage.Details.Cached != 0 {
		t.Errorf("after the restart: %d tokens predicted, %d reported", after.Cached, again.usage.Details.Cached)
	}
	s.awaitCached(t, q, 512) // and what is cached now is known again
	direct := s.worker(t, plan.Served).agent.ask(t, rules(s.model, "mill", 121, 8))
	if direct.text == "" {
		t.Errorf("the worker that was restarted says nothing: %s", direct.raw)
	}
	if now := s.worker(t, plan.Served).life(t); now != life+1 {
		t.Errorf("the engine's life is number %d, want %d", now, life+1)
	}
	s.sameContent(t)
}

// life counts the restarts of the worker's engine.
func (w *worker) life(t *testing.T) int {
	t.Helper()
	r := w.engine.do(t, http.MethodGet, "/sim/content", "")
	var content struct{ Life *int }
	if err := json.Unmarshal(r.body, &content); err != nil || content.Life == nil {
		t.Fatalf("the engine's content: %v: %s", err, r)
	}
	return *content.Life
}
