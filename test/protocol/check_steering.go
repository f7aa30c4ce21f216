package protocol

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// forged is what no endpoint is, in every header that a client forges.
const forged = "192.0.2.99:22"

// steeringChecks are about headers by which a client would choose the server
// itself.
func steeringChecks() []Check {
	gie := []string{destinationKey, servedKey, subsetKey, "x-gateway-destination-endpoint-fallbacks"}
	prefill := []string{"x-prefiller-host-port", "x-prefiller-url"}
	llmd := []string{"x-encoder-hosts-ports", "x-kv-cache-source-host-port", "x-data-parallel-host-port"}
	dynamo := []string{
		"x-dynamo-worker-instance-id", "x-dynamo-dp-rank", "x-dynamo-routing-mode", "x-dynamo-prefill-instance-id", "x-dynamo-prefill-dp-rank",
		"x-worker-instance-id", "x-prefill-instance-id", "x-dp-rank", "x-prefill-dp-rank",
	}
	return append([]Check{
		{
			ID: "steering/destination-is-overwritten", Source: FromProtocol,
			Rule: "A destination header from the client is replaced: after the picker's changes there is one, the pick's.",
			run:  replaced(destinationKey, forged),
		},
		{
			ID: "steering/destination-mixed-case", Source: FromUs,
			Rule: "A destination header in mixed case, as HTTP/1 clients send it, is replaced too.",
			run:  replaced("X-Gateway-Destination-Endpoint", forged),
		},
		{
			ID: "steering/destination-two-lines", Source: FromUs,
			Rule: "A destination header that the client sends twice is replaced by one.",
			run:  replaced(destinationKey, forged, destinationKey, "192.0.2.98:22"),
		},
		{
			ID: "steering/destination-list", Source: FromUs,
			Rule: "A destination header with a list is replaced too.",
			run:  replaced(destinationKey, forged+",192.0.2.98:22"),
		},
		steered("gateway-headers", "The gateway's own headers (destination, served, subset, fallbacks) do not pass from a client to an endpoint.", gie),
		steered("prefill-target", "A client cannot name the server that prefills (x-prefiller-host-port, x-prefiller-url): "+
			"that would reach any address of the cluster.", prefill),
		steered("other-targets", "A client cannot name encoders, cache sources or ranks (llm-d's headers).", llmd),
		steered("dynamo-targets", "A client cannot choose workers by Dynamo's headers.", dynamo),
		{
			ID: "steering/with-body", Source: FromUs,
			Rule: "Forged headers are gone also where the body decides.",
			run: func(ctx context.Context, l *lab) error {
				o := post(completionsPath, forge(gie, prefill)...)
				return l.play(ctx, script(o, cut(l.completion(1000), 300)...)...).clean()
			},
		},
		{
			ID: "steering/unknown-path", Source: FromUs,
			Rule: "Forged headers are gone also on a path that the picker does not know.",
			run: func(ctx context.Context, l *lab) error {
				o := post(unknownPath, forge(gie, prefill)...)
				return l.play(ctx, script(o, bodyMessage(noise(100), true))...).clean()
			},
		},
		{
			ID: "steering/compressed", Source: FromUs,
			Rule: "Forged headers are gone also if the body cannot be read.",
			run: func(ctx context.Context, l *lab) error {
				o := post(completionsPath, append(forge(gie, prefill), "content-encoding", "br")...)
				t := l.play(ctx, script(o, bodyMessage(noise(100), true))...)
				if t.immediate != nil {
					return t.refused(415)
				}
				return t.clean()
			},
		},
	}, changeChecks(forge(gie, prefill))...)
}

// changeChecks are about the changes of headers themselves.
func changeChecks(forged []string) []Check {
	return []Check{
		{
			ID: "steering/not-set-and-removed", Source: FromUs,
			Rule: "No header is both set and removed: data planes differ in which of the two they do first.",
			run: func(ctx context.Context, l *lab) error {
				t := l.play(ctx, get(modelsPath, forged...).message())
				for _, m := range t.changes() {
					for _, h := range m.GetSetHeaders() {
						if slices.Contains(m.GetRemoveHeaders(), h.GetHeader().GetKey()) {
							return t.fail("one of the two", "%s is set and removed", h.GetHeader().GetKey())
						}
					}
				}
				return t.routed()
			},
		},
		{
			ID: "steering/safe-changes", Source: FromEnvoy,
			Rule: "The picker changes no pseudo header, no header of one hop and not the length: Envoy refuses some, and the others break a connection.",
			run: func(ctx context.Context, l *lab) error {
				o := post(completionsPath, "connection", "keep-alive", "transfer-encoding", "chunked", "te", "trailers")
				return l.play(ctx, script(o, bodyMessage(l.completion(500), true), responseHeaders(true, l.first(), "application/json"))...).safe()
			},
		},
	}
}

func forge(names ...[]string) []string {
	var pairs []string
	for _, group := range names {
		for _, n := range group {
			pairs = append(pairs, n, forged)
		}
	}
	return pairs
}

