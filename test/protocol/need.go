package protocol

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// need is something that a check cannot do without.
type need string

const (
	needTwo     need = "two endpoints"
	needIPv6    need = "an IPv6 endpoint"
	needModes   need = "other body modes"
	needModel   need = "a picker that reads bodies"
	needControl need = "control of the endpoints"
	needLimit   need = "a limit for bodies"
	needShed    need = "a limit for requests"
	needTimeout need = "a limit for a body's time"
	needHealth  need = "a health service"
	needEnvoy   need = "an Envoy"
)

// maxBodyTimeout is the longest that the suite waits for a picker's limit.
const maxBodyTimeout = 15 * time.Second

// maxHeld bounds the requests that the suite holds to reach a limit.
const maxHeld = 4096

// lacks says why a need is not met; empty if it is.
func (l *lab) lacks(ctx context.Context, n need) string {
	t := l.target
	switch n {
	case needTwo:
		if len(t.Endpoints) < 2 {
			return "the target has one endpoint; list more with --endpoints"
		}
	case needIPv6:
		if l.ipv6() == "" {
			return "no endpoint has an IPv6 address"
		}
	case needModes:
		if t.DuplexOnly {
			return "the target declares FULL_DUPLEX_STREAMED only (--duplex-only)"
		}
	case needModel:
		if t.Model == "" {
			return "the target does not read bodies (--model is not given)"
		}
	case needControl:
		if l.fleet == nil {
			return "the suite cannot take the target's endpoints away (--log is not given)"
		}
	case needLimit:
		if t.MaxBody == 0 {
			return "the target declares no limit for bodies (--max-body)"
		}
	case needShed:
		if t.MaxRequests == 0 {
			return "the target declares no limit of requests (--max-requests)"
		}
		if n := t.MaxRequests * len(t.Endpoints); n > maxHeld {
			return fmt.Sprintf("%d requests are needed to reach the limit; the suite holds at most %d", n, maxHeld)
		}
	case needTimeout:
		if t.BodyTimeout == 0 || t.BodyTimeout > maxBodyTimeout {
			return fmt.Sprintf("the target declares no limit up to %v for a body's time (--body-timeout)", maxBodyTimeout)
		}
	case needHealth:
		if t.Health == "" {
			return "no health service is declared (--health)"
		}
	case needEnvoy:
		return l.lacksEnvoy(ctx)
	}
	return ""
}

// ipv6 is an endpoint with an IPv6 address; empty if there is none.
func (l *lab) ipv6() string {
	for _, e := range l.target.Endpoints {
		if a, err := netip.ParseAddrPort(e); err == nil && a.Addr().Is6() && !a.Addr().Is4In6() {
			return e
		}
	}
	return ""
}

// isAddress reports whether s is ip:port as the protocol writes it.
func isAddress(s string) bool {
	a, err := netip.ParseAddrPort(s)
	return err == nil && a.Port() != 0 && a.Addr().Zone() == ""
}
