package scoring

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// outcome is how a question to a scorer ended. The set is closed.
type outcome uint8

const (
	outcomeOK      outcome = iota
	outcomeLate            // no answer by the deadline
	outcomeError           // an error of its own
	outcomePanic           // its code panicked
	outcomeInvalid         // an answer that cannot be used
	outcomeBusy            // too many of its calls have not returned
	outcomeOpen            // not asked: it failed too often
	numOutcomes
)

func (o outcome) String() string {
	return [numOutcomes]string{"ok", "late", "error", "panic", "invalid", "busy", "open"}[o]
}

func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return outcomeOK
	case errors.Is(err, errInvalid):
		return outcomeInvalid
	case errors.Is(err, errPanic):
		return outcomePanic
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
		return outcomeLate
	default:
		return outcomeError
	}
}

// Metrics count what scorers do, by their configured names.
type Metrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

// NewMetrics makes the metrics and registers them; reg may be nil for none.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kvlane_scorer_calls_total", Help: "Questions to custom scorers, by how they ended; all but ok had no say in the choice.",
		}, []string{"scorer", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kvlane_scorer_duration_seconds", Help: "How long a choice waited for a custom scorer.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 15), // to 0.8 s
		}, []string{"scorer"}),
	}
	if reg != nil {
		reg.MustRegister(m.calls, m.seconds)
	}
	return m
}

func (m *Metrics) prepare(scorer string) {
	for o := range numOutcomes {
		m.calls.WithLabelValues(scorer, o.String())
	}
}

func (m *Metrics) count(scorer string, o outcome) { m.calls.WithLabelValues(scorer, o.String()).Inc() }

func (m *Metrics) observe(scorer string, d time.Duration) {
	m.seconds.WithLabelValues(scorer).Observe(d.Seconds())
}
