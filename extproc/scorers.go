package extproc

import (
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/kvlane/kvlane/extproc/scoring"
	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// UseScorers has the router ask scorers before each choice; to be called before the
// first request. The set stays the caller's to close.
func (r *Router) UseScorers(set *scoring.Set) {
	if !set.Empty() {
		r.scorers = set
	}
}

// score asks the scorers about a request that was read. Nothing is locked meanwhile.
// Paths without a prompt go anywhere, nobody is asked about them.
func (r *Router) score(now time.Time, a *Ask, d *Decision, req *picker.Request) {
	if r.scorers == nil || apiOf(a.Method, a.Path) == openai.APINone {
		return
	}
	req.Adjust = r.scorers.Score(func() (*scoring.Request, []scoring.Candidate) {
		facts := &scoring.Request{
			ID: a.ID, Model: req.Model, PromptTokens: req.ISL, MaxOutputTokens: req.OSL,
			Session: a.Session, Tenant: a.Tenant, Priority: d.Priority, Headers: a.headers,
		}
		return facts, candidates(req, r.pool.Fleet(now).Endpoints)
	}, req.Adjust)
}

// candidates are the endpoints that a request may go to, as scorers see them.
func candidates(req *picker.Request, endpoints []picker.Endpoint) []scoring.Candidate {
	held := make(map[rankOf]uint32, len(req.Matches))
	for i := range req.Matches {
		m := &req.Matches[i]
		held[rankOf{m.Worker, m.Rank}] = m.Depth[kvindex.Device]
	}
	list := make([]scoring.Candidate, 0, len(endpoints))
	for i := range endpoints {
		e := &endpoints[i]
		serves := req.Model == "" || slices.Contains(e.Served, req.Model) || slices.Contains(e.Adapters, req.Model)
		if !e.Ready || e.Role == kvindex.RoleRelay || !serves || req.HasSubset && !slices.Contains(req.Subset, e.Address) {
			continue
		}
		list = append(list, scoring.Candidate{
			Worker: e.Worker, Rank: e.Rank, Address: e.Address, Role: e.Role,
			CachedTokens: min(int(held[rankOf{e.Worker, e.Rank}])*e.BlockSize, max(0, req.ISL-1)),
			QueueMs:      e.QueueMs, Requests: e.Requests, ContextTokens: e.ContextTokens, KVFree: e.KVFree,
		})
	}
	return list
}

type rankOf struct {
	worker kvindex.WorkerID
	rank   uint16
}

// wanted are the headers of a request that a scorer may see.
func (r *Router) wanted(m *corev3.HeaderMap) []scoring.Header {
	if r.scorers == nil {
		return nil
	}
	var list []scoring.Header
	for _, kv := range m.GetHeaders() {
		if key := strings.ToLower(kv.GetKey()); r.scorers.Wants(key) {
			list = append(list, scoring.Header{Name: key, Value: value(kv)})
		}
	}
	return list
}
