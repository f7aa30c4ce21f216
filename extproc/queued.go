package extproc

import (
	"strconv"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvlane/kvlane/internal/openai"
)

// enqueue lets a request wait in the gate; its body stays here meanwhile. The answer
// comes with [stream.decided].
func (s *stream) enqueue(now time.Time, ask Ask, out responses) responses {
	var expires time.Time
	if !s.fullDuplex() {
		// The gateway's message timeout runs.
		wait := s.srv.cfg.Flow.BufferedWait
		if wait == 0 {
			return s.refuse(now, &Refusal{Cause: CauseOverloaded, RetryAfter: time.Second}, out)
		}
		expires = now.Add(wait)
	}
	t, d, r := s.srv.gate.enter(now, ask, s.reserved, expires)
	if r != nil {
		s.decision = d
		return s.refuse(now, r, out)
	}
	s.phase, s.ticket = queued, t
	return out
}

// decided says that the gate has decided; nil if the request is not in the gate.
func (s *stream) decided() <-chan struct{} {
	if s.ticket == nil {
		return nil
	}
	return s.ticket.decided
}

// settle answers a request that the gate has decided.
func (s *stream) settle(now time.Time, out responses) responses {
	t := s.ticket
	s.ticket, s.decision = nil, t.decision
	if t.refusal != nil {
		return s.refuse(now, t.refusal, out)
	}
	s.book(now)
	out = s.pass(now, out)
	if s.phase != refused && s.trailers {
		out = append(out, requestTrailersAnswer())
	}
	return out
}

// leaveQueue gives up a request in the gate. What the gate has booked meanwhile is
// closed with the stream.
func (s *stream) leaveQueue() {
	t := s.ticket
	s.ticket = nil
	if s.srv.gate.leave(t) {
		s.decision, s.booked = t.decision, true
		s.srv.metrics.OpenBookings.Inc()
	}
}

// splice changes what the operator wants changed of the body.
func (s *stream) splice() *Refusal {
	if s.decision.Model == "" && s.decision.Prompts == 0 {
		return nil // it was not read
	}
	r := &openai.Request{API: apiOf(s.head.method, s.head.path), Body: s.body}
	edits := append(s.decision.edits(), s.srv.clients.edits(r, s.decision.Priority, s.hints.Prioritized)...)
	if len(edits) == 0 {
		return nil
	}
	more := int64(len(s.body)) // both are there for a moment; edits are a few bytes
	if !s.srv.buffers.reserve(more) {
		return &Refusal{Cause: CauseMemory, RetryAfter: time.Second}
	}
	s.body = r.Splice(edits...)
	s.length = len(s.body)
	s.srv.buffers.release(more)
	return nil
}

// routed is the change of the headers of a routed request, with the length of a body
// that was changed.
func (s *stream) routed() *extprocv3.CommonResponse {
	c := routed(s.head, &s.decision)
	if s.length > 0 && s.head.contentLength != "" {
		c.HeaderMutation.SetHeaders = append(c.HeaderMutation.SetHeaders, set("content-length", strconv.Itoa(s.length)))
	}
	return c
}

// replaced is another body in place of one that the gateway has buffered.
func replaced(body []byte) *extprocv3.BodyMutation {
	return &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: body}}
}
