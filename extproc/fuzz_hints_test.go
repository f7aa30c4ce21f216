package extproc

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// FuzzSubset: a hint that is there is never taken for none, in whatever form, and
// allows exactly the addresses that can be read in it, each once.
func FuzzSubset(f *testing.F) {
	f.Add(byte(0), "192.0.2.10:8000,192.0.2.11:8000")
	f.Add(byte(0), " 192.0.2.10:8000 ,, [2001:db8::10]:8000")
	f.Add(byte(1), "192.0.2.10:8000\n[2001:DB8:0::10]:8000\n192.0.2.10:8000")
	f.Add(byte(1), "192.0.2.10\n:8000\n2001:db8::10")
	f.Add(byte(2), "")
	f.Add(byte(3), "x")
	f.Add(byte(4), "[fe80::1%eth0]:80")
	f.Fuzz(func(t *testing.T, kind byte, text string) {
		var v *structpb.Value
		var read string // what can be read, joined
		switch kind % 5 {
		case 0:
			v, read = structpb.NewStringValue(text), text
		case 1:
			list := &structpb.ListValue{}
			for line := range strings.SplitSeq(text, "\n") {
				list.Values = append(list.Values, structpb.NewStringValue(line))
			}
			v, read = structpb.NewListValue(list), strings.ReplaceAll(text, "\n", ",")
		case 2:
			v = structpb.NewNullValue()
		case 3:
			v = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{text: structpb.NewStringValue(text)}})
		default:
			v = &structpb.Value{} // a kind of a later protocol
		}
		got, present := readSubset(metadataContext(SubsetNamespace, KeySubset, v))
		if !present {
			t.Fatalf("hint %v is taken for none", v)
		}
		var want []string
		for s := range strings.SplitSeq(read, ",") {
			if a, err := netip.ParseAddrPort(strings.TrimSpace(s)); err == nil && !slices.Contains(want, a.String()) {
				want = append(want, a.String())
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("hint %v: got %q, want %q", v, got, want)
		}
	})
}

// FuzzHead: whatever the headers are, exactly the routing headers among them are
// taken off, each once and in lower case, and no id is taken over that could break
// a log line or a header.
func FuzzHead(f *testing.F) {
	f.Add(":method", "POST", "X-Prefiller-Host-Port", "192.0.2.99:22", "x-request-id", "one", true)
	f.Add("content-encoding", "identity", "Content-Encoding", "gzip", "content-length", "-1", false)
	f.Add("x-gateway-destination-endpoint", "a", "X-GATEWAY-DESTINATION-ENDPOINT", "b", "x-request-id", "a\nb", true)
	f.Add(":path", "/v1/completions?x", "x-kvlane-policy", "kv", "K", "\xff", false)
	routing := make(map[string]bool)
	for _, h := range RoutingHeaders() {
		routing[h] = true
	}
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2, k3, v3 string, raw bool) {
		m := &corev3.HeaderMap{}
		var want []string
		for _, p := range [][2]string{{k1, v1}, {k2, v2}, {k3, v3}} {
			h := &corev3.HeaderValue{Key: p[0], Value: p[1]}
			if raw {
				h.Value, h.RawValue = "", []byte(p[1])
			}
			m.Headers = append(m.Headers, h)
			if k := strings.ToLower(p[0]); routing[k] && !slices.Contains(want, k) {
				want = append(want, k)
			}
		}
		h := readHead(m, routing)
		if !slices.Equal(h.strip, want) {
			t.Errorf("headers %v: %q are taken off, want %q", m.GetHeaders(), h.strip, want)
		}
		id := requestID(h.requestID)
		if id != "" && id != h.requestID || len(id) > maxRequestID || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			t.Errorf("request id %q is taken over as %q", h.requestID, id)
		}
		if compressed(h.contentEncoding) && strings.Trim(strings.ToLower(h.contentEncoding), " ,\t\r\n\v\f") == "" {
			t.Errorf("an empty encoding %q counts as compressed", h.contentEncoding)
		}
		_ = hasPrompt(h) // no panic
	})
}
