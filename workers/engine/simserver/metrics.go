package simserver

import (
	"context"
	"maps"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvlane/kvlane/workers/engine/sim"
)

// metrics are the counters that the core does not keep itself, under vLLM's
// names. Times are real ones: what a client sees.
type metrics struct {
	registry *prometheus.Registry

	firstToken prometheus.Histogram
	between    prometheus.Histogram
	perToken   prometheus.Histogram
	whole      prometheus.Histogram

	stop, length, aborted, failed prometheus.Counter
	loadFailures, holdsExpired    prometheus.Counter
	slipped                       prometheus.Counter
}

// labels are vLLM's two labels of every engine metric.
func labels(model string) prometheus.Labels {
	return prometheus.Labels{"model_name": model, "engine": "0"}
}

func newMetrics(model string) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, ConstLabels: labels(model)})
		m.registry.MustRegister(h)
		return h
	}
	counter := func(name, help string, extra prometheus.Labels) prometheus.Counter {
		l := labels(model)
		maps.Copy(l, extra)
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: l})
		m.registry.MustRegister(c)
		return c
	}
	// The buckets are vLLM's.
	m.firstToken = histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", []float64{
		0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
	})
	token := []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	m.between = histogram("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", token)
	m.perToken = histogram("vllm:time_per_output_token_seconds", "Histogram of time per output token in seconds.", token)
	m.whole = histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", []float64{
		0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
	})
	const success, successHelp = "vllm:request_success_total", "Count of successfully processed requests."
	m.stop = counter(success, successHelp, prometheus.Labels{"finished_reason": "stop"})
	m.length = counter(success, successHelp, prometheus.Labels{"finished_reason": "length"})
	m.aborted = counter(success, successHelp, prometheus.Labels{"finished_reason": "abort"})
	m.failed = counter(success, successHelp, prometheus.Labels{"finished_reason": "error"})
	m.loadFailures = counter("vllm:nixl_num_failed_transfers_total", "Number of failed KV transfers.", nil)
	m.holdsExpired = counter("vllm:nixl_num_kv_expired_reqs_total", "Number of requests whose KV expired before it was pulled.", nil)
	m.slipped = counter("sim:slipped_seconds_total", "Time by which the engine ran late because the machine could not keep up with its speed.", nil)
	return m
}

// token counts one token of a sequence that has had s.tokens with it.
func (m *metrics) token(s *sequence, now time.Time) {
	if s.tokens == 1 {
		m.firstToken.Observe(now.Sub(s.start).Seconds())
		return
	}
	gap := now.Sub(s.last).Seconds()
	m.between.Observe(gap)
	m.perToken.Observe(gap)
}

func (m *metrics) finished(s *sequence, reason sim.Reason, now time.Time) {
	switch reason {
	case sim.Stop:
		m.stop.Inc()
	case sim.Length:
		m.length.Inc()
	default:
		m.aborted.Inc()
		return
	}
	m.whole.Observe(now.Sub(s.start).Seconds())
}

// gauges reads the core's own figures when it is scraped.
type gauges struct {
	engine *engine
	cfg    *Config
	models *models
	descs  []*prometheus.Desc
	cache  *prometheus.Desc
	lora   *prometheus.Desc
	born   *prometheus.Desc
}

// figure is one of the core's figures.
type figure struct {
	name, help string
	kind       prometheus.ValueType
	value      func(st sim.Stats, blocks int) float64
}

func figures() []figure {
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	return []figure{
		{"vllm:num_requests_running", "Number of requests in model execution batches.", gauge,
			func(st sim.Stats, _ int) float64 { return float64(st.Running) }},
		{"vllm:num_requests_waiting", "Number of requests waiting to be processed.", gauge,
			func(st sim.Stats, _ int) float64 { return float64(st.Waiting) }},
		{"vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", gauge,
			func(st sim.Stats, n int) float64 { return float64(st.UsedBlocks) / float64(n) }},
		{"vllm:prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.", counter,
			func(st sim.Stats, _ int) float64 { return float64(st.QueryTokens) }},
		{"vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.", counter,
			func(st sim.Stats, _ int) float64 { return float64(st.HitTokens) }},
		{"vllm:external_prefix_cache_hits_total", "Tokens that came from another engine.", counter,
			func(st sim.Stats, _ int) float64 { return float64(st.TransferredTokens) }},
		{"vllm:prompt_tokens_total", "Number of prefill tokens processed.", counter,
			func(st sim.Stats, _ int) float64 { return float64(st.PromptTokens) }},
		{"vllm:generation_tokens_total", "Number of generation tokens processed.", counter,
			func(st sim.Stats, _ int) float64 { return float64(st.GeneratedTokens) }},
		{"vllm:num_preemptions_total", "Cumulative number of preemption from the engine.", counter,
			func(st sim.Stats, _ int) float64 { return float64(st.Preemptions) }},
	}
}

func newGauges(e *engine, cfg *Config, ms *models) *gauges {
	g := &gauges{engine: e, cfg: cfg, models: ms}
	model := cfg.Served[0]
	for _, f := range figures() {
		g.descs = append(g.descs, prometheus.NewDesc(f.name, f.help, nil, labels(model)))
	}
	caching := "True"
	if cfg.NoPrefixCaching {
		caching = "False"
	}
	info := prometheus.Labels{
		"engine": "0", "block_size": strconv.Itoa(cfg.BlockSize), "num_gpu_blocks": strconv.Itoa(cfg.Blocks),
		"enable_prefix_caching": caching, "cache_dtype": "auto",
	}
	g.cache = prometheus.NewDesc("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", nil, info)
	// A real engine's restart is a new process.
	g.born = prometheus.NewDesc("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", nil, nil)
	g.lora = prometheus.NewDesc("vllm:lora_requests_info", "Running stats on lora requests.",
		[]string{"max_lora", "waiting_lora_adapters", "running_lora_adapters"}, nil)
	return g
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range g.descs {
		out <- d
	}
	out <- g.cache
	out <- g.lora
	out <- g.born
}

// Collect implements prometheus.Collector. An engine that has stopped has no
// figures.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	var st sim.Stats
	var waiting, running string
	var born time.Time
	err := g.engine.do(context.Background(), func() {
		st = g.engine.core.Stats()
		waiting, running = g.engine.adapters()
		born = g.engine.born
	})
	if err != nil {
		return
	}
	for i, f := range figures() {
		out <- prometheus.MustNewConstMetric(g.descs[i], f.kind, f.value(st, g.cfg.Blocks))
	}
	out <- prometheus.MustNewConstMetric(g.cache, prometheus.GaugeValue, 1)
	out <- prometheus.MustNewConstMetric(g.born, prometheus.GaugeValue, float64(born.UnixMilli())/1000)
	if len(g.models.adapters()) > 0 {
		out <- prometheus.MustNewConstMetric(g.lora, prometheus.GaugeValue, float64(time.Now().UnixMilli())/1000,
			strconv.Itoa(maxAdapters), waiting, running)
	}
}

// adapters are the adapters of sequences without and with a first token, each
// a comma list in order, as vLLM writes them.
func (e *engine) adapters() (waiting, running string) {
	sets := [2]map[string]struct{}{{}, {}}
	for _, s := range e.seqs {
		if s.lora != "" {
			sets[min(s.tokens, 1)][s.lora] = struct{}{}
		}
	}
	var out [2]string
	for i, set := range sets {
		names := make([]string, 0, len(set))
		for name := range set {
			names = append(names, name)
		}
		sort.Strings(names)
		out[i] = strings.Join(names, ",")
	}
	return out[0], out[1]
}
