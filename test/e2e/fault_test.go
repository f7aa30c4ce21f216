package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
)

// refused sends a request that must be refused, and wants it counted once by the
// picker under an outcome, and the next request answered.
func (s *stack) refused(t *testing.T, outcome string, status int, send func() response) {
	t.Helper()
	label := `outcome="` + outcome + `"`
	before := metric(t, s.page, "kvlane_requests_total", label)
	send().wantError(t, status)
	waitFor(t, "count of "+outcome, patience, func() error {
		if got := metric(t, s.page, "kvlane_requests_total", label) - before; got != 1 {
			return fmt.Errorf("counted %g times", got)
		}
		return nil
	})
}

// testBadInput: what the picker refuses has the right status and body, is
// counted, and does no harm to the next request.
func (s *stack) testBadInput(t *testing.T) {
	good := question{Model: s.model, Prompt: "The door is", MaxTokens: 4}
	for _, tc := range []struct {
		name, path, body string
		outcome          string
		status           int
	}{
		{"no JSON", "/v1/chat/completions", `{"model": "x", "messages": [`, "malformed", http.StatusBadRequest},
		{"no object", "/v1/completions", `["prompt"]`, "malformed", http.StatusBadRequest},
		{"a wrong type", "/v1/chat/completions", `{"model": "x", "messages": "hello"}`, "malformed", http.StatusBadRequest},
		{"unknown model", "/v1/completions", `{"model": "gpt-0", "prompt": "hello"}`, "no-model", http.StatusNotFound},
		{"33 MiB", "/v1/completions", `{"prompt": "` + blank(33<<20) + `"}`, "body-too-large", http.StatusRequestEntityTooLarge},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.refused(t, tc.outcome, tc.status, func() response { return s.gateway.do(t, http.MethodPost, tc.path, tc.body) })
			s.gateway.ask(t, good)
		})
	}
	t.Run("too long for the model", func(t *testing.T) { // the engine refuses it
		q := question{Model: s.model, Prompt: "The door is", MaxTokens: 1 << 20}
		s.gateway.do(t, http.MethodPost, q.path(), string(q.body(t))).wantError(t, http.StatusBadRequest)
		s.gateway.ask(t, good)
	})
}

// testGarbage: an engine's answer that is none becomes a 502, streamed or not.
func (s *stack) testGarbage(t *testing.T) {
	for _, q := range []question{
		{Model: s.model, Prompt: "The lamp is", MaxTokens: 4},
		rules(s.model, "tower", 2, 4),
		question{Model: s.model, Prompt: "The lamp is", MaxTokens: 4}.streamed(),
	} {
		s.faultAll(t, `{"kind":"garbage","count":1}`)
		before := s.agents(t, "kvlane_agent_request_errors_total")
		s.gateway.do(t, http.MethodPost, q.path(), string(q.body(t))).wantError(t, http.StatusBadGateway)
		if got := s.agents(t, "kvlane_agent_request_errors_total") - before; got != 1 {
			t.Errorf("stream %t: counted %g times", q.Stream, got)
		}
		s.faultAll(t, `{"kind":"none"}`)
		s.gateway.ask(t, q)
	}
}

// faultAll injects a fault into every engine.
func (s *stack) faultAll(t *testing.T, body string) {
	t.Helper()
	for i := range s.workers {
		s.workers[i].fault(t, body)
	}
}

// agents is the sum of a metric over all agents.
func (s *stack) agents(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	sum := 0.0
	for _, w := range s.workers {
		sum += metric(t, w.admin, name, labels...)
	}
	return sum
}

// testAborts: fifty clients that go away in the middle of their streams leave
// nothing behind.
func (s *stack) testAborts(t *testing.T) {
	const clients = 50
	s.faultAll(t, `{"kind":"slow","factor":100}`) // or the streams would keep this machine busy
	defer s.faultAll(t, `{"kind":"none"}`)
	before := s.agents(t, "kvlane_agent_requests_aborted_total")
	ctx, abort := context.WithCancel(t.Context())
	defer abort()
	var g errgroup.Group
	begun := make(chan struct{}, clients)
	for i := range clients {
		q := rules(s.model, fmt.Sprintf("ferry %d", i), 10, 30000).streamed()
		q.IgnoreEOS = true
		body := string(q.body(t))
		g.Go(func() error {
			resp, err := s.gateway.send(ctx, http.MethodPost, q.path(), strings.NewReader(body))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			lines := bufio.NewReader(resp.Body)
			if _, err := lines.ReadString('\n'); err != nil {
				return err
			}
			begun <- struct{}{}
			for err == nil { // reads on until it is aborted
				_, err = lines.ReadString('\n')
			}
			if ctx.Err() == nil {
				return fmt.Errorf("the stream ended by itself: %w", err)
			}
			return nil
		})
	}
	for range clients {
		select {
		case <-begun:
		case <-t.Context().Done():
			t.Fatal("the streams did not begin")
		}
	}
	running := 0.0
	for _, w := range s.workers {
		running += metric(t, w.engine.url, "vllm:num_requests_running")
	}
	if running != clients {
		t.Errorf("%g requests run in the engines", running)
	}
	abort()
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	s.awaitIdle(t)
	if got := s.agents(t, "kvlane_agent_requests_aborted_total") - before; got != clients {
		t.Errorf("%g requests were counted as aborted", got)
	}
	s.gateway.ask(t, rules(s.model, "ferry 0", 10, 4))
}

// testNoEndpoint: without a worker there is a 503, and when they come back
// requests are served.
func (s *stack) testNoEndpoint(t *testing.T) {
	s.faultAll(t, `{"kind":"hang"}`)
	s.awaitReady(t, 0)
	q := rules(s.model, "island", 4, 4)
	s.refused(t, "no-endpoint", http.StatusServiceUnavailable, func() response {
		return s.gateway.do(t, http.MethodPost, q.path(), string(q.body(t)))
	})
	s.gateway.do(t, http.MethodGet, "/v1/models", "").wantError(t, http.StatusServiceUnavailable)
	s.faultAll(t, `{"kind":"none"}`)
	s.awaitReady(t, len(s.workers))
	s.gateway.ask(t, q)
	s.sameContent(t) // an engine that was slow kept its cache
}
