package protocol

import (
	"context"
	"strings"
)

// envoyModeChecks are the other body modes, through Envoy.
func envoyModeChecks() []Check {
	var checks []Check
	for _, m := range []struct{ front, what string }{
		{frontQuiet, "full duplex for the request, no response bodies"},
		{frontBuffered, "BUFFERED both ways"},
		{frontPartial, "BUFFERED_PARTIAL both ways"},
		{frontStreamed, "STREAMED both ways"},
		{frontNone, "no bodies"},
	} {
		c := throughEnvoy("mode-"+m.front, FromEnvoy, "With "+m.what+", requests with and without a body reach the endpoint that was picked.",
			func(ctx context.Context, l *lab) error {
				for _, c := range []call{
					{front: m.front, method: "GET", path: modelsPath},
					{front: m.front, method: "POST", path: completionsPath, body: l.completion(100)},
					{front: m.front, method: "POST", path: completionsPath, body: l.completion(200_000), chunked: true},
					{front: m.front, method: "POST", path: unknownPath, body: noise(5000)},
				} {
					r := l.do(ctx, c)
					if err := r.followed(); err != nil {
						return err
					}
					if string(r.body) != `{"object":"answer"}` {
						return r.fail("the endpoint's answer", "%q", r.body)
					}
				}
				return nil
			})
		if m.front != frontQuiet {
			c.needs = append(c.needs, needModes)
		}
		checks = append(checks, c)
	}
	return checks
}

// envoyFaultChecks are about forged headers, refusals, and parts that are down.
func envoyFaultChecks() []Check {
	limited := func(c Check, n ...need) Check {
		c.needs = append(n, c.needs...)
		return c
	}
	return []Check{
		throughEnvoy("forged-headers", FromUs, "Headers by which a client would steer reach no endpoint.", func(ctx context.Context, l *lab) error {
			return forgedThrough(ctx, l, frontDuplex)
		}),
		throughEnvoy("forged-headers-picker-alone", FromUs, "With an Envoy that does not strip forged headers itself, the picker does.",
			func(ctx context.Context, l *lab) error {
				return forgedThrough(ctx, l, frontBare)
			}),
		throughEnvoy("picker-down-is-503", FromProtocol,
			"Without a picker, and failing closed with 503, a request reaches no endpoint, whatever destination it brings.", pickerDown),
		throughEnvoy("picker-down-forged-headers", FromUs, "Without a picker, and failing open, forged headers reach no endpoint either.", pickerDownOpen),
		throughEnvoy("picker-back", FromUs, "When the picker is back, requests are picked again.", func(ctx context.Context, l *lab) error {
			l.envoy.link.down()
			if err := l.envoy.link.up(ctx); err != nil {
				return err
			}
			return l.eventually(ctx, func() error { return l.do(ctx, call{front: frontDuplex, method: "GET", path: modelsPath}).followed() })
		}),
		limited(throughEnvoy("fallback", FromProtocol,
			"If the first address does not answer, the next of the list serves, with the whole body.", fallback), needTwo),
		limited(throughEnvoy("no-endpoint-is-503", FromProtocol, "Without a ready endpoint the client gets 503.", func(ctx context.Context, l *lab) error {
			return l.without(ctx, func() error {
				if err := l.do(ctx, call{front: frontDuplex, method: "GET", path: modelsPath}).is(503); err != nil {
					return err
				}
				return l.do(ctx, call{front: frontDuplex, method: "POST", path: completionsPath, body: l.completion(100)}).is(503, 404)
			})
		}), needControl),
		limited(throughEnvoy("too-large-is-413", FromUs, "A body over the picker's limit is a 413 for the client, with and without a length.",
			func(ctx context.Context, l *lab) error {
				for _, chunked := range []bool{false, true} {
					c := call{front: frontDuplex, method: "POST", path: completionsPath, body: l.completion(l.target.MaxBody + 100_000), chunked: chunked, h2: true}
					if err := l.do(ctx, c).is(413); err != nil {
						return err
					}
				}
				return nil
			}), needLimit),
		limited(throughEnvoy("malformed-is-400", FromUs, "A body that is cut off is a 400 for the client, with a JSON body.",
			func(ctx context.Context, l *lab) error {
				r := l.do(ctx, call{front: frontDuplex, method: "POST", path: completionsPath, body: []byte(`{"model":`)})
				if err := r.is(400); err != nil {
					return err
				}
				if r.header.Get("Content-Type") != "application/json" {
					return r.fail("content-type application/json", "%q", r.header.Get("Content-Type"))
				}
				return nil
			}), needModel),
		throughEnvoy("endpoint-dies", FromUs, "An endpoint that dies in its answer is an error for its client, not for the next.", endpointDies),
		throughEnvoy("nothing-spurious", FromEnvoy, "Through all of this Envoy has counted no message of the picker as out of place.",
			func(ctx context.Context, l *lab) error {
				b, err := l.envoy.ask(ctx, "/stats?filter=ext_proc.*spurious_msgs_received")
				if err != nil {
					return err
				}
				for line := range strings.Lines(string(b)) {
					if line = strings.TrimSpace(line); !strings.HasSuffix(line, ": 0") {
						return &Failure{Want: "0 for every listener", Got: line}
					}
				}
				return nil
			}),
	}
}