func steered(name, rule string, headers []string) Check {
	return Check{ID: "steering/" + name, Rule: rule, Source: FromUs, run: func(ctx context.Context, l *lab) error {
		return l.play(ctx, get(modelsPath, forge(headers)...).message()).clean()
	}}
}

// clean wants a pick after which no header holds what the client forged.
func (t *trace) clean() error {
	if err := t.picked(); err != nil {
		return err
	}
	headers := t.upstream()
	for _, k := range slices.Sorted(maps.Keys(headers)) {
		for _, v := range headers[k] {
			if strings.Contains(v, "192.0.2.9") {
				return t.fail("no header with the client's address", "%s: %s reaches the endpoint", k, v)
			}
		}
	}
	return nil
}

func replaced(pairs ...string) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		t := l.play(ctx, get(modelsPath, pairs...).message())
		if err := t.clean(); err != nil {
			return err
		}
		if got := t.upstream()[destinationKey]; len(got) != 1 {
			return t.fail("one destination header", "%q", got)
		}
		return nil
	}
}

// safe wants no change that breaks a message or a connection.
func (t *trace) safe() error {
	if err := t.picked(); err != nil {
		return err
	}
	bad := func(k string) bool {
		switch k = strings.ToLower(k); k {
		case "transfer-encoding", "connection", "keep-alive", "content-length", "te", "upgrade", "host":
			return true
		}
		return strings.HasPrefix(k, ":")
	}
	changes := t.changes()
	for _, a := range t.got {
		if m := a.GetResponseHeaders().GetResponse().GetHeaderMutation(); m != nil {
			changes = append(changes, m)
		}
	}
	for _, m := range changes {
		for _, h := range m.GetSetHeaders() {
			if bad(h.GetHeader().GetKey()) {
				return t.fail("no change of it", "%s is set", h.GetHeader().GetKey())
			}
		}
		for _, k := range m.GetRemoveHeaders() {
			if bad(k) {
				return t.fail("no change of it", "%s is removed", k)
			}
		}
	}
	return nil
}

// pathChecks are about requests that say nothing of where they should go.
func pathChecks() []Check {
	checks := []Check{
		{
			ID: "path/unknown-post", Source: FromUs,
			Rule: "A POST to a path that the picker does not know goes to an endpoint.",
			run: func(ctx context.Context, l *lab) error {
				body := noise(1000)
				return l.play(ctx, script(post(unknownPath), cut(body, 300)...)...).echoed(body)
			},
		},
		{
			ID: "path/unknown-is-not-held", Source: FromUs,
			Rule: "A body that the picker does not read is passed on as it comes, not held until its end.",
			run:  notHeld,
		},
		{
			ID: "path/query", Source: FromStandard,
			Rule: "A query after the path changes nothing.",
			run: func(ctx context.Context, l *lab) error {
				return l.play(ctx, script(post(completionsPath+"?api-version=2"), bodyMessage(l.completion(300), true))...).picked()
			},
		},
		{
			ID: "path/upgrade", Source: FromUs,
			Rule: "An upgrade to WebSocket, whose headers do not end the stream, is answered before anything follows.",
			run: func(ctx context.Context, l *lab) error {
				o := get("/v1/realtime", "connection", "upgrade", "upgrade", "websocket")
				o.end = false
				return l.answersFirst(ctx, o)
			},
		},
		{
			ID: "path/none", Source: FromUs,
			Rule: "Headers without a method and a path get an answer, a pick or a status, and never a gRPC error.",
			run: func(ctx context.Context, l *lab) error {
				m := get("").message()
				m.GetRequestHeaders().Headers = nil
				t := l.play(ctx, m)
				if t.immediate != nil {
					return nil
				}
				return t.routed()
			},
		},
	}
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "DELETE"} {
		checks = append(checks, Check{
			ID: "path/" + strings.ToLower(method), Source: FromProtocol,
			Rule: fmt.Sprintf("A %s without a body goes to an endpoint.", method),
			run: func(ctx context.Context, l *lab) error {
				o := get("/v1/responses/resp_1")
				o.method = method
				return l.play(ctx, o.message()).routed()
			},
		})
	}
	return checks
}

// answersFirst sends the headers and wants their answer before anything else is said.
func (l *lab) answersFirst(ctx context.Context, o opening) error {
	s := l.open(ctx)
	defer s.finish()
	s.send(o.message())
	s.await("answer to the headers", func() bool { return s.headers > 0 })
	return s.routed()
}

func notHeld(ctx context.Context, l *lab) error {
	s := l.open(ctx)
	defer s.finish()
	s.send(post(unknownPath).message())
	s.send(bodyMessage(noise(1000), false))
	s.await("return of the first piece, before the second is sent", func() bool { return len(s.requestBody) == 1000 })
	if err := s.routed(); err != nil {
		return err
	}
	s.send(bodyMessage(noise(10), true))
	s.await("return of the second piece", func() bool { return s.requestEnds == 1 })
	return s.sound("the second piece back")
}
