package protocol

import (
	"bytes"
	"context"
	"fmt"
)

const events = "text/event-stream"

// responseChecks are about the way back, in full-duplex mode.
func responseChecks() []Check {
	return append([]Check{
		{
			ID: "response/headers", Source: FromEnvoy,
			Rule: "The response's headers are answered once.",
			run: func(ctx context.Context, l *lab) error {
				t := l.play(ctx, script(get(modelsPath), responseHeaders(true, l.first(), "application/json"))...)
				if err := t.routed(); err != nil {
					return err
				}
				if t.responseHeaders != 1 {
					return t.fail("one answer to the response's headers", "%d", t.responseHeaders)
				}
				return nil
			},
		},
		{
			ID: "response/chunks-untouched", Source: FromProtocol,
			Rule: "The response's bytes come back unchanged, as streamed pieces, their end marked once.",
			run: func(ctx context.Context, l *lab) error {
				body := append(noise(150_000), []byte("data: [DONE]\n\n")...)
				return l.answered(ctx, get(modelsPath), body, 20_000)
			},
		},
		{
			ID: "response/after-body", Source: FromProtocol,
			Rule: "After a request with a body, the response's bytes come back unchanged too.",
			run: func(ctx context.Context, l *lab) error {
				return l.answered(ctx, post(completionsPath), []byte(`{"choices":[],"usage":{"prompt_tokens":7}}`), 10)
			},
		},
		{
			ID: "response/chunks-not-held", Source: FromUs,
			Rule: "Each piece of a stream of events comes back before the next is sent.",
			run:  eventsNotHeld,
		},
		{
			ID: "response/one-byte-chunks", Source: FromUs,
			Rule: "Events cut at every byte come back in order.",
			run: func(ctx context.Context, l *lab) error {
				return l.answered(ctx, get(modelsPath), []byte("data: {\"usage\":{\"completion_tokens\":3}}\r\n\r\ndata: [DONE]\r\n\r\n"), 1)
			},
		},
		{
			ID: "response/thousand-chunks", Source: FromUs,
			Rule: "A thousand pieces come back in order.",
			run: func(ctx context.Context, l *lab) error {
				return l.answered(ctx, get(modelsPath), noise(100_000), 100)
			},
		},
		{
			ID: "response/over-4-mib-in-one-message", Source: FromEnvoy,
			Rule: "One piece of a response may be larger than 4 MiB.",
			run: func(ctx context.Context, l *lab) error {
				return l.answered(ctx, get(modelsPath), noise(5<<20), 5<<20)
			},
		},
	}, responseEndChecks()...)
}

// responseEndChecks are about ends, reports of who served, and odd moments.
func responseEndChecks() []Check {
	return []Check{
		{
			ID: "response/trailers", Source: FromEnvoy,
			Rule: "The response's trailers are answered, after its bytes.",
			run: func(ctx context.Context, l *lab) error {
				in := script(get(modelsPath), responseHeaders(false, l.first(), events), responseBody([]byte("data: 1\n\n"), false), responseTrailers())
				t := l.play(ctx, in...)
				if err := t.routed(); err != nil {
					return err
				}
				if t.responseTrailers != 1 || t.responseEnds != 0 || string(t.responseBody) != "data: 1\n\n" {
					return t.fail("the bytes without an end, then one answer to the trailers", "%d answers, %d ends, %q",
						t.responseTrailers, t.responseEnds, t.responseBody)
				}
				return nil
			},
		},
		{
			ID: "response/served-elsewhere", Source: FromProtocol, needs: []need{needTwo},
			Rule: "The gateway may report that another endpoint served than the one that was picked.",
			run: func(ctx context.Context, l *lab) error {
				return l.served(ctx, func(t *trace) string {
					for _, e := range l.target.Endpoints {
						if e != t.addresses()[0] {
							return e
						}
					}
					return ""
				})
			},
		},
		{
			ID: "response/served-unknown", Source: FromUs,
			Rule: "A report of an address that is no endpoint ends no stream.",
			run: func(ctx context.Context, l *lab) error {
				return l.served(ctx, func(*trace) string { return "not an address" })
			},
		},
		{
			ID: "response/before-the-body-ends", Source: FromEnvoy,
			Rule: "Response headers that come while the request's body still does are answered, and both go on.",
			run:  earlyResponse,
		},
		{
			ID: "response/no-request-needed", Source: FromUs,
			Rule: "The way back of a request without a body needs nothing of a body.",
			run: func(ctx context.Context, l *lab) error {
				for range 20 {
					o := post(completionsPath)
					o.end = true
					if err := l.answered(ctx, o, []byte(`{"error":{}}`), 100); err != nil {
						return err
					}
				}
				return nil
			},
		},
		{
			ID: "response/alone", Source: FromUs,
			Rule: "Response headers without request headers end in no gRPC error.",
			run: func(ctx context.Context, l *lab) error {
				return l.blurt(ctx, responseHeaders(true, "", "application/json")).sound("no gRPC error")
			},
		},
	}
}