// forgedThrough sends forged headers, twice each, and wants none of the values at
// the endpoint.
func forgedThrough(ctx context.Context, l *lab, front string) error {
	var headers [][2]string
	for _, h := range stripped() {
		headers = append(headers, [2]string{h, forged}, [2]string{h, "192.0.2.98:22"})
	}
	for _, c := range []call{
		{front: front, method: "GET", path: modelsPath, headers: headers},
		{front: front, method: "POST", path: completionsPath, body: l.completion(500), headers: headers},
		{front: front, method: "POST", path: unknownPath, body: noise(500), headers: headers},
	} {
		r := l.do(ctx, c)
		if err := r.followed(); err != nil {
			return err
		}
		if err := r.unforged(); err != nil {
			return err
		}
	}
	return nil
}

func (r *reply) unforged() error {
	for _, s := range r.seen {
		for k, values := range s.header {
			if v := strings.Join(values, " "); strings.Contains(v, "192.0.2.9") {
				return r.fail("no forged value at the endpoint", "%s: %s", k, v)
			}
		}
	}
	return nil
}

// forgedCalls are requests that name an endpoint themselves.
func forgedCalls(l *lab, front string) []call {
	headers := [][2]string{{destinationKey, l.target.Endpoints[0]}, {"x-prefiller-host-port", forged}}
	return []call{
		{front: front, method: "GET", path: modelsPath, headers: headers},
		{front: front, method: "POST", path: completionsPath, body: l.completion(500), headers: headers},
	}
}

// pickerless runs calls while the picker cannot be reached.
func pickerless(ctx context.Context, l *lab, calls []call, check func(*reply) error) (err error) {
	l.envoy.link.down()
	for _, c := range calls {
		if err = check(l.do(ctx, c)); err != nil {
			break
		}
	}
	if up := l.envoy.link.up(ctx); up != nil {
		return up
	}
	return err
}

func pickerDown(ctx context.Context, l *lab) error {
	return pickerless(ctx, l, forgedCalls(l, frontQuiet), func(r *reply) error {
		if err := r.is(503); err != nil {
			return err
		}
		if len(r.seen) > 0 {
			return r.fail("no endpoint to get the request", "%s got it", r.seen[0].worker)
		}
		return nil
	})
}

func pickerDownOpen(ctx context.Context, l *lab) error {
	return pickerless(ctx, l, forgedCalls(l, frontOpen), func(r *reply) error {
		for _, s := range r.seen {
			if v := s.header.Get(destinationKey); v != "" {
				return r.fail("no destination header at the endpoint", "%q", v)
			}
		}
		return r.unforged()
	})
}

// fallback takes an endpoint down that the picker still believes in.
func fallback(ctx context.Context, l *lab) (err error) {
	dead := l.envoy.workers[0]
	dead.down()
	defer func() {
		if up := l.eventually(ctx, func() error { return dead.up(ctx) }); err == nil {
			err = up
		}
	}()
	tried := 0
	for i := range 40 {
		size := 500
		if i%10 < 2 {
			size = 2 << 20 // more than the connections' buffers hold
		}
		r := l.do(ctx, call{front: frontDuplex, method: "POST", path: completionsPath, body: l.completion(size),
			headers: [][2]string{{subsetHeader, strings.Join(l.target.Endpoints[:2], ",")}}})
		if err := r.arrived(); err != nil {
			return err
		}
		list := strings.Split(r.seen[0].header.Get(destinationKey), ",")
		if list[0] != dead.address {
			continue
		}
		tried++
		if len(list) < 2 || list[1] != r.seen[0].worker {
			return r.fail("the second address of the destination to serve", "%s served, destination %q", r.seen[0].worker, strings.Join(list, ","))
		}
	}
	if tried == 0 {
		return notApplicable("in 40 requests the picker never put the endpoint first that was down")
	}
	return nil
}
