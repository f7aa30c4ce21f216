package envoyconf

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// Options are the facts of one Envoy.
type Options struct {
	// Listen is the ip:port that clients connect to.
	Listen string
	// Admin is the ip:port of Envoy's admin page; empty for none. It can stop
	// Envoy and shows its whole state, so it belongs on loopback.
	Admin string
	// ExtProc are the host:port of the picker's replicas, at least one. A name is
	// resolved by DNS, and again while Envoy runs; it may stand for several
	// replicas. Where there can be several, Envoy checks their health, leaves one
	// that fails at once, and asks another one when a stream cannot be opened.
	ExtProc []string
	// Endpoints are the ip:port of all workers or agents that Envoy may send
	// requests to; at least one. Names are refused: the picker's choice is
	// compared with these as text.
	Endpoints []string
	// StripHeaders are removed from what clients send; each a lower-case header
	// name.
	StripHeaders []string
	// ResponseBodies sends the answers' bodies through the picker too, as
	// InferencePool gateways do. It costs tens of microseconds a chunk and
	// gains nothing here but the same shape of traffic.
	ResponseBodies bool
	// MessageTimeout bounds the picker's answer to one message in the body
	// modes that have such a bound. Envoy has none for request bodies in
	// full-duplex mode; the picker keeps its own.
	MessageTimeout time.Duration
	// ConnectTimeout is how long a worker may take to accept a connection before
	// the next address of the plan is tried.
	ConnectTimeout time.Duration
	// Retries is how many further addresses are tried when a connection fails or
	// is refused before the request reached the worker; 0 to 10.
	Retries int
	// MaxRequestBytes is the largest body that Envoy keeps so that it can send
	// it to a second address. Larger bodies have one try.
	MaxRequestBytes int
	// ConnectionBufferBytes bounds what Envoy buffers for one connection in each
	// direction before it stops reading.
	ConnectionBufferBytes int
	// MaxRequests bounds how many requests Envoy has under way to the workers,
	// and to the picker; more are refused with 503.
	MaxRequests int
}

// Default is a configuration for one machine without its endpoints.
func Default() Options {
	return Options{
		Listen:         "127.0.0.1:8080",
		Admin:          "127.0.0.1:9901",
		ExtProc:        []string{"127.0.0.1:9002"},
		MessageTimeout: 5 * time.Second,
		ConnectTimeout: time.Second,
		Retries:        3,
		// The picker's own limit for a body.
		MaxRequestBytes:       32 << 20,
		ConnectionBufferBytes: 1 << 20,
		// Envoy's own default of 1,024 is less than one agent with four ranks of 256
		// sequences can run.
		MaxRequests: 65536,
	}
}

// Validate lists every fault of the options.
func (o Options) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	ipPort := func(name, v string) {
		// A zone is free text and means nothing to Envoy.
		if a, err := netip.ParseAddrPort(v); err != nil || a.Port() == 0 || a.Addr().Zone() != "" {
			fault("%s %q: want ip:port", name, v)
		}
	}
	ipPort("listen", o.Listen)
	if o.Admin != "" {
		ipPort("admin", o.Admin)
	}
	if len(o.ExtProc) == 0 {
		fault("ext-proc: want at least one host:port")
	}
	for _, p := range o.ExtProc {
		if _, _, err := splitHostPort(p); err != nil {
			fault("ext-proc %q: %w", p, err)
		}
	}
	if len(o.Endpoints) == 0 {
		fault("endpoints: want at least one ip:port")
	}
	for _, e := range o.Endpoints {
		ipPort("endpoint", e)
	}
	for _, h := range o.StripHeaders {
		if !isHeaderName(h) {
			fault("strip header %q: want a lower-case header name", h)
		}
	}
	for name, d := range map[string]time.Duration{"message timeout": o.MessageTimeout, "connect timeout": o.ConnectTimeout} {
		if d < time.Millisecond || d > time.Hour {
			fault("%s %v: want 1ms to 1h", name, d)
		}
	}
	if o.Retries < 0 || o.Retries > 10 {
		fault("retries %d: want 0 to 10", o.Retries)
	}
	for name, n := range map[string]int{
		"max request bytes": o.MaxRequestBytes, "connection buffer bytes": o.ConnectionBufferBytes, "max requests": o.MaxRequests,
	} {
		if n < 1 || n > 1<<30 {
			fault("%s %d: want 1 to %d", name, n, 1<<30)
		}
	}
	return errors.Join(faults...)
}

// splitHostPort takes an address apart whose host is an IP address or a DNS name.
func splitHostPort(s string) (string, uint16, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, errors.New("want host:port")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", 0, errors.New("want a port from 1 to 65535")
	}
	if a, err := netip.ParseAddr(host); err == nil && a.Zone() == "" {
		return host, uint16(n), nil
	}
	if !isDNSName(host) {
		return "", 0, errors.New("want an IP address or a DNS name")
	}
	return host, uint16(n), nil
}

func isDNSName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for _, c := range []byte(s) {
		if !isAlnum(c) && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return true
}

func isHeaderName(s string) bool {
	for _, c := range []byte(s) {
		if (!isAlnum(c) || c >= 'A' && c <= 'Z') && c != '-' && c != '_' {
			return false
		}
	}
	return s != ""
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
