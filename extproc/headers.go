package extproc

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Names of the endpoint picker protocol and of the headers between picker and
// agent.
const (
	// HeaderDestination carries ip:port[,ip:port...]: the choice, then what to try
	// if it cannot be reached. The same value is in the metadata namespace
	// [MetadataNamespace] under the same key.
	HeaderDestination = "x-gateway-destination-endpoint"
	// KeyServed is the metadata key under which the gateway reports the address
	// that served.
	KeyServed = "x-gateway-destination-endpoint-served"
	// KeySubset is the metadata key of the addresses the gateway allows.
	KeySubset = "x-gateway-destination-endpoint-subset"
	// MetadataNamespace holds the destination and the served address.
	MetadataNamespace = "envoy.lb"
	// SubsetNamespace holds KeySubset.
	SubsetNamespace = "envoy.lb.subset_hint"

	// HeaderPrefill is the worker that prefills, ip:port (llm-d's name).
	HeaderPrefill = "x-prefiller-host-port"
	// HeaderBooking is the id under which the picker counts the request.
	HeaderBooking = "x-kvlane-booking"
	// HeaderRank is the data-parallel rank that was chosen.
	HeaderRank = "x-kvlane-rank"
	// HeaderKnownTokens is how many of the prompt's first tokens the picker knows.
	HeaderKnownTokens = "x-kvlane-known-tokens"
	// HeaderUncached is how many prompt tokens the plan expects to be prefilled: the
	// agent counts them as queued until the first token.
	HeaderUncached = "x-kvlane-uncached"
	// HeaderLeg marks the prefill leg between agents; no gateway passes it on.
	HeaderLeg = "x-kvlane-leg"
	// HeaderUpstreams is the list of HeaderDestination again, for the agent.
	HeaderUpstreams = "x-kvlane-upstreams"
	// HeaderDeadline is the time left for the request, ms.
	HeaderDeadline = "x-kvlane-deadline-ms"
	// HeaderTrailers says that the request's body is followed by trailers, for
	// Envoy's choice of the route: a route with retries would send such a body
	// twice (envoyproxy/envoy issue 45470).
	HeaderTrailers = "x-kvlane-trailers"
	// HeaderModelRewrite is the name that the body's model was changed to, for routes
	// and logs of the gateway.
	HeaderModelRewrite = "x-kvlane-model-rewrite"
	// HeaderPolicy asks for a policy of the picker (client to picker).
	HeaderPolicy = "x-kvlane-policy"
	// HeaderRequestID names a request from end to end.
	HeaderRequestID = "x-request-id"
	// HeaderReason says in a refusal why it was refused.
	HeaderReason = "x-kvlane-reason"
)

// RoutingHeaders are the headers that tell a gateway, an agent or an engine
// which server to use. No client may set them. They are ours, the inference
// extension's, llm-d's with its older names, and Dynamo's with its aliases.
func RoutingHeaders() []string {
	return []string{
		HeaderDestination, KeyServed, KeySubset, "x-gateway-destination-endpoint-fallbacks",
		HeaderPrefill, "x-prefiller-url", "x-encoder-hosts-ports", "x-kv-cache-source-host-port",
		"x-data-parallel-host-port", "x-data-parallel-rank",
		HeaderBooking, HeaderRank, HeaderKnownTokens, HeaderUncached, HeaderLeg, HeaderUpstreams, HeaderDeadline,
		HeaderTrailers, HeaderModelRewrite,
		"x-dynamo-worker-instance-id", "x-dynamo-dp-rank", "x-dynamo-routing-mode",
		"x-dynamo-prefill-instance-id", "x-dynamo-prefill-dp-rank", "x-dynamo-token-data",
		"x-dynamo-backend-instance-id", "x-dynamo-prefill-worker-id", "x-dynamo-decode-worker-id",
		"x-worker-instance-id", "x-prefill-instance-id", "x-dp-rank", "x-prefill-dp-rank",
	}
}

// head is what a stream needs of the request's headers.
type head struct {
	method, path    string
	requestID       string
	contentEncoding string
	contentLength   string
	policy          string
	client          clientHeaders
	// strip are the routing headers that the client sent, lower case, each once.
	strip []string
}

// readHead takes what is needed from the headers. routing is the set of
// RoutingHeaders.
func readHead(m *corev3.HeaderMap, routing map[string]bool) head {
	var h head
	for _, kv := range m.GetHeaders() {
		key := strings.ToLower(kv.GetKey())
		switch key {
		case ":method":
			h.method = value(kv)
		case ":path":
			h.path = value(kv)
		case HeaderRequestID:
			h.requestID = value(kv)
		case "content-encoding":
			h.contentEncoding = joined(h.contentEncoding, value(kv))
		case "content-length":
			h.contentLength = value(kv)
		case HeaderPolicy:
			h.policy = value(kv)
		default:
			h.client.take(key, func() string { return value(kv) })
		}
		if routing[key] {
			h.strip = appendNew(h.strip, key)
		}
	}
	return h
}

// value reads either form of a header's value: Envoy writes raw bytes, older
// data planes text.
func value(kv *corev3.HeaderValue) string {
	if len(kv.GetRawValue()) > 0 {
		return string(kv.GetRawValue())
	}
	return kv.GetValue()
}

// joined is the value of a header that came in several lines.
func joined(a, b string) string {
	if a == "" {
		return b
	}
	return a + "," + b
}

func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// compressed reports whether a content-encoding changes the bytes.
func compressed(encoding string) bool {
	for part := range strings.SplitSeq(encoding, ",") {
		if p := strings.TrimSpace(part); p != "" && !strings.EqualFold(p, "identity") {
			return true
		}
	}
	return false
}

// set is a header change that replaces what is there.
func set(key, val string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		Header:       &corev3.HeaderValue{Key: key, RawValue: []byte(val)},
	}
}
