package extproc

import (
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

func (s *stream) responseHeaders(now time.Time, in *extprocv3.ProcessingRequest, h *extprocv3.HttpHeaders, out responses) responses {
	if s.answered {
		return s.unexpected(out)
	}
	s.answered = true
	s.complete = h.GetEndOfStream()
	addr := readServed(in.GetMetadataContext())
	s.judge(now, h.GetHeaders(), addr)
	if addr != "" && s.booked {
		s.served(now, addr)
		s.left = s.srv.cfg.LeaveStreaming && !s.srv.silent.Load() && s.phase == sent && !s.complete &&
			s.responseMode == extprocfilterv3.ProcessingMode_NONE && streams(h.GetHeaders()) && s.srv.router.reports(s.id)
	}
	return append(out, responseHeadersAnswer())
}

// streams reports whether an answer is a stream of events that an agent counts
// to its end.
func streams(m *corev3.HeaderMap) bool {
	ok, events := false, false
	for _, kv := range m.GetHeaders() {
		switch strings.ToLower(kv.GetKey()) {
		case ":status":
			ok = value(kv) == "200"
		case "content-type":
			events = strings.HasPrefix(strings.ToLower(value(kv)), "text/event-stream")
		}
	}
	return ok && events
}

func (s *stream) responseBody(b *extprocv3.HttpBody, out responses) responses {
	s.srv.metrics.ResponseBytes.Add(float64(len(b.GetBody())))
	if s.complete {
		s.srv.fault("body-after-end")
		return out
	}
	s.answered, s.complete = true, b.GetEndOfStream()
	if s.responseMode != extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
		return append(out, responseBodyAnswer(nil))
	}
	pieces(b.GetBody(), b.GetEndOfStream(), func(p []byte, end bool) {
		out = append(out, responseBodyAnswer(streamed(p, end)))
	})
	return out
}

func (s *stream) responseTrailers(out responses) responses {
	if s.complete {
		return s.unexpected(out)
	}
	s.answered, s.complete = true, true
	return append(out, responseTrailersAnswer())
}

// served books the request on the worker that really has it.
func (s *stream) served(now time.Time, address string) {
	if address != s.decision.Plan.Decode.Address {
		s.srv.fault("served-elsewhere")
	}
	s.srv.router.Served(now, s.id, address)
	s.srv.plans.update(s.id, func(e *Entry) { e.Served = address })
}
