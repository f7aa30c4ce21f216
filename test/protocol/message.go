package protocol

import (
	"crypto/rand"
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Names of the endpoint picker protocol.
const (
	destinationKey  = "x-gateway-destination-endpoint"
	servedKey       = "x-gateway-destination-endpoint-served"
	subsetKey       = "x-gateway-destination-endpoint-subset"
	lbNamespace     = "envoy.lb"
	subsetNamespace = "envoy.lb.subset_hint"
)

// Paths of the OpenAI API whose bodies a picker may read, and others.
const (
	completionsPath = "/v1/completions"
	chatPath        = "/v1/chat/completions"
	modelsPath      = "/v1/models"
	unknownPath     = "/v1/a-path-that-nobody-knows"
)

type (
	request  = extprocv3.ProcessingRequest
	answer   = extprocv3.ProcessingResponse
	bodyMode = extprocfilterv3.ProcessingMode_BodySendMode
)

// The body modes of Envoy.
const (
	modeNone     = extprocfilterv3.ProcessingMode_NONE
	modeStreamed = extprocfilterv3.ProcessingMode_STREAMED
	modeBuffered = extprocfilterv3.ProcessingMode_BUFFERED
	modePartial  = extprocfilterv3.ProcessingMode_BUFFERED_PARTIAL
	modeDuplex   = extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
)

// opening is the first message of a stream: the request's headers.
type opening struct {
	method, path string
	headers      [][2]string
	end          bool // no body follows
	plain        bool // header values as text, as data planes before raw_value wrote them
	// The body modes that the gateway declares; unset is full duplex both ways.
	requestMode, responseMode bodyMode
	modesSet                  bool
	silent                    bool // no protocol_config, as Envoy before 1.34
	subset                    *structpb.Value
	metadata                  *corev3.Metadata
}

// post is a request whose body follows.
func post(path string, pairs ...string) opening {
	o := opening{method: "POST", path: path, headers: [][2]string{{"content-type", "application/json"}}}
	return o.with(pairs...)
}

// get is a request without a body.
func get(path string, pairs ...string) opening {
	o := opening{method: "GET", path: path, end: true}
	return o.with(pairs...)
}

// with adds headers, name and value in turn.
func (o opening) with(pairs ...string) opening {
	o.headers = append([][2]string(nil), o.headers...)
	for i := 0; i+1 < len(pairs); i += 2 {
		o.headers = append(o.headers, [2]string{pairs[i], pairs[i+1]})
	}
	return o
}

// modes sets the body modes of both directions.
func (o opening) modes(requestMode, responseMode bodyMode) opening {
	o.requestMode, o.responseMode, o.modesSet = requestMode, responseMode, true
	return o
}

// within sets the subset hint.
func (o opening) within(v *structpb.Value) opening {
	o.subset = v
	return o
}

// declared are the modes of a stream that begins with m.
func declared(m *request) (requestMode, responseMode bodyMode) {
	if c := m.GetProtocolConfig(); c != nil {
		return c.GetRequestBodyMode(), c.GetResponseBodyMode()
	}
	return modeDuplex, modeDuplex
}

func (o opening) message() *request {
	if !o.modesSet {
		o.requestMode, o.responseMode = modeDuplex, modeDuplex
	}
	pairs := [][2]string{{":method", o.method}, {":path", o.path}, {":scheme", "http"}, {":authority", "protocol.test"}}
	pairs = append(append(pairs, o.headers...), [2]string{"x-request-id", newID()})
	m := &request{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
			Headers: headerMap(pairs, o.plain), EndOfStream: o.end,
		}},
		MetadataContext: o.metadata,
	}
	if !o.silent {
		m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: o.requestMode, ResponseBodyMode: o.responseMode}
	}
	if o.subset != nil {
		m.MetadataContext = metadataOf(subsetNamespace, subsetKey, o.subset)
	}
	return m
}

func headerMap(pairs [][2]string, plain bool) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for _, p := range pairs {
		h := &corev3.HeaderValue{Key: p[0], RawValue: []byte(p[1])}
		if plain {
			h.Value, h.RawValue = p[1], nil
		}
		m.Headers = append(m.Headers, h)
	}
	return m
}

func metadataOf(namespace, key string, v *structpb.Value) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		namespace: {Fields: map[string]*structpb.Value{key: v}},
	}}
}

// list is a subset hint in the protocol's form.
func list(addresses ...string) *structpb.Value {
	l := &structpb.ListValue{}
	for _, a := range addresses {
		l.Values = append(l.Values, structpb.NewStringValue(a))
	}
	return structpb.NewListValue(l)
}

func bodyMessage(b []byte, end bool) *request {
	return &request{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: b, EndOfStream: end}}}
}

// cut is a body in pieces of at most n bytes, the last with the end of stream.
func cut(body []byte, n int) []*request {
	out := uncut(body, n)
	out[len(out)-1].GetRequestBody().EndOfStream = true
	return out
}

// uncut is cut without the end of stream.
func uncut(body []byte, n int) []*request {
	var out []*request
	for len(body) > n {
		out = append(out, bodyMessage(body[:n], false))
		body = body[n:]
	}
	return append(out, bodyMessage(body, false))
}

func trailersMessage() *request {
	return &request{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{
		Trailers: headerMap([][2]string{{"x-checksum", "7"}}, false)}}}
}

// responseHeaders is the head of an endpoint's answer; served is who gave it,
// empty if the gateway does not say.
func responseHeaders(end bool, served, contentType string) *request {
	m := &request{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
		Headers:     headerMap([][2]string{{":status", "200"}, {"content-type", contentType}, {"x-worker", "one"}}, false),
		EndOfStream: end}}}
	if served != "" {
		m.MetadataContext = metadataOf(lbNamespace, servedKey, structpb.NewStringValue(served))
	}
	return m
}

func responseBody(b []byte, end bool) *request {
	return &request{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: b, EndOfStream: end}}}
}

func responseTrailers() *request {
	return &request{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{
		Trailers: headerMap([][2]string{{"x-end", "1"}}, false)}}}
}

// model is the name for bodies, also where the picker does not read them.
func (l *lab) model() string {
	if l.target.Model == "" {
		return "any"
	}
	return l.target.Model
}

// completion is a valid body for completionsPath of about size bytes.
func (l *lab) completion(size int) []byte {
	head, tail := fmt.Sprintf(`{"model":%q,"max_tokens":4,"prompt":"`, l.model()), `"}`
	return []byte(head + strings.Repeat("a", max(1, size-len(head)-len(tail))) + tail)
}

// document is a body for completionsPath with members of its own after the model.
func (l *lab) document(members string) []byte {
	return fmt.Appendf(nil, `{"model":%q,"prompt":"p",%s}`, l.model(), members)
}

func newID() string { return "protocol-test-" + rand.Text() }

// script is the messages of one stream.
func script(o opening, rest ...*request) []*request { return append([]*request{o.message()}, rest...) }
