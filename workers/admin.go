package workers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/kvlane/kvlane/internal/observability"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/listing"
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
func (a *follower) State() State {
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

// Prefix is the beginning of a prompt that the engine once computed, for a check
// by asking for it again.
type Prefix struct {
	// Model is the base model's name as blocks are named by it, LoRA the adapter's.
	Model string `json:"model"`
	LoRA  string `json:"lora,omitempty"`
	Salt  string `json:"salt,omitempty"`
	// BlockSize is in tokens; Tokens are whole blocks.
	BlockSize int      `json:"block_size"`
	Tokens    []uint32 `json:"tokens"`
}

const (
	// maxPrefixes and maxPrefixBlocks bound an answer of /agent/prefixes.
	maxPrefixes     = 10_000
	maxPrefixBlocks = 256
)

// adminMux serves / (a list of the others), /metrics, /healthz, /agent/health (the same as /healthz),
// /agent/state, /agent/content (what the engine says it holds, see package
// listing) and /agent/prefixes?n=100 (prompts to check it by).
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
		writeJSON(w, a.State())
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, adminPages) })
	mux.HandleFunc("GET /agent/content", a.serveContent)
	mux.HandleFunc("GET /agent/prefixes", a.servePrefixes)
	return mux
}

const adminPages = `kvlane agent

GET /metrics               figures for Prometheus
GET /healthz               200 when the worker takes requests, else 503 and why
GET /agent/health          the same
GET /agent/state           the worker as it is now
GET /agent/content         the blocks that the engine says it holds
GET /agent/prefixes?n=100  prompts that the engine once computed
`

// serveContent lists what the engine says it holds, each rank asked anew.
func (a *follower) serveContent(w http.ResponseWriter, r *http.Request) {
	a.truth.Lock()
	defer a.truth.Unlock()
	w.Header().Set("Content-Type", "application/jsonl")
	out := listing.NewWriter(w)
	for _, f := range a.feeds {
		t := a.truthOf(r.Context(), f, false)
		err := out.Source(t.source)
		for _, o := range slices.SortedFunc(maps.Keys(t.owners), compareOwners) {
			if err == nil {
				err = out.Owner(listing.Owner{Owner: o}, t.owners[o])
			}
		}
		if err != nil { // the reader is gone
			return
		}
	}
	_ = out.End() // the reader may be gone
}

func compareOwners(a, b kvindex.Owner) int {
	return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Tier, b.Tier))
}

// servePrefixes picks n known prefixes, spread evenly over all that are known.
func (a *follower) servePrefixes(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.URL.Query().Get("n"))
	if err != nil || n < 1 || n > maxPrefixes {
		http.Error(w, fmt.Sprintf("n: want 1 to %d", maxPrefixes), http.StatusBadRequest)
		return
	}
	a.truth.Lock()
	defer a.truth.Unlock()
	var known []prefix
	for _, f := range a.feeds {
		known = append(known, a.truthOf(r.Context(), f, true).prefixes...)
	}
	model := a.model()
	out := []Prefix{}
	for _, p := range spread(known, n) {
		out = append(out, p.export(model))
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(out); err != nil {
		a.deps.Logger.Debug("known prefixes", "err", err) // the reader is gone
	}
}

// spread is n of the prefixes that are not too long. Their hashes are as good as
// random, so their order is.
func spread(known []prefix, n int) []prefix {
	known = slices.DeleteFunc(known, func(p prefix) bool { return p.depth > maxPrefixBlocks })
	slices.SortFunc(known, func(x, y prefix) int { return cmp.Compare(x.hash, y.hash) })
	known = slices.CompactFunc(known, func(x, y prefix) bool { return x.hash == y.hash })
	return known[:min(n, len(known))]
}

func (p *prefix) export(model string) Prefix {
	tokens := make([]uint32, p.depth*len(p.tokens))
	for b := p; b != nil; b = b.before {
		copy(tokens[(b.depth-1)*len(b.tokens):], b.tokens)
	}
	return Prefix{Model: model, LoRA: p.lora, Salt: p.salt, BlockSize: len(p.tokens), Tokens: tokens}
}
