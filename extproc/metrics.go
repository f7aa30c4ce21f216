package extproc

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the figures of the ext_proc server. Labels come from closed sets
// in this package, never from a request.
type Metrics struct {
	// Requests counts finished requests by outcome: "done" (the answer's end was
	// seen), "answered" (an answer began, and the gateway does not send here how it
	// ends), "aborted" (the client or the gateway left), or the cause of a refusal.
	Requests *prometheus.CounterVec
	// PickSeconds is the time from the end of a request's body to its answer.
	PickSeconds prometheus.Histogram
	// RequestBytes counts the bytes of request bodies received.
	RequestBytes prometheus.Counter
	// ResponseBytes counts the bytes of answers, where a gateway sends them here.
	ResponseBytes prometheus.Counter
	// Streams is the number of requests under way.
	Streams prometheus.Gauge
	// BufferedBytes is the memory reserved for bodies that are being read.
	BufferedBytes prometheus.Gauge
	// OpenBookings is the number of requests that this server has booked on a
	// worker and not closed yet.
	OpenBookings prometheus.Gauge
	// Faults counts what went wrong without a request being refused for it, by
	// reason: "panic", "unexpected-message", "body-after-end", "send",
	// "compressed", "rewrite-unread", "served-elsewhere", "bad-policy", and of headers that a client sent and
	// that were not heeded "bad-priority", "unknown-objective", "bad-tenant",
	// "bad-session", "bad-slo".
	Faults *prometheus.CounterVec
	// KnownTokens and PromptTokens count the tokens of routed prompts whose blocks
	// were known, and all of them (estimated where the text is new).
	KnownTokens  prometheus.Counter
	PromptTokens prometheus.Counter
	// Flow are the figures of the requests that wait for room.
	Flow *FlowMetrics
}

// NewMetrics makes the metrics and registers them; reg may be nil for none.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &Metrics{
		Requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kvlane_requests_total", Help: "Requests that ended, by outcome."}, []string{"outcome"}),
		PickSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kvlane_pick_duration_seconds", Help: "Time from the end of a request's body to the answer.",
			// 16 us to 0.5 s; a pick takes tens of microseconds, a long prompt a few ms.
			Buckets: prometheus.ExponentialBuckets(16e-6, 2, 16)}),
		RequestBytes:  counter("kvlane_request_body_bytes_total", "Bytes of request bodies received."),
		ResponseBytes: counter("kvlane_response_body_bytes_total", "Bytes of answers that passed through."),
		Streams:       gauge("kvlane_streams", "Requests under way."),
		BufferedBytes: gauge("kvlane_buffered_body_bytes", "Memory reserved for bodies that are being read."),
		OpenBookings:  gauge("kvlane_open_bookings", "Requests booked on a worker and not closed."),
		Faults: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kvlane_faults_total", Help: "Faults that refused no request, by reason."}, []string{"reason"}),
		KnownTokens:  counter("kvlane_prompt_known_tokens_total", "Prompt tokens whose blocks were known."),
		PromptTokens: counter("kvlane_prompt_tokens_total", "Prompt tokens, estimated where the text is new."),
		Flow:         newFlowMetrics(reg),
	}
	if reg != nil {
		reg.MustRegister(m.Requests, m.PickSeconds, m.RequestBytes, m.ResponseBytes, m.Streams, m.BufferedBytes,
			m.OpenBookings, m.Faults, m.KnownTokens, m.PromptTokens)
	}
	return m
}
