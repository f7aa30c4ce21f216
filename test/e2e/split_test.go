package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
)

// TestPrefillDecode has one stack with two workers for each leg. Their caches
// are small, 24,576 tokens each, so that blocks have to go.
func TestPrefillDecode(t *testing.T) {
	s := startUp(t, 4, "--pd", "--time-scale", "4", "--blocks", "1536")
	t.Run("Remote", s.testRemotePrefill)
	t.Run("Fallback", s.testPrefillFallback)
	t.Run("NoPrefillWorker", s.testNoPrefillWorker)
	t.Run("Index", func(t *testing.T) {
		s.load(t, 60, 180) // far more than the caches hold
		s.awaitIdle(t)
		s.sameContent(t)
	})
}

// busy keeps the decode workers decoding, so that a long prompt is cheaper to
// prefill elsewhere; the returned function ends that.
func (s *stack) busy(t *testing.T) func() {
	t.Helper()
	const streams = 8 // on each of the two
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i := range 2 * streams {
		q := question{Model: s.model, Prompt: fmt.Sprintf("Count to %d:", i), MaxTokens: 1000, IgnoreEOS: true} // not streamed: that costs least
		running.Go(func() {
			for ctx.Err() == nil {
				_, _ = s.workers[i%2].agent.try(ctx, q) // it ends by being aborted
			}
		})
	}
	waitFor(t, "busy decode workers", patience, func() error {
		views, err := s.admin.Endpoints(t.Context())
		if err != nil {
			return err
		}
		for _, v := range views {
			if v.Role == "decode" && v.Requests < streams {
				return fmt.Errorf("%s has %d requests", v.Address, v.Requests)
			}
		}
		return nil
	})
	return func() {
		cancel()
		running.Wait()
		s.awaitIdle(t)
	}
}

// prefills is the count of prefill legs by their result.
func (s *stack) prefills(t *testing.T, result string) float64 {
	t.Helper()
	return s.agents(t, "kvlane_agent_prefill_total", `result="`+result+`"`)
}

// A long prompt is prefilled elsewhere, with the same answer; the short turn
// after it stays where the conversation lies.
func (s *stack) testRemotePrefill(t *testing.T) {
	for _, stream := range []bool{false, true} {
		q := rules(s.model, fmt.Sprintf("fortress %t", stream), 300, 24)
		want := s.single(t, q)
		free := s.busy(t)
		sent := q
		if stream {
			sent = q.streamed()
		}
		ok := s.prefills(t, "ok")
		a := s.gateway.ask(t, sent)
		s.sameAnswer(t, a, want)
		plan := s.plan(t, a)
		if plan.Prefill == nil || plan.Reason != "prefill" {
			t.Fatalf("not prefilled elsewhere: %+v", plan)
		}
		if got := s.prefills(t, "ok") - ok; got != 1 {
			t.Errorf("%g prefill legs were counted", got)
		}
		free()
		next := q
		next.Messages = append(next.Messages, message{"assistant", a.text}, message{"user", "And then?"})
		s.awaitCached(t, next, a.usage.Total-2*blockSize)
		b := s.gateway.ask(t, next)
		after := s.plan(t, b)
		if after.Prefill != nil || after.Decode != plan.Decode {
			t.Errorf("the next turn: %+v, want it at %+v alone", after, plan.Decode)
		}
		if got := b.usage.Details.Cached; after.Cached > got || got-after.Cached > blockSize {
			t.Errorf("the next turn: %d cached tokens predicted, %d reported", after.Cached, got)
		}
	}
}

// single is the answer of one engine alone. It is one that prefills, so that no
// decode worker learns of the prompt; its cache is emptied again.
func (s *stack) single(t *testing.T, q question) answer {
	t.Helper()
	w := &s.workers[3]
	a := w.engine.ask(t, q)
	if r := w.engine.do(t, http.MethodPost, "/reset_prefix_cache", ""); r.status != http.StatusOK {
		t.Fatalf("reset of a cache: %s", r)
	}
	return a
}

// A prefill leg that fails is done again by the decode worker, and counted.
func (s *stack) testPrefillFallback(t *testing.T) {
	q := rules(s.model, "lighthouse", 300, 24)
	want := s.single(t, q)
	free := s.busy(t)
	defer free()
	for _, w := range s.workers[2:] {
		w.fault(t, `{"kind":"garbage","count":1}`)
	}
	before := s.prefills(t, "fallback")
	a := s.gateway.ask(t, q.streamed())
	s.sameAnswer(t, a, want)
	if plan := s.plan(t, a); plan.Prefill == nil {
		t.Fatalf("not planned to be prefilled elsewhere: %+v", plan)
	}
	if got := s.prefills(t, "fallback") - before; got != 1 {
		t.Errorf("%g fallbacks were counted", got)
	}
	for _, w := range s.workers[2:] {
		w.fault(t, `{"kind":"none"}`)
	}
}

// With all prefill engines away the decode workers do both legs.
func (s *stack) testNoPrefillWorker(t *testing.T) {
	q := rules(s.model, "quarry", 300, 24)
	want := s.single(t, q)
	for _, w := range s.workers[2:] {
		w.fault(t, `{"kind":"hang"}`)
	}
	s.awaitReady(t, 2)
	free := s.busy(t)
	a := s.gateway.ask(t, q)
	s.sameAnswer(t, a, want)
	if plan := s.plan(t, a); plan.Prefill != nil {
		t.Errorf("planned to be prefilled by a worker that is away: %+v", plan)
	}
	for _, w := range s.workers[2:] {
		w.fault(t, `{"kind":"none"}`)
	}
	s.awaitReady(t, 4)
	free()
}
