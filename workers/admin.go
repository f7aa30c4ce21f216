package workers

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/kvlane/kvlane/internal/observability"
	"github.com/kvlane/kvlane/kvindex"
)

// State is what /agent/state shows.
type State struct {
	Worker   kvindex.WorkerID `json:"worker"`
	Address  string           `json:"address"`
	Role     string           `json:"role"`
	Ready    bool             `json:"ready"`
	Why      string           `json:"why,omitempty"` // why it is not ready
	Engine   string           `json:"engine"`
	Model    string           `json:"model"`
	Served   []string         `json:"served"`
	Adapters []string         `json:"adapters"`
	// BlockSize is in tokens, KVBlocks and KVUsed are blocks.
	BlockSize int    `json:"block_size"`
	KVBlocks  int    `json:"kv_blocks"`
	KVUsed    uint32 `json:"kv_used"`
	Term      uint64 `json:"term"`
	// Running and Waiting are requests, QueuedTokens and ContextTokens tokens.
	Running       uint32 `json:"running"`
	Waiting       uint32 `json:"waiting"`
	QueuedTokens  uint64 `json:"queued_tokens"`
	ContextTokens uint64 `json:"context_tokens"`
	// ReportsDropped are samples and bookings that the log was away too long for.
	ReportsDropped uint64 `json:"reports_dropped"`
}

// State is the agent's state at this moment. It may be called once [Agent.Addr]
// has returned.
func (a *Agent) State() State {
	l, h := a.load.now(), a.hello()
	s := State{
		Worker: a.cfg.WorkerID, Address: h.Address, Role: h.Role.String(), Ready: h.Ready, Engine: a.cfg.Engine,
		Model: h.Model, Served: h.Served, Adapters: h.Adapters, BlockSize: int(h.BlockSize), KVBlocks: int(h.KVBlocks),
		KVUsed: l.KVUsed, Term: a.term, Running: l.Running, Waiting: l.Waiting, QueuedTokens: l.QueuedTokens,
		ContextTokens: l.ContextTokens, ReportsDropped: a.load.lost(),
	}
	if err := a.notReady(); err != nil {
		s.Ready, s.Why = false, err.Error()
	}
	return s
}

// adminMux serves /metrics, /healthz, /agent/health (the same as /healthz) and
// /agent/state.
func (a *Agent) adminMux() *http.ServeMux {
	mux := observability.Admin{Gatherer: a.deps.Registry, Ready: a.notReady}.Mux()
	mux.HandleFunc("GET /agent/health", func(w http.ResponseWriter, _ *http.Request) {
		if err := a.notReady(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /agent/state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(a.State()) // the reader may be gone
	})
	return mux
}
