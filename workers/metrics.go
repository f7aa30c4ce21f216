package workers

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the agent's figures. All names begin with kvlane_agent_.
type Metrics struct {
	// KV events.
	Batches        *prometheus.CounterVec // by result
	Events         *prometheus.CounterVec // by result
	BadMessages    *prometheus.CounterVec // by reason
	Gaps           prometheus.Counter
	Doubts         prometheus.Counter
	Lives          prometheus.Counter
	ReplayErrors   prometheus.Counter
	FeedReconnects prometheus.Counter

	// The log.
	Appended    prometheus.Counter
	LogErrors   *prometheus.CounterVec // by reason
	LogOverflow prometheus.Counter
	LogUp       prometheus.Gauge
	Snapshots   prometheus.Counter
	Learned     prometheus.Counter

	// Requests.
	Requests  *prometheus.CounterVec // by api and code
	Errors    *prometheus.CounterVec // by reason
	Aborted   prometheus.Counter
	Tokens    *prometheus.CounterVec // by kind
	InFlight  prometheus.Gauge
	FirstByte prometheus.Histogram
	Prefill   *prometheus.CounterVec // by result
	Unlearned *prometheus.CounterVec // by reason

	// The engine.
	EngineUp prometheus.Gauge
	Unread   prometheus.Counter
}

// NewMetrics makes the figures and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "kvlane_agent_" + name, Help: help})
		reg.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kvlane_agent_" + name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kvlane_agent_" + name, Help: help})
		reg.MustRegister(g)
		return g
	}
	m := &Metrics{
		Batches:        counters("kv_batches_total", "KV event batches: applied, recovered (applied too), repeat, late, bad.", "result"),
		Events:         counters("kv_events_total", "KV events by result: applied, bad, skipped, unknown_parent, unknown_block.", "result"),
		BadMessages:    counters("kv_bad_messages_total", "Messages on the event socket that were no batches, by reason: frames, topic.", "reason"),
		Gaps:           counter("kv_gaps_total", "Times that batches were missing or could not be read."),
		Doubts:         counter("kv_doubts_total", "Times that such batches could not be had again and the content was cleared."),
		Lives:          counter("engine_lives_total", "Times that the engine was seen to begin a new life."),
		ReplayErrors:   counter("kv_replay_errors_total", "Replays that failed or did not end in time."),
		FeedReconnects: counter("kv_reconnects_total", "Connections to the event socket that ended or failed."),

		Appended:    counter("log_records_total", "Records written to the log."),
		LogErrors:   counters("log_errors_total", "Writes that the log did not take, by reason: away, gap, bye.", "reason"),
		LogOverflow: counter("log_overflow_total", "Times that the records waiting for the log were given up for a snapshot."),
		LogUp:       gauge("log_up", "1 if the last write to the log succeeded."),
		Snapshots:   counter("log_snapshots_total", "Snapshots written to the log."),
		Learned:     counter("learned_total", "Learned prompts and replies handed to the log."),

		Requests: counters("requests_total", "Requests answered, by API (chat, completions, other) and HTTP status.", "api", "code"),
		Errors:   counters("request_errors_total", "Requests that the agent itself had to answer with an error or cut, by reason.", "reason"),
		Aborted:  counter("requests_aborted_total", "Requests whose client went away."),
		Tokens:   counters("tokens_total", "Tokens as engines counted them, by kind: prompt, cached, output.", "kind"),
		InFlight: gauge("requests_in_flight", "Requests under way."),
		FirstByte: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kvlane_agent_first_token_seconds", Help: "From the request's arrival to its first token, streamed answers only.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 15),
		}),
		Prefill:   counters("prefill_total", "Prefill legs on another worker by result; failed ones that were done here are a fallback too.", "result"),
		Unlearned: counters("unlearned_total", "Answers that taught nothing, by reason: known, no_ids, no_block_size, too_long.", "reason"),

		EngineUp: gauge("engine_up", "1 if the engine takes requests."),
		Unread:   counter("engine_unread_total", "Looks at a bare engine's metrics page that did not show its load."),
	}
	reg.MustRegister(m.FirstByte)
	return m
}
