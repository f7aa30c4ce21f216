package extproc

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/picker"
)

// RewriteMetrics count the requests whose model was changed, by the rule's name and
// the target: both come from the configuration, never from a request.
type RewriteMetrics struct{ changed *prometheus.CounterVec }

// NewRewriteMetrics makes the metrics, with a series for each pair, and registers
// them; reg may be nil for none.
func NewRewriteMetrics(reg prometheus.Registerer, rewrites *picker.Rewrites) *RewriteMetrics {
	m := &RewriteMetrics{changed: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kvlane_model_rewrites_total", Help: "Requests that were sent to another model than they named, by rule and target.",
	}, []string{"rule", "target"})}
	for _, pair := range rewrites.Pairs() {
		m.changed.WithLabelValues(pair[0], pair[1])
	}
	if reg != nil {
		reg.MustRegister(m.changed)
	}
	return m
}

// UseRewrites has the router change the models of requests; to be called before the
// first request. A session stays with one target, a request without a session has the
// target of its id.
func (r *Router) UseRewrites(rewrites picker.Rewrites, m *RewriteMetrics) {
	r.rewrites, r.rewritten = rewrites, m
}

// rewrite is the model that a request is sent to in place of the one it names; empty
// if it keeps its name.
func (r *Router) rewrite(model string, req *picker.Request) string {
	target, _ := r.rewrites.Target(model, cmp.Or(req.Session, req.ID))
	return target
}

// served is the name that the plan's worker knows the model by.
func (d *Decision) served() string { return cmp.Or(d.Rewrite, d.Model) }

// noteRewrite counts a request that is sent on.
func (r *Router) noteRewrite(d *Decision) {
	if d.Rewrite != "" && r.rewritten != nil {
		r.rewritten.changed.WithLabelValues(r.rewrites.Rule(d.Model), d.Rewrite).Inc()
	}
}

// cannotRewrite refuses a request of which only the beginning is there, if its model
// had to be changed: sent on as it is, it would ask an engine for a name that only
// the configuration knows, and the client would be told that the model does not exist.
func (r *Router) cannotRewrite(a *Ask, beginning []byte) *Refusal {
	model, ok := openai.ModelIn(beginning)
	if !ok || r.rewrite(model, &picker.Request{ID: a.ID, Session: a.Session}) == "" {
		return nil
	}
	return &Refusal{Cause: CauseRewrite}
}

// unread counts a prompt that is routed by load alone although a rule might change
// its model: it is sent on as it is.
func (s *stream) unread() {
	if !s.srv.router.rewrites.Empty() {
		s.srv.fault("rewrite-unread")
	}
}

// edits are the changes of the body that a decision asks for.
func (d *Decision) edits() []openai.Edit {
	if d.Rewrite == "" {
		return nil
	}
	return []openai.Edit{openai.SetModel(d.Rewrite)}
}
