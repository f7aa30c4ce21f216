package workers

import (
	"net/http"
	"strconv"
	"strings"
)

// Headers between picker and agent, and between two agents of a P/D pair. Their
// names are a contract with package extproc, which may not be imported here.
const (
	// HeaderPrefill is the worker that prefills, ip:port (llm-d's name).
	HeaderPrefill = "X-Prefiller-Host-Port"
	// headerPrefillURL is llm-d's older name.
	headerPrefillURL = "X-Prefiller-Url"
	// HeaderBooking is the id under which the picker counts the request.
	HeaderBooking = "X-Kvlane-Booking"
	// HeaderUncached is how many prompt tokens the picker expects the engine to
	// compute, a decimal number.
	HeaderUncached = "X-Kvlane-Uncached"
	// HeaderKnownTokens is how many of the prompt's first tokens the picker knew, a
	// decimal number.
	HeaderKnownTokens = "X-Kvlane-Known-Tokens"
	// HeaderRank is the data-parallel rank that was chosen. It is not passed on: an
	// agent announces one endpoint, so the picker knows no rank but 0, and an engine
	// that is told so would leave its other ranks idle.
	HeaderRank = "X-Kvlane-Rank"
	// HeaderLeg marks the prefill leg of a P/D request; its value is LegPrefill.
	HeaderLeg = "X-Kvlane-Leg"
	// LegPrefill is the value of HeaderLeg.
	LegPrefill = "prefill"
	// HeaderUnserved is in an answer whose request the engine did not get, because
	// nothing listens at its address: a gateway may send the request elsewhere.
	HeaderUnserved = "X-Kvlane-Unserved"
	// HeaderRequestID names a request from end to end.
	HeaderRequestID = "X-Request-Id"
)

// maxBooking is the longest booking id that is believed, bytes: a picker's is a
// request id.
const maxBooking = 256

// routing is what the picker's headers say about a request.
type routing struct {
	booking string
	// prefill are the addresses named as prefill workers, in all spellings of the
	// header; empty for none.
	prefill []string
	// uncached is -1 where the picker did not say.
	uncached int64
	// known is how much of the prompt the picker knew, tokens; -1 likewise.
	known int64
	leg   string
}

// takeRouting reads the picker's headers and removes everything that steers.
func takeRouting(h http.Header) routing {
	rt := routing{
		booking:  h.Get(HeaderBooking),
		uncached: -1,
		known:    -1,
		leg:      h.Get(HeaderLeg),
	}
	if len(rt.booking) > maxBooking {
		rt.booking = ""
	}
	if n, err := strconv.ParseInt(h.Get(HeaderUncached), 10, 32); err == nil && n >= 0 {
		rt.uncached = n
	}
	if n, err := strconv.ParseInt(h.Get(HeaderKnownTokens), 10, 32); err == nil && n >= 0 {
		rt.known = n
	}
	for _, name := range []string{HeaderPrefill, headerPrefillURL} {
		for _, line := range h.Values(name) {
			for v := range strings.SplitSeq(line, ",") {
				if v = strings.TrimSpace(v); v != "" { // an empty header is how some proxies remove one
					rt.prefill = append(rt.prefill, v)
				}
			}
		}
	}
	for name := range h {
		if steers(name) {
			delete(h, name)
		}
	}
	return rt
}

// steers reports whether a header tells a proxy or an engine which server to
// use, or is a matter between gateway, picker and agent. An engine never sees
// such a header.
func steers(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "x-prefiller-host-port", "x-prefiller-url", "x-encoder-hosts-ports", "x-kv-cache-source-host-port",
		"x-data-parallel-host-port", "x-data-parallel-rank", "x-worker-instance-id", "x-prefill-instance-id",
		"x-dp-rank", "x-prefill-dp-rank":
		return true
	}
	return strings.HasPrefix(name, "x-kvlane-") || strings.HasPrefix(name, "x-gateway-destination-endpoint") ||
		strings.HasPrefix(name, "x-dynamo-")
}

// endToEnd is a copy of the headers without those of the connection.
func endToEnd(h http.Header) http.Header {
	out := h.Clone()
	for _, line := range h.Values("Connection") {
		for name := range strings.SplitSeq(line, ",") {
			out.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range [...]string{ // RFC 9110, 7.6.1, and what older proxies add
		"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade",
	} {
		out.Del(name)
	}
	return out
}

// compressed reports whether a content-encoding changes the bytes.
func compressed(h http.Header) bool {
	for _, line := range h.Values("Content-Encoding") {
		for part := range strings.SplitSeq(line, ",") {
			if p := strings.TrimSpace(part); p != "" && !strings.EqualFold(p, "identity") {
				return true
			}
		}
	}
	return false
}
