package protocol

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// streamChecks are about the life of streams, one and many.
func streamChecks() []Check {
	return []Check{
		{
			ID: "stream/half-close", Source: FromStandard,
			Rule: "A stream that the gateway half-closes is ended by the picker, without an error.",
			run: func(ctx context.Context, l *lab) error {
				for _, in := range [][]*request{
					{post(completionsPath).message()},
					script(post(completionsPath), bodyMessage([]byte("{"), false)),
					script(post(completionsPath), bodyMessage(l.completion(100), true)),
					script(get(modelsPath), responseHeaders(false, l.first(), events)),
				} {
					t := l.blurt(ctx, in...)
					if t.endless {
						return t.fail("the end of the stream after the half-close", "none within %v", l.timeout)
					}
					if err := t.sound("the end of the stream without an error"); err != nil {
						return err
					}
				}
				return nil
			},
		},
		{
			ID: "stream/cancel", Source: FromUs,
			Rule: "A client that leaves, at whatever point, leaves nothing behind: hundreds of them later the next request is picked.",
			run:  cancelled,
		},
		{
			ID: "stream/interleaved", Source: FromUs,
			Rule: "The messages of 100 streams in random order do not mix: each gets its own body back.",
			run:  interleaved,
		},
		{
			ID: "stream/stuck", Source: FromUs,
			Rule: "While 200 clients hold their bodies half sent, another request is answered.",
			run:  stuck,
		},
		{
			ID: "stream/many-in-turn", Source: FromUs,
			Rule: "500 requests in turn on one connection are all picked.",
			run: func(ctx context.Context, l *lab) error {
				for range 500 {
					if err := l.play(ctx, get(modelsPath).message()).routed(); err != nil {
						return err
					}
				}
				return nil
			},
		},
	}
}

// cancelled leaves streams at every point, more often than a picker with a limit
// could bear if it kept any of them.
func cancelled(ctx context.Context, l *lab) error {
	in := script(post(completionsPath), bodyMessage(l.completion(300)[:100], false), bodyMessage(l.completion(300)[100:], true),
		responseHeaders(false, l.first(), events), responseBody([]byte("data: 1\n\n"), false))
	rounds := max(40, min(maxHeld, l.target.MaxRequests*len(l.target.Endpoints))/2)
	for range rounds {
		for last := range in {
			s := l.open(ctx)
			for _, m := range in[:last+1] {
				if !s.send(m) || !s.settle(m) {
					break
				}
			}
			s.stop()
			if err := s.sound("no error before the client left"); err != nil && last > 1 {
				return err
			}
		}
	}
	return l.eventually(ctx, func() error { return l.play(ctx, get(modelsPath).message()).routed() })
}

// eventually asks until it is answered well or the time is up.
func (l *lab) eventually(ctx context.Context, try func() error) error {
	end := time.Now().Add(l.timeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func interleaved(ctx context.Context, l *lab) error {
	r := rand.New(rand.NewPCG(l.seed, 1))
	type party struct {
		*session
		rest []*request
		body []byte
	}
	var all, open []*party
	var streams sessions
	defer streams.stop()
	for i := range 100 {
		text := strings.Repeat(fmt.Sprintf("stream %d ", i), 1+r.IntN(400))
		body := fmt.Appendf(nil, `{"model":%q,"prompt":%q}`, l.model(), text)
		p := &party{session: l.open(ctx), body: body, rest: script(post(completionsPath), cut(body, 1+r.IntN(1500))...)}
		streams = append(streams, p.session)
		all, open = append(all, p), append(open, p)
	}
	for len(open) > 0 {
		i := r.IntN(len(open))
		p := open[i]
		ok := p.send(p.rest[0])
		if p.rest = p.rest[1:]; len(p.rest) == 0 || !ok {
			open[i] = open[len(open)-1]
			open = open[:len(open)-1]
		}
	}
	for _, p := range all {
		p.settle(bodyMessage(nil, true))
		if err := p.echoed(p.body); err != nil {
			return seeded(err, l.seed)
		}
	}
	return nil
}

// seeded adds the seed to a failure.
func seeded(err error, seed uint64) error {
	if f, ok := errors.AsType[*Failure](err); ok {
		f.Got += fmt.Sprintf(" (--seed %d)", seed)
	}
	return err
}

func stuck(ctx context.Context, l *lab) error {
	half := l.completion(20_000)[:10_000]
	var open sessions
	defer open.stop()
	for range 200 {
		s := l.open(ctx)
		open = append(open, s)
		s.send(post(completionsPath).message())
		s.send(bodyMessage(half, false))
	}
	body := l.completion(5000)
	return l.play(ctx, script(post(completionsPath), cut(body, 1000)...)...).picked()
}
