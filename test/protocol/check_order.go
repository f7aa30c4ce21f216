package protocol

import (
	"context"
	"fmt"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// orderChecks are about which answers come, and when, in full-duplex mode.
func orderChecks() []Check {
	return append([]Check{
		{
			ID: "order/headers-before-body", Source: FromEnvoy,
			Rule: "No answer to the body comes before the answer to the headers: Envoy drops the stream otherwise.",
			run:  ordered(headersFirst),
		},
		{
			ID: "order/headers-once", Source: FromEnvoy,
			Rule: "The request's headers are answered exactly once.",
			run: ordered(func(t *trace) error {
				if t.headers != 1 {
					return t.fail("one answer to the request's headers", "%d", t.headers)
				}
				return nil
			}),
		},
		{
			ID: "order/body-is-streamed", Source: FromEnvoy,
			Rule: "In full-duplex mode every answer to the body is a streamed piece, never a common or empty one.",
			run:  ordered(onlyStreamed),
		},
		{
			ID: "order/end-once-and-last", Source: FromEnvoy,
			Rule: "The end of the body is marked once, on its last piece.",
			run:  ordered(endLast),
		},
		{
			ID: "order/no-answer-to-what-was-not-sent", Source: FromEnvoy,
			Rule: "There are no answers of a kind for which nothing was sent.",
			run: ordered(func(t *trace) error {
				if n := t.trailers + t.responseHeaders + t.responseBodies + t.responseTrailers; n > 0 {
					return t.fail("answers to the request's headers and body only", "%d others", n)
				}
				return nil
			}),
		},
	}, answerChecks()...)
}

// answerChecks are about the form of single answers.
func answerChecks() []Check {
	return []Check{
		{
			ID: "order/answer-size", Source: FromStandard,
			Rule: "No answer is larger than the 4 MiB that gRPC clients take by default, whatever the body's size.",
			run: func(ctx context.Context, l *lab) error {
				t := l.play(ctx, script(post(completionsPath), cut(l.completion(5<<20), 65_536)...)...)
				for _, a := range t.got {
					if n := len(a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()); n > 4<<20 {
						return t.fail("pieces under 4 MiB", "one of %d bytes", n)
					}
				}
				return t.picked()
			},
		},
		{
			ID: "order/status-continue", Source: FromEnvoy,
			Rule: "Answers have the status CONTINUE: CONTINUE_AND_REPLACE has no place in full-duplex mode.",
			run: ordered(func(t *trace) error {
				for _, a := range t.got {
					for _, c := range []*extprocv3.CommonResponse{a.GetRequestHeaders().GetResponse(), a.GetRequestBody().GetResponse()} {
						if c.GetStatus() != extprocv3.CommonResponse_CONTINUE {
							return t.fail("CONTINUE", "%s", c.GetStatus())
						}
					}
				}
				return nil
			}),
		},
		{
			ID: "order/no-body-no-body-answer", Source: FromEnvoy,
			Rule: "A request that ends with its headers gets one answer, to the headers.",
			run: func(ctx context.Context, l *lab) error {
				t := l.play(ctx, get(modelsPath).message())
				if err := t.routed(); err != nil {
					return err
				}
				if len(t.got) != 1 {
					return t.fail("one answer", "%d", len(t.got))
				}
				return nil
			},
		},
		{
			ID: "order/alternating", Source: FromEnvoy,
			Rule: "Requests with and without a body in turn, on one connection, are each answered in their own shape.",
			run:  alternating,
		},
	}
}

// ordered sends a body in three pieces and holds a rule against what comes.
func ordered(rule func(*trace) error) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		t := l.play(ctx, script(post(completionsPath), cut(l.completion(150_000), 60_000)...)...)
		if err := rule(t); err != nil {
			return err
		}
		return t.picked()
	}
}

func headersFirst(t *trace) error {
	seen := false
	for _, a := range t.got {
		seen = seen || a.GetRequestHeaders() != nil
		if (a.GetRequestBody() != nil || a.GetRequestTrailers() != nil) && !seen {
			return t.fail("the answer to the headers first", "an answer to the body before it")
		}
	}
	return nil
}

func onlyStreamed(t *trace) error {
	for _, a := range t.got {
		for _, b := range []*extprocv3.BodyResponse{a.GetRequestBody(), a.GetResponseBody()} {
			if b != nil && b.GetResponse().GetBodyMutation().GetStreamedResponse() == nil {
				return t.fail("streamed pieces of the body", "an answer to the body without one")
			}
		}
	}
	return nil
}

func endLast(t *trace) error {
	ended := false
	for _, a := range t.got {
		if a.GetRequestBody() == nil {
			continue
		}
		if ended {
			return t.fail("nothing of the body after its end", "one more piece")
		}
		ended = a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream()
	}
	if !ended {
		return t.fail("the end of stream on the last piece", "no end")
	}
	return nil
}

func alternating(ctx context.Context, l *lab) error {
	for i := range 20 {
		body := l.completion(100 + i*1000)
		t := l.play(ctx, script(post(completionsPath), cut(body, 4096)...)...)
		if err := t.echoed(body); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
		t = l.play(ctx, get(modelsPath).message())
		if err := t.routed(); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
		if len(t.got) != 1 {
			return t.fail("one answer to a request without a body", "%d", len(t.got))
		}
	}
	return nil
}