// answered runs a request and its response in pieces of n bytes.
func (l *lab) answered(ctx context.Context, o opening, body []byte, n int) error {
	in := script(o)
	if !o.end {
		in = append(in, bodyMessage(l.completion(1000), true))
	}
	in = append(in, responseHeaders(false, l.first(), events))
	for b := body; ; b = b[n:] {
		if len(b) <= n {
			in = append(in, responseBody(b, true))
			break
		}
		in = append(in, responseBody(b[:n], false))
	}
	t := l.play(ctx, in...)
	if err := t.routed(); err != nil {
		return err
	}
	if err := onlyStreamed(t); err != nil {
		return err
	}
	if !bytes.Equal(t.responseBody, body) {
		return t.fail("the response's bytes unchanged", "%s", differ(t.responseBody, body))
	}
	if t.responseEnds != 1 {
		return t.fail("its end marked once", "%d ends", t.responseEnds)
	}
	return nil
}

func eventsNotHeld(ctx context.Context, l *lab) error {
	s := l.open(ctx)
	defer s.finish()
	for _, m := range script(get(modelsPath), responseHeaders(false, l.first(), events)) {
		if !s.send(m) || !s.settle(m) {
			break
		}
	}
	sent := 0
	for i := range 50 {
		event := fmt.Appendf(nil, "data: {\"i\":%d", i) // half an event, and the rest with the next
		if i > 0 {
			event = append([]byte("}\n\n"), event...)
		}
		sent += len(event)
		returned := func() bool { return len(s.responseBody) == sent }
		if !s.send(responseBody(event, false)) || !s.await("return of a piece before the next is sent", returned) {
			break
		}
	}
	return s.routed()
}

// served answers a pick with a report of who served, then sees that the picker
// goes on.
func (l *lab) served(ctx context.Context, who func(*trace) string) error {
	s := l.open(ctx)
	defer s.finish()
	m := get(modelsPath).message()
	if s.send(m) && s.settle(m) && s.routed() == nil {
		m := responseHeaders(true, who(&s.trace), "application/json")
		if s.send(m) {
			s.settle(m)
		}
	}
	return s.routed()
}

func earlyResponse(ctx context.Context, l *lab) error {
	s := l.open(ctx)
	defer s.finish()
	piece := noise(500)
	s.send(post(unknownPath).message())
	s.send(bodyMessage(piece, false))
	s.send(responseHeaders(false, l.first(), "application/json"))
	s.await("answer to the response's headers", func() bool { return s.responseHeaders > 0 })
	if err := s.routed(); err != nil {
		return err
	}
	s.send(bodyMessage(piece, true))
	s.send(responseBody([]byte("{}"), true))
	s.await("end of both bodies", func() bool { return s.requestEnds == 1 && s.responseEnds == 1 })
	if err := s.routed(); err != nil {
		return err
	}
	if len(s.requestBody) != 2*len(piece) || string(s.responseBody) != "{}" {
		return s.fail("both bodies back", "%d and %d bytes", len(s.requestBody), len(s.responseBody))
	}
	return nil
}
