package protocol

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// refusalChecks are about requests that no endpoint gets.
func refusalChecks() []Check {
	return append([]Check{
		{
			ID: "refusal/no-endpoint-is-503", Source: FromProtocol, needs: []need{needControl},
			Rule: "Without a ready endpoint the answer is an immediate response with 503, with and without a body, and never a gRPC error.",
			run: func(ctx context.Context, l *lab) error {
				return l.without(ctx, func() error {
					if err := l.play(ctx, get(modelsPath).message()).refused(503); err != nil {
						return err
					}
					return l.play(ctx, script(post(completionsPath), cut(l.completion(1000), 300)...)...).refused(503, 404)
				})
			},
		},
		{
			ID: "refusal/endpoints-come-back", Source: FromProtocol, needs: []need{needControl},
			Rule: "When endpoints are ready again, the next request is picked.",
			run: func(ctx context.Context, l *lab) error {
				if err := l.without(ctx, func() error { return nil }); err != nil {
					return err
				}
				return l.play(ctx, get(modelsPath).message()).routed()
			},
		},
		{
			ID: "refusal/shed-is-429", Source: FromProtocol, needs: []need{needShed},
			Rule: "A request over the pool's limits is answered with 429, and the next after they are free again is picked.",
			run:  shed,
		},
		{
			ID: "refusal/length-over-limit-is-413", Source: FromUs, needs: []need{needLimit},
			Rule: "A content-length over the limit is answered with 413 before the body is read.",
			run: func(ctx context.Context, l *lab) error {
				s := l.open(ctx)
				s.send(post(completionsPath, "content-length", strconv.Itoa(l.target.MaxBody+1)).message())
				s.await("answer to the headers", func() bool { return s.immediate != nil })
				s.finish()
				return s.refused(413)
			},
		},
		{
			ID: "refusal/body-over-limit-is-413", Source: FromUs, needs: []need{needLimit},
			Rule: "A body that grows over the limit is answered with 413; what the client goes on sending is no fault.",
			run: func(ctx context.Context, l *lab) error {
				s := l.open(ctx)
				s.send(post(completionsPath).message())
				for _, m := range cut(l.completion(l.target.MaxBody+100_000), 65_536) {
					s.send(m)
				}
				s.await("refusal", func() bool { return s.immediate != nil })
				s.finish()
				return s.refused(413)
			},
		},
		{
			ID: "refusal/body-at-limit-passes", Source: FromUs, needs: []need{needLimit},
			Rule: "A body of exactly the limit passes.",
			run: func(ctx context.Context, l *lab) error {
				body := l.completion(l.target.MaxBody)
				return l.play(ctx, script(post(completionsPath), cut(body, 65_536)...)...).echoed(body)
			},
		},
		{
			ID: "refusal/slow-body-is-408", Source: FromUs, needs: []need{needTimeout},
			Rule: "A body that does not come is answered with 408 when its time is up.",
			run: func(ctx context.Context, l *lab) error {
				s := l.open(ctx)
				s.timeout += l.target.BodyTimeout
				s.send(post(completionsPath).message())
				s.send(bodyMessage([]byte(`{"model":`), false))
				s.await("refusal", func() bool { return s.immediate != nil })
				s.finish()
				return s.refused(408)
			},
		},
	}, bodyRefusalChecks()...)
}

