package extproc

import (
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Failed says that an address answered a request with a status that speaks against
// it.
func (r *Router) Failed(now time.Time, id, address string) { r.pool.Failed(id, address, now) }

// Answered says that an address answered a request whole and well.
func (r *Router) Answered(now time.Time, id, address string) { r.pool.Answered(id, address, now) }

// judge notes what an answer's status says of the worker: statuses of the client's
// making, and those with which a server says what it does not do, say nothing. An
// answer that is well so far is judged at its end.
func (s *stream) judge(now time.Time, m *corev3.HeaderMap, address string) {
	if !s.booked {
		return
	}
	if address == "" { // the gateway does not say: it went where the plan says
		address = s.decision.Plan.Decode.Address
	}
	switch code := status(m); {
	case code == "500" || code == "502" || code == "503" || code == "504":
		s.srv.router.Failed(now, s.id, address)
	case strings.HasPrefix(code, "2") || strings.HasPrefix(code, "3"):
		s.wellFrom = address
	}
}

// praise notes a whole answer.
func (s *stream) praise(now time.Time) {
	if s.complete && s.wellFrom != "" && !s.left {
		s.srv.router.Answered(now, s.id, s.wellFrom)
	}
}

// status is the status of an answer; empty if there is none.
func status(m *corev3.HeaderMap) string {
	for _, kv := range m.GetHeaders() {
		if strings.EqualFold(kv.GetKey(), ":status") {
			return value(kv)
		}
	}
	return ""
}
