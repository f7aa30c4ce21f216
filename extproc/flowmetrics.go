package extproc

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvlane/kvlane/picker/flow"
)

const (
	// maxBandLabels bounds the bands that have metrics of their own: the first that
	// come. The others are counted together, as other.
	maxBandLabels = 32
	other         = "other"
	// maxTenantLabel is how much of a tenant's name is a label, bytes.
	maxTenantLabel = 64
)

// FlowMetrics are the figures of the requests that wait. The label "band" is a
// priority, one of the first 32; "tenant" one of the first tenants, as many as the
// configuration says.
type FlowMetrics struct {
	// Requests, Bytes and Tokens are what waits, by band.
	Requests, Bytes, Tokens *prometheus.GaugeVec
	// WaitSeconds is how long requests waited, by band, however that ended.
	WaitSeconds *prometheus.HistogramVec
	// Left counts the requests that waited, by how that ended: "released", "aborted"
	// (the client left), or the cause of a refusal.
	Left *prometheus.CounterVec
	// TenantTokens counts the uncached tokens of requests that were released, by tenant.
	TenantTokens *prometheus.CounterVec

	bands   map[int]*bandMetrics
	tenants map[string]prometheus.Counter
	limit   int // of tenants
}

type bandMetrics struct {
	requests, bytes, tokens prometheus.Gauge
	wait                    prometheus.Observer
	now                     flow.Band // what the gauges are set to
}

// newFlowMetrics makes the metrics and registers them; reg may be nil for none.
func newFlowMetrics(reg prometheus.Registerer) *FlowMetrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"band"})
	}
	m := &FlowMetrics{
		Requests: gauge("kvlane_flow_waiting_requests", "Requests that wait for room, by priority."),
		Bytes:    gauge("kvlane_flow_waiting_bytes", "Memory of the requests that wait for room, by priority."),
		Tokens:   gauge("kvlane_flow_waiting_tokens", "Uncached tokens of the requests that wait for room, by priority."),
		WaitSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kvlane_flow_wait_seconds", Help: "Time that requests waited for room, by priority.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18), // 1 ms to 131 s
		}, []string{"band"}),
		Left: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kvlane_flow_left_total", Help: "Requests that waited for room, by how that ended."}, []string{"outcome"}),
		TenantTokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kvlane_flow_tenant_released_tokens_total", Help: "Uncached tokens of requests that waited and were released, by tenant."},
			[]string{"tenant"}),
		bands: make(map[int]*bandMetrics), tenants: make(map[string]prometheus.Counter),
	}
	if reg != nil {
		reg.MustRegister(m.Requests, m.Bytes, m.Tokens, m.WaitSeconds, m.Left, m.TenantTokens)
	}
	return m
}

// band is the metrics of a priority. The caller is the gate, which lets in one
// goroutine at a time, as for all that follows.
func (m *FlowMetrics) band(priority int) *bandMetrics {
	if b := m.bands[priority]; b != nil {
		return b
	}
	label := other
	if len(m.bands) < maxBandLabels {
		label = strconv.Itoa(priority)
	} else if b := m.bands[otherBand]; b != nil {
		return b
	} else {
		priority = otherBand
	}
	b := &bandMetrics{
		requests: m.Requests.WithLabelValues(label), bytes: m.Bytes.WithLabelValues(label), tokens: m.Tokens.WithLabelValues(label),
		wait: m.WaitSeconds.WithLabelValues(label),
	}
	m.bands[priority] = b
	return b
}

// otherBand stands for the bands without metrics of their own; no priority is so
// high.
const otherBand = maxPriority + 1

// queued sets the gauges.
func (m *FlowMetrics) queued(q *flow.Queue) {
	for _, b := range m.bands {
		b.now = flow.Band{}
	}
	for _, w := range q.Bands(nil) {
		b := m.band(w.Priority)
		b.now.Requests += w.Requests
		b.now.Bytes += w.Bytes
		b.now.Cost += w.Cost
	}
	for _, b := range m.bands {
		b.requests.Set(float64(b.now.Requests))
		b.bytes.Set(float64(b.now.Bytes))
		b.tokens.Set(float64(b.now.Cost))
	}
}

// left counts a request that does not wait any longer.
func (m *FlowMetrics) left(t *ticket, now time.Time, outcome string) {
	m.Left.WithLabelValues(outcome).Inc()
	m.band(t.item.Priority).wait.Observe(now.Sub(t.item.Arrived).Seconds())
	if outcome == released {
		m.tenant(t.item.Tenant).Add(float64(t.item.Cost))
	}
}

// Outcomes of waiting beside the causes of refusals.
const (
	released = "released"
	aborted  = "aborted"
)

func (m *FlowMetrics) tenant(name string) prometheus.Counter {
	if c := m.tenants[name]; c != nil {
		return c
	}
	if len(m.tenants) >= m.limit {
		return m.TenantTokens.WithLabelValues(other)
	}
	c := m.TenantTokens.WithLabelValues(tenantLabel(name))
	m.tenants[name] = c
	return c
}

// tenantLabel is a tenant's name as a label: its beginning, in UTF-8.
func tenantLabel(name string) string {
	if name == "" {
		return "none"
	}
	return strings.ToValidUTF8(name[:min(len(name), maxTenantLabel)], "?")
}