func bodyRefusalChecks() []Check {
	malformed := func(ctx context.Context, l *lab) *trace {
		return l.play(ctx, script(post(completionsPath), bodyMessage([]byte(`{"model":`), true))...)
	}
	return []Check{
		{
			ID: "refusal/malformed-is-400", Source: FromUs, needs: []need{needModel},
			Rule: "A body that is cut off is answered with 400.",
			run:  func(ctx context.Context, l *lab) error { return malformed(ctx, l).refused(400) },
		},
		{
			ID: "refusal/unknown-model-is-404", Source: FromUs, needs: []need{needModel},
			Rule: "A model that no endpoint serves is answered with 404, as OpenAI's API does.",
			run: func(ctx context.Context, l *lab) error {
				return l.play(ctx, script(post(completionsPath), bodyMessage([]byte(`{"model":"nobody-serves-this","prompt":"p"}`), true))...).refused(404)
			},
		},
		{
			ID: "refusal/buffered", Source: FromEnvoy, needs: []need{needModel, needModes},
			Rule: "In BUFFERED mode a refusal comes as the answer to the body.",
			run: func(ctx context.Context, l *lab) error {
				o := post(completionsPath).modes(modeBuffered, modeNone)
				return l.play(ctx, script(o, bodyMessage([]byte(`{"model":`), true))...).refused(400)
			},
		},
		{
			ID: "refusal/is-json", Source: FromUs,
			Rule: "A refusal has a JSON body with an error object, and says so in its content-type.",
			run: func(ctx context.Context, l *lab) error {
				t := l.play(ctx, get(modelsPath).within(list()).message())
				if err := t.refused(503); err != nil {
					return err
				}
				var v struct {
					Error struct {
						Message string `json:"message"`
					} `json:"error"`
				}
				if err := json.Unmarshal(t.immediate.GetBody(), &v); err != nil || v.Error.Message == "" {
					return t.fail(`{"error":{"message":...}}`, "%q", t.immediate.GetBody())
				}
				if kind := t.refusalHeader("content-type"); !strings.HasPrefix(kind, "application/json") {
					return t.fail("content-type application/json", "%q", kind)
				}
				return nil
			},
		},
		{
			ID: "refusal/retry-after", Source: FromUs,
			Rule: "A 503 says with retry-after when another try makes sense.",
			run: func(ctx context.Context, l *lab) error {
				t := l.play(ctx, get(modelsPath).within(list()).message())
				if err := t.refused(503); err != nil {
					return err
				}
				if v := t.refusalHeader("retry-after"); v == "" {
					return t.fail("a header retry-after", "none")
				}
				return nil
			},
		},
		{
			ID: "refusal/ends-the-stream", Source: FromEnvoy,
			Rule: "After an immediate response the picker says nothing more, whatever still arrives.",
			run: func(ctx context.Context, l *lab) error {
				in := script(post(completionsPath).within(list()), cut(l.completion(3000), 1000)...)
				s := l.open(ctx)
				for _, m := range append(in, bodyMessage([]byte("more"), true), trailersMessage()) {
					s.send(m)
				}
				s.await("refusal", func() bool { return s.immediate != nil })
				s.finish()
				return s.refused(503)
			},
		},
	}
}

// refusalHeader is a header of the immediate response; empty if it is not there.
func (t *trace) refusalHeader(name string) string {
	for _, h := range t.immediate.GetHeaders().GetSetHeaders() {
		if strings.EqualFold(h.GetHeader().GetKey(), name) {
			return text(h.GetHeader())
		}
	}
	return ""
}

// without takes the endpoints away for a while.
func (l *lab) without(ctx context.Context, do func() error) error {
	if err := l.fleet.set(ctx, nil); err != nil {
		return err
	}
	err := do()
	if again := l.fleet.set(ctx, l.target.Endpoints); again != nil {
		return again
	}
	return err
}

// shed holds requests until the picker refuses one.
func shed(ctx context.Context, l *lab) error {
	most := l.target.MaxRequests*len(l.target.Endpoints) + 1
	var all sessions
	defer all.stop()
	var refused *trace
	body := l.completion(200)
	for len(all) < most && refused == nil {
		s := l.open(ctx)
		all = append(all, s)
		s.send(post(completionsPath).message())
		if m := bodyMessage(body, true); s.send(m) {
			s.settle(m)
		}
		if s.immediate != nil || s.err != nil {
			refused = &s.trace
		}
	}
	if refused == nil {
		return all[0].fail(fmt.Sprintf("429 within %d requests at a time", most), "all were picked")
	}
	if err := refused.refused(429); err != nil {
		return err
	}
	all.stop()
	start := time.Now()
	if err := l.eventually(ctx, func() error { return l.play(ctx, script(post(completionsPath), bodyMessage(body, true))...).routed() }); err != nil {
		return fmt.Errorf("%v after the %d requests ended: %w", time.Since(start), len(all)-1, err)
	}
	return nil
}
