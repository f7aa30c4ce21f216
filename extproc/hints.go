package extproc

import (
	"net/netip"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// readSubset is the gateway's restriction of the choice. present with an empty
// list means that nothing is allowed: a hint in a form that we do not know
// never opens the whole pool.
func readSubset(m *corev3.Metadata) (addresses []string, present bool) {
	v, ok := m.GetFilterMetadata()[SubsetNamespace].GetFields()[KeySubset]
	if !ok {
		return nil, false
	}
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		addresses = appendAddresses(addresses, k.StringValue)
	case *structpb.Value_ListValue:
		for _, e := range k.ListValue.GetValues() {
			addresses = appendAddresses(addresses, e.GetStringValue())
		}
	}
	return addresses, true
}

// appendAddresses adds the ip:port entries of a list joined by commas, each
// once and in the form in which workers are written. Others match no worker and
// are left out.
func appendAddresses(dst []string, list string) []string {
	for entry := range strings.SplitSeq(list, ",") {
		if a, err := netip.ParseAddrPort(strings.TrimSpace(entry)); err == nil {
			dst = appendNew(dst, a.String())
		}
	}
	return dst
}

// readServed is the address that the gateway reports to have served; empty if
// it does not say.
func readServed(m *corev3.Metadata) string {
	return m.GetFilterMetadata()[MetadataNamespace].GetFields()[KeyServed].GetStringValue()
}

// maxRequestID is the longest id that is taken from a client, bytes. Ids go
// into logs, headers and the log of bookings.
const maxRequestID = 128

// requestID is the client's id if it can be used as one.
func requestID(s string) string {
	if len(s) > maxRequestID {
		return ""
	}
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f {
			return ""
		}
	}
	return s
}
