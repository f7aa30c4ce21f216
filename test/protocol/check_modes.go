package protocol

import (
	"bytes"
	"context"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// modeChecks are about the other body modes of Envoy, in which each message has one
// answer and Envoy waits for it.
func modeChecks() []Check {
	checks := []Check{
		modeCheck("none", "Without bodies (mode NONE) the headers are answered at once, with a destination.", func(ctx context.Context, l *lab) error {
			o := post(completionsPath).modes(modeNone, modeNone)
			return l.play(ctx, o.message()).routed()
		}),
		modeCheck("none-then-response", "In mode NONE the response's headers and trailers are answered.", func(ctx context.Context, l *lab) error {
			o := post(completionsPath).modes(modeNone, modeNone)
			t := l.play(ctx, o.message(), responseHeaders(false, l.target.Endpoints[0], "application/json"), responseTrailers())
			return t.routed()
		}),
		modeCheck("buffered", "In BUFFERED mode the headers are answered before the body comes, and the body once, not streamed.",
			func(ctx context.Context, l *lab) error {
				return l.plain(ctx, modeBuffered, bodyMessage(l.completion(2000), true))
			}),
		modeCheck("buffered-empty", "A buffered body may be empty.", func(ctx context.Context, l *lab) error {
			o := post(unknownPath).modes(modeBuffered, modeNone)
			return l.play(ctx, script(o, bodyMessage(nil, true))...).routed()
		}),
		modeCheck("buffered-over-4-mib", "A buffered body may be larger than 4 MiB.", func(ctx context.Context, l *lab) error {
			return l.plain(ctx, modeBuffered, bodyMessage(l.completion(5<<20), true))
		}),
		modeCheck("buffered-with-trailers", "A buffered body may be followed by trailers.", func(ctx context.Context, l *lab) error {
			return l.plain(ctx, modeBuffered, bodyMessage(l.completion(500), false), trailersMessage())
		}),
		modeCheck("partial", "In BUFFERED_PARTIAL mode a body that fits is answered as in BUFFERED.", func(ctx context.Context, l *lab) error {
			return l.plain(ctx, modePartial, bodyMessage(l.completion(2000), true))
		}),
		modeCheck("partial-cut", "In BUFFERED_PARTIAL mode a body that does not fit comes cut and without its end, and still gets a destination.",
			func(ctx context.Context, l *lab) error {
				return l.plain(ctx, modePartial, bodyMessage(l.completion(2000)[:1000], false))
			}),
		modeCheck("streamed", "In STREAMED mode the headers are answered before the body comes, and each piece once, not streamed.",
			func(ctx context.Context, l *lab) error {
				return l.plain(ctx, modeStreamed, cut(l.completion(100_000), 30_000)...)
			}),
		modeCheck("streamed-with-trailers", "A streamed body may end with trailers.", func(ctx context.Context, l *lab) error {
			return l.plain(ctx, modeStreamed, append(uncut(l.completion(1000), 400), trailersMessage())...)
		}),
		modeCheck("response-buffered", "A buffered response body has one answer and stays as it is.", func(ctx context.Context, l *lab) error {
			return l.plainResponse(ctx, modeBuffered, responseBody([]byte(`{"choices":[]}`), true))
		}),
		modeCheck("response-streamed", "Each piece of a streamed response body has one answer and stays as it is.",
			func(ctx context.Context, l *lab) error {
				return l.plainResponse(ctx, modeStreamed, responseBody([]byte("data: 1\n\n"), false),
					responseBody([]byte("data: 2\n\n"), false), responseBody(nil, true))
			}),
	}
	return append(checks, Check{
		ID: "modes/not-declared", Source: FromProtocol,
		Rule: "Without a declaration of the modes (Envoy before 1.34) the picker works as in full-duplex mode.",
		run: func(ctx context.Context, l *lab) error {
			o, body := post(completionsPath), l.completion(70_000)
			o.silent = true
			return l.play(ctx, script(o, cut(body, 30_000)...)...).echoed(body)
		},
	}, Check{
		ID: "modes/request-duplex-response-none", Source: FromEnvoy,
		Rule: "Full duplex for the request and no bodies in the response, with trailers: each message is answered.",
		run: func(ctx context.Context, l *lab) error {
			o, body := post(completionsPath).modes(modeDuplex, modeNone), l.completion(1000)
			in := script(o, bodyMessage(body, true), responseHeaders(false, l.target.Endpoints[0], "application/json"), responseTrailers())
			t := l.play(ctx, in...)
			if err := t.echoed(body); err != nil {
				return err
			}
			if t.responseHeaders != 1 || t.responseTrailers != 1 {
				return t.fail("one answer to the response's headers, one to its trailers", "%d and %d", t.responseHeaders, t.responseTrailers)
			}
			return nil
		},
	})
}

func modeCheck(name, rule string, run func(context.Context, *lab) error) Check {
	return Check{ID: "modes/" + name, Rule: rule, Source: FromEnvoy, needs: []need{needModes}, run: run}
}

// plain sends a request body in a mode of one answer a message.
func (l *lab) plain(ctx context.Context, m bodyMode, rest ...*request) error {
	o := post(completionsPath).modes(m, modeNone)
	t := l.play(ctx, script(o, rest...)...)
	if err := t.routed(); err != nil {
		return err
	}
	if t.inMetadata() != t.destination() {
		return t.fail("the same destination in header and metadata", "header %q, metadata %q", t.destination(), t.inMetadata())
	}
	bodies := 0
	for _, r := range rest {
		if r.GetRequestBody() != nil {
			bodies++
		}
	}
	if t.headers != 1 || t.requestBodies != bodies {
		return t.fail("one answer to each message", "%d to the headers, %d to %d pieces of the body", t.headers, t.requestBodies, bodies)
	}
	for _, a := range t.got {
		if err := t.kept(a.GetRequestBody(), rest); err != nil {
			return err
		}
	}
	return nil
}

// kept wants an answer that leaves the body as it is.
func (t *trace) kept(b *extprocv3.BodyResponse, sent []*request) error {
	const want = "an answer that leaves the body as it is"
	switch m := b.GetResponse().GetBodyMutation().GetMutation().(type) {
	case *extprocv3.BodyMutation_StreamedResponse:
		return t.fail(want, "a streamed piece, which is for full-duplex mode only")
	case *extprocv3.BodyMutation_ClearBody:
		if m.ClearBody {
			return t.fail(want, "the body is cleared")
		}
	case *extprocv3.BodyMutation_Body:
		for _, r := range sent {
			if bytes.Equal(m.Body, r.GetRequestBody().GetBody()) || bytes.Equal(m.Body, r.GetResponseBody().GetBody()) {
				return nil
			}
		}
		return t.fail(want, "another body of %d bytes", len(m.Body))
	}
	return nil
}

// plainResponse sends a response body in a mode of one answer a message.
func (l *lab) plainResponse(ctx context.Context, m bodyMode, rest ...*request) error {
	in := []*request{get(modelsPath).modes(modeNone, m).message(), responseHeaders(false, l.target.Endpoints[0], "application/json")}
	t := l.play(ctx, append(in, rest...)...)
	if err := t.routed(); err != nil {
		return err
	}
	if t.responseHeaders != 1 || t.responseBodies != len(rest) {
		return t.fail("one answer to each message", "%d to the headers, %d to %d pieces of the body", t.responseHeaders, t.responseBodies, len(rest))
	}
	for _, a := range t.got {
		if err := t.kept(a.GetResponseBody(), rest); err != nil {
			return err
		}
	}
	return nil
}
