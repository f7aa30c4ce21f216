package verify

import (
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/listing"
)

// State is the verdict on one owner in one picker's index.
type State string

// The verdicts.
const (
	// Same: no block was wrong for as long as the wait.
	Same State = "same"
	// Differs: blocks are missing or too many, see the counts.
	Differs State = "differs"
	// Stale: the index holds blocks of a worker that nobody answers for.
	Stale State = "stale"
	// Unverifiable: the engine cannot say all that it holds, see Detail.
	Unverifiable State = "unverifiable"
	// Unreachable: the picker does not answer.
	Unreachable State = "unreachable"
)

// Row is one owner in one picker's index.
type Row struct {
	Picker string           `json:"picker"`
	Worker kvindex.WorkerID `json:"worker,omitempty"`
	Rank   uint16           `json:"rank"`
	Tier   string           `json:"tier,omitempty"`
	State  State            `json:"state"`
	// Index and Engine are blocks at the last look.
	Index  int `json:"index"`
	Engine int `json:"engine"`
	// Missing and Extra are blocks that were wrong for as long as the wait, and some
	// of them.
	Missing       int            `json:"missing"`
	Extra         int            `json:"extra"`
	MissingBlocks listing.Hashes `json:"missingBlocks,omitempty"`
	ExtraBlocks   listing.Hashes `json:"extraBlocks,omitempty"`
	// Moving are blocks that came or went during the last look.
	Moving int `json:"moving"`
	// Source is how the engine's content is known, Next the number of the first
	// batch of events that is not in it.
	Source listing.Kind `json:"source,omitempty"`
	Next   uint64       `json:"next"`
	// Unnamed are blocks that the engine holds and that nobody can name.
	Unnamed int    `json:"unnamed,omitempty"`
	Looks   int    `json:"looks"`
	Detail  string `json:"detail,omitempty"`
	// Probe is set where the engine was asked for known prompts instead.
	Probe *Probe `json:"probe,omitempty"`
}

// Probe is how an index' answers compare with an engine's own cached tokens.
type Probe struct {
	Asked int `json:"asked"`
	// Agreed: as many cached tokens as the index said. More: the index said more
	// than the engine had; Less: less.
	Agreed int `json:"agreed"`
	More   int `json:"more"`
	Less   int `json:"less"`
	// Unsaid are answers without a count of cached tokens.
	Unsaid int    `json:"unsaid,omitempty"`
	Error  string `json:"error,omitempty"`
}

// wrong reports whether an answer contradicted the index.
func (p *Probe) wrong() bool { return p != nil && p.More+p.Less > 0 }

// right reports whether answers confirmed the index, and none contradicted it.
func (p *Probe) right() bool { return p != nil && p.Error == "" && p.Agreed > 0 && !p.wrong() }

// Report is the result of one [Run].
type Report struct {
	Rows []Row `json:"rows"`
	// Differences counts the rows that are wrong: different, stale, or contradicted
	// by a probe.
	Differences int `json:"differences"`
	// Unverified counts the rows that could not be compared, Unproved those among them
	// that no probe has confirmed either.
	Unverified int `json:"unverified"`
	Unproved   int `json:"unproved"`
	// Unreachable counts the rows of pickers that do not answer.
	Unreachable int     `json:"unreachable"`
	TookMs      float64 `json:"tookMs"`
}

func (r *Report) count() {
	for i := range r.Rows {
		switch row := &r.Rows[i]; {
		case row.State == Unreachable:
			r.Unreachable++
		case row.State == Unverifiable && !row.Probe.wrong():
			r.Unverified++
			if !row.Probe.right() {
				r.Unproved++
			}
		case row.State != Same:
			r.Differences++
		}
	}
}

// samples bounds the blocks that a row names.
const samples = 10

func sample(list []kvindex.BlockHash) listing.Hashes {
	return listing.Hashes(list[:min(len(list), samples)])
}
