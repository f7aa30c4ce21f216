package epp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/listing"
)

// IndexView is what a picker knows of its workers' caches, and from where.
type IndexView struct {
	// Workers are those that the log has introduced, sorted.
	Workers []WorkerView `json:"workers"`
	Owners  []OwnerView  `json:"owners"`
	Index   IndexTotals  `json:"index"`
	Prefix  PrefixTotals `json:"prefixMap"`
	Log     LogView      `json:"log"`
}

// WorkerView is a worker and where it can be asked.
type WorkerView struct {
	Worker  kvindex.WorkerID `json:"worker"`
	Address string           `json:"address"`
	// Admin is the agent's page, empty if it has none.
	Admin string `json:"admin,omitempty"`
}

// OwnerView is one owner of blocks.
type OwnerView struct {
	Worker   kvindex.WorkerID `json:"worker"`
	Rank     uint16           `json:"rank"`
	Tier     string           `json:"tier"`
	Blocks   int              `json:"blocks"`
	Epoch    uint64           `json:"epoch"`
	Term     uint64           `json:"term"`
	Seq      uint64           `json:"seq"`
	Doubtful bool             `json:"doubtful,omitempty"`
}

// IndexTotals are the index's figures; see [kvindex.IndexStats].
type IndexTotals struct {
	Blocks         int    `json:"blocks"`
	Memberships    int    `json:"memberships"`
	Bytes          int    `json:"bytes"`
	Repeats        uint64 `json:"repeats"`
	Gaps           uint64 `json:"gaps"`
	Fenced         uint64 `json:"fenced"`
	UnknownRemoved uint64 `json:"unknownRemoved"`
}

// PrefixTotals are the prefix map's figures.
type PrefixTotals struct {
	Chunks int `json:"chunks"`
	Bytes  int `json:"bytes"`
}

// LogView is the state of the log as this picker sees it.
type LogView struct {
	// Kind is embedded or redis.
	Kind string `json:"kind"`
	// Connected says whether the log answers, Since for how long that is so, and
	// Error why it does not.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"`
	Error     string    `json:"error,omitempty"`
	// LagMs is the age of the newest record when it was read.
	LagMs float64 `json:"lagMs"`
	// Dropped are records that this picker could not write and gave up.
	Dropped uint64 `json:"dropped"`
	// Records were read; Gaps showed that others were lost, Fenced were of writers
	// that another one has replaced, Faulty were refused for another reason.
	Records uint64 `json:"records"`
	Gaps    uint64 `json:"gaps"`
	Fenced  uint64 `json:"fenced"`
	Faulty  uint64 `json:"faulty"`
}

// indexPage shows the index:
//
//	GET  /index/stats
//	GET  /index/dump[?worker=W]  the blocks of all owners, or of one worker's (package listing)
//	POST /index/overlap          {"chain":["hex"]}: how many leading blocks each worker holds
type indexPage struct {
	index    *kvindex.Index
	prefixes *kvindex.PrefixMap
	workers  func() []WorkerView
	log      func() LogView
}

func (p *indexPage) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /index/stats", p.stats)
	mux.HandleFunc("GET /index/dump", p.dump)
	mux.HandleFunc("POST /index/overlap", p.overlap)
}

func (p *indexPage) stats(w http.ResponseWriter, _ *http.Request) {
	index, prefixes := p.index.Stats(), p.prefixes.Stats()
	v := IndexView{
		Workers: p.workers(), Owners: []OwnerView{}, Log: p.log(),
		Index: IndexTotals{
			Blocks: index.Blocks, Memberships: index.Memberships, Bytes: index.Bytes, Repeats: index.Repeats,
			Gaps: index.Gaps, Fenced: index.Fenced, UnknownRemoved: index.UnknownRemoved,
		},
		Prefix: PrefixTotals{Chunks: prefixes.Chunks, Bytes: prefixes.Bytes},
	}
	for _, o := range p.index.Owners() {
		v.Owners = append(v.Owners, OwnerView{
			Worker: o.Owner.Worker, Rank: o.Owner.Rank, Tier: o.Owner.Tier.String(), Blocks: o.Blocks,
			Epoch: o.Epoch, Term: o.Term, Seq: o.Seq, Doubtful: o.Doubtful,
		})
	}
	reply(w, v)
}

// dump streams; it keeps the hashes of one owner in memory at a time.
func (p *indexPage) dump(w http.ResponseWriter, r *http.Request) {
	only := kvindex.WorkerID(r.URL.Query().Get("worker"))
	w.Header().Set("content-type", "application/jsonl")
	out := listing.NewWriter(w)
	for _, o := range p.index.Owners() {
		if only != "" && o.Owner.Worker != only {
			continue
		}
		head := listing.Owner{Owner: o.Owner, Epoch: o.Epoch, Term: o.Term, Seq: o.Seq, Doubtful: o.Doubtful}
		if err := out.Owner(head, p.index.Blocks(o.Owner)); err != nil {
			return // the reader is gone
		}
	}
	_ = out.End() // the reader may be gone
}

// maxChain bounds the body of a question, bytes: 10,000 hashes take 200 KB.
const maxChain = 1 << 20

func (p *indexPage) overlap(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Chain listing.Hashes `json:"chain"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxChain)).Decode(&in); err != nil {
		http.Error(w, fmt.Sprintf("read the chain: %v", err), http.StatusBadRequest)
		return
	}
	views := []OverlapView{}
	for _, m := range p.index.Overlap(in.Chain, nil) {
		views = append(views, OverlapView{Worker: m.Worker, Rank: m.Rank, Depth: m.Depth})
	}
	reply(w, views)
}

// OverlapView is how many leading blocks of a chain a worker's rank holds, by
// tier: in that one or a faster one.
type OverlapView struct {
	Worker kvindex.WorkerID         `json:"worker"`
	Rank   uint16                   `json:"rank"`
	Depth  [kvindex.NumTiers]uint32 `json:"depth"`
}
