package protocol

import (
	"context"
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/structpb"
)

// robustChecks are about messages that are unusual or have no place.
func robustChecks() []Check {
	return append([]Check{
		robust("unknown-fields", FromEnvoy, "Fields that a newer protocol adds are ignored.", func(l *lab) []*request {
			in := script(post(completionsPath), bodyMessage(l.completion(200), true))
			unknown := protowire.AppendString(protowire.AppendTag(nil, 1999, protowire.BytesType), "from the future")
			for _, m := range in {
				m.ProtoReflect().SetUnknown(unknown)
			}
			in[0].GetRequestHeaders().ProtoReflect().SetUnknown(unknown)
			in[1].GetRequestBody().ProtoReflect().SetUnknown(unknown)
			return in
		}),
		robust("attributes", FromEnvoy, "Attributes and metadata of other filters are ignored.", func(*lab) []*request {
			m := get(modelsPath).message()
			m.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{
				"request.path": structpb.NewStringValue("/elsewhere"), "x": structpb.NewNullValue(),
			}}}
			m.MetadataContext = metadataOf("envoy.filters.http.jwt_authn", "claims", structpb.NewStringValue("x"))
			return []*request{m}
		}),
		robust("text-values", FromEnvoy, "Header values may come as value in place of raw_value, as older data planes send them.", func(*lab) []*request {
			o := get(modelsPath)
			o.plain = true
			return []*request{o.message()}
		}),
		robust("header-bytes", FromStandard, "Header values need not be UTF-8.", func(*lab) []*request {
			m := get(modelsPath).message()
			h := m.GetRequestHeaders().GetHeaders()
			h.Headers = append(h.Headers, &corev3.HeaderValue{Key: "x-latin", RawValue: []byte("caf\xe9 \xff")})
			return []*request{m}
		}),
		robust("large-header", FromUs, "A header of 60,000 bytes ends no stream.", func(*lab) []*request {
			return []*request{get(modelsPath, "cookie", strings.Repeat("c", 60_000)).message()}
		}),
		robust("many-headers", FromUs, "A thousand headers end no stream.", func(*lab) []*request {
			var pairs []string
			for i := range 1000 {
				pairs = append(pairs, fmt.Sprintf("x-header-%d", i), "v")
			}
			return []*request{get(modelsPath, pairs...).message()}
		}),
		robust("same-request-id", FromUs, "Two requests of one x-request-id are two requests.", func(*lab) []*request {
			return []*request{get(modelsPath, "x-request-id", "protocol-test-the-same").message()}
		}),
		robust("odd-request-id", FromUs, "An x-request-id of any bytes and any length ends no stream.", func(*lab) []*request {
			return []*request{get(modelsPath, "x-request-id", strings.Repeat("\x01é\n", 2000)).message()}
		}),
	}, misplacedChecks()...)
}

// robust sends a script twice and wants a pick each time.
func robust(name string, source Source, rule string, in func(*lab) []*request) Check {
	return Check{ID: "robust/" + name, Rule: rule, Source: source, run: func(ctx context.Context, l *lab) error {
		for range 2 {
			if err := l.play(ctx, in(l)...).picked(); err != nil {
				return err
			}
		}
		return nil
	}}
}

// misplacedChecks send what Envoy never would. Any answer will do but a gRPC error,
// which Envoy would turn into a 500.
func misplacedChecks() []Check {
	return []Check{
		misplaced("message-without-request", "A message without a request, as a newer protocol may have it, ends no stream.", func(l *lab) []*request {
			return []*request{post(completionsPath).message(), {}, bodyMessage(l.completion(100), true)}
		}),
		misplaced("headers-twice", "Request headers that come a second time end no stream.", func(l *lab) []*request {
			return []*request{post(completionsPath).message(), post(completionsPath).message(), bodyMessage(l.completion(100), true)}
		}),
		misplaced("body-before-headers", "A body without headers before it ends in no gRPC error.", func(l *lab) []*request {
			return []*request{bodyMessage(l.completion(100), true)}
		}),
		misplaced("trailers-before-headers", "Trailers without headers before them end in no gRPC error.", func(*lab) []*request {
			return []*request{trailersMessage()}
		}),
		misplaced("body-after-bodyless-headers", "A body after headers that ended the stream ends in no gRPC error.", func(l *lab) []*request {
			return []*request{get(modelsPath).message(), bodyMessage(l.completion(100), true)}
		}),
		misplaced("trailers-after-end", "Trailers after the end of the body end in no gRPC error.", func(l *lab) []*request {
			return script(post(completionsPath), bodyMessage(l.completion(100), true), trailersMessage())
		}),
		misplaced("response-twice", "A second response on one stream ends in no gRPC error.", func(l *lab) []*request {
			return script(get(modelsPath), responseHeaders(true, l.first(), "text/plain"), responseHeaders(true, l.first(), "text/plain"),
				responseBody([]byte("x"), true), responseTrailers())
		}),
		misplaced("nothing", "A stream that ends before its first message ends without a fault.", func(*lab) []*request { return nil }),
		misplaced("modes-of-the-future", "A body mode that the picker does not know ends in no gRPC error.", func(l *lab) []*request {
			return script(post(completionsPath).modes(99, 98), bodyMessage(l.completion(100), true))
		}),
		{
			ID: "robust/observability-mode", Source: FromEnvoy,
			Rule: "In observability mode Envoy sends everything and waits for nothing; no message is a fault.",
			run: func(ctx context.Context, l *lab) error {
				in := script(post(completionsPath), bodyMessage(l.completion(100), true),
					responseHeaders(false, l.first(), events), responseBody([]byte("x"), true))
				for _, m := range in {
					m.ObservabilityMode = true
				}
				return l.blurt(ctx, in...).sound("no gRPC error")
			},
		},
	}
}

func misplaced(name, rule string, in func(*lab) []*request) Check {
	return Check{ID: "robust/" + name, Rule: rule, Source: FromUs, run: func(ctx context.Context, l *lab) error {
		if err := l.blurt(ctx, in(l)...).sound("no gRPC error"); err != nil {
			return err
		}
		return l.play(ctx, get(modelsPath).message()).routed() // the picker is alive
	}}
}
