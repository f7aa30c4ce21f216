package protocol

import (
	"bytes"
	"context"
	"fmt"
)

// bodyChecks are about how bodies are cut and ended, in full-duplex mode.
func bodyChecks() []Check {
	checks := []Check{
		{
			ID: "body/absent", Source: FromProtocol,
			Rule: "A POST that ends with its headers is answered to the headers alone.",
			run: func(ctx context.Context, l *lab) error {
				o := post(completionsPath, "content-length", "0")
				o.end = true
				return l.play(ctx, o.message()).routed()
			},
		},
		{
			ID: "body/empty", Source: FromEnvoy,
			Rule: "A body of one empty message with the end of stream is answered to the headers and with one end.",
			run: func(ctx context.Context, l *lab) error {
				return l.play(ctx, script(post(unknownPath, "content-length", "0"), bodyMessage(nil, true))...).echoed(nil)
			},
		},
		{
			ID: "body/one-byte-pieces", Source: FromProtocol,
			Rule: "A body may come in pieces of one byte.",
			run: func(ctx context.Context, l *lab) error {
				body := l.completion(400)
				return l.play(ctx, script(post(completionsPath), cut(body, 1)...)...).echoed(body)
			},
		},
		{
			ID: "body/empty-pieces", Source: FromEnvoy,
			Rule: "Empty pieces in the middle of a body change nothing.",
			run: func(ctx context.Context, l *lab) error {
				body := l.completion(1000)
				in := script(post(completionsPath), bodyMessage(nil, false), bodyMessage(body[:500], false), bodyMessage(nil, false))
				return l.play(ctx, append(in, bodyMessage(body[500:], true))...).echoed(body)
			},
		},
		{
			ID: "body/end-in-empty-piece", Source: FromEnvoy,
			Rule: "The end of stream may come in an empty message after the last bytes.",
			run: func(ctx context.Context, l *lab) error {
				body := l.completion(70_000)
				in := append(script(post(completionsPath), uncut(body, 65_536)...), bodyMessage(nil, true))
				return l.play(ctx, in...).echoed(body)
			},
		},
		{
			ID: "body/over-4-mib-in-one-message", Source: FromEnvoy,
			Rule: "One message may hold more than gRPC's default of 4 MiB: Envoy's buffers are set by the operator.",
			run: func(ctx context.Context, l *lab) error {
				body := l.completion(5 << 20)
				return l.play(ctx, script(post(completionsPath), bodyMessage(body, true))...).echoed(body)
			},
		},
		{
			ID: "body/end-twice-empty", Source: FromEnvoy,
			Rule: "A second end of stream in an empty message is ignored: the first one counts.",
			run:  twice(nil),
		},
		{
			ID: "body/end-twice-with-bytes", Source: FromEnvoy,
			Rule: "Bytes after the end of stream are not part of the body.",
			run:  twice([]byte("}")),
		},
	}
	for _, size := range []int{62_000, 62_001, 65_536, 1 << 20, 10 << 20} {
		checks = append(checks, Check{
			ID: fmt.Sprintf("body/size-%d", size), Source: FromProtocol,
			Rule: fmt.Sprintf("A body of %d bytes comes back whole.", size),
			run: func(ctx context.Context, l *lab) error {
				if most := l.target.MaxBody; most > 0 && size > most {
					return notApplicable(fmt.Sprintf("the target's limit for bodies is %d bytes", most))
				}
				body := l.completion(size)
				return l.play(ctx, script(post(completionsPath), cut(body, 65_536)...)...).echoed(body)
			},
		})
	}
	return append(checks, trailerChecks()...)
}

// twice ends a body two times.
func twice(more []byte) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		body := l.completion(1_200_000)
		in := script(post(completionsPath), cut(body, 65_536)...)
		if err := l.play(ctx, append(in, bodyMessage(more, true))...).echoed(body); err != nil {
			return err
		}
		small := l.completion(100)
		return l.play(ctx, script(post(completionsPath), bodyMessage(small, true))...).echoed(small)
	}
}

func trailerChecks() []Check {
	return []Check{
		{
			ID: "trailers/end-the-body", Source: FromProtocol,
			Rule: "Trailers are the end of a body: the headers, the bytes and the trailers are answered, in this order.",
			run:  trailing(func(*trace) error { return nil }),
		},
		{
			ID: "trailers/no-end-of-stream", Source: FromEnvoy,
			Rule: "Where trailers end a body, no piece of it is marked as the end.",
			run: trailing(func(t *trace) error {
				if t.requestEnds > 0 {
					return t.fail("no end of stream: trailers follow", "%d", t.requestEnds)
				}
				return nil
			}),
		},
		{
			ID: "trailers/answered-last", Source: FromEnvoy,
			Rule: "The trailers are answered once, after the whole body.",
			run: trailing(func(t *trace) error {
				if last := t.got[len(t.got)-1]; t.trailers != 1 || last.GetRequestTrailers() == nil {
					return t.fail("one answer to the trailers, the last of all", "%d", t.trailers)
				}
				return nil
			}),
		},
		{
			ID: "trailers/without-body", Source: FromEnvoy,
			Rule: "Trailers right after the headers end a request without a body.",
			run: func(ctx context.Context, l *lab) error {
				t := l.play(ctx, script(post(unknownPath), trailersMessage())...)
				if t.trailers == 0 && t.immediate == nil {
					return t.fail("answers to the headers and the trailers", "%d and %d; %v", t.headers, t.trailers, t.err)
				}
				return t.routed()
			},
		},
		{
			ID: "trailers/after-empty-body", Source: FromEnvoy,
			Rule: "An empty piece and then trailers are a request with an empty body.",
			run: func(ctx context.Context, l *lab) error {
				t := l.play(ctx, script(post(unknownPath), bodyMessage(nil, false), trailersMessage())...)
				if err := t.routed(); err != nil {
					return err
				}
				if t.trailers != 1 || len(t.requestBody) > 0 || t.requestEnds > 0 {
					return t.fail("one answer to the trailers and no body", "%d answers, %d bytes", t.trailers, len(t.requestBody))
				}
				return nil
			},
		},
	}
}

// trailing sends a body that trailers end, and holds a rule against the answers.
func trailing(rule func(*trace) error) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		body := l.completion(130_000)
		t := l.play(ctx, append(script(post(completionsPath), uncut(body, 60_000)...), trailersMessage())...)
		if err := t.routed(); err != nil {
			return err
		}
		if err := headersFirst(t); err != nil {
			return err
		}
		if !bytes.Equal(t.requestBody, body) {
			return t.fail("the body back", "%s", differ(t.requestBody, body))
		}
		return rule(t)
	}
}
