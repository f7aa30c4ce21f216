package enginewire

import (
	"fmt"

	"github.com/kvlane/kvlane/kvindex"
)

// Kind says what happened to the blocks of an event.
type Kind uint8

// The kinds of events.
const (
	Stored Kind = iota + 1
	Removed
	Cleared
)

// String is the kind's name on the wire.
func (k Kind) String() string {
	switch k {
	case Stored:
		return "BlockStored"
	case Removed:
		return "BlockRemoved"
	case Cleared:
		return "AllBlocksCleared"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Event is one change of an engine's cache.
type Event struct {
	Kind Kind
	// Hashes are the blocks, each the parent of the next in a Stored; nil in a
	// Cleared, never empty otherwise.
	Hashes []Hash
	// Parent is the block before Hashes[0]; nil at the start of a prompt.
	Parent *Hash
	// Tokens are the token ids of all blocks, BlockSize for each hash. Both are
	// zero in a Stored that names blocks without their content (vLLM's offloading
	// to host memory, a sliding window's blocks with gaps): such blocks are known by
	// their hash or not at all, and a nil Parent means nothing.
	Tokens    []uint32
	BlockSize int
	// Eagle: the token ids came as pairs with the next token. Tokens has the first
	// of each pair.
	Eagle bool
	// LoRA is the adapter's name; "lora_id:N" where an engine gives only the
	// number; empty for the base model.
	LoRA string
	// Salt is the request's cache_salt. It is present on the first block of a
	// prompt and may be absent from the blocks after it, which inherit it from
	// their parent.
	Salt string
	// Tier is where the blocks lie. Nothing is said about other tiers, except by a
	// Cleared, which empties all of them.
	Tier kvindex.Tier
	// Extra are the keys of images, audio or prompt embeddings for each block; nil
	// if no block has any, else one entry, possibly nil, for each hash.
	Extra [][]string
	// Group is the KV-cache group, 0 where the engine does not say. The same hash
	// in two groups is two blocks.
	Group int
	// GroupKind is the group's kind of attention as vLLM spells it; empty where
	// the engine does not say. Removed events do not carry it.
	GroupKind string
	// Window is the length of a sliding window in tokens, 0 where there is none or
	// the engine does not say. Removed events do not carry it.
	Window int
}

// SkipReason says why a well-formed event was left out.
type SkipReason uint8

// The reasons to skip an event.
const (
	// SkipMedium: the medium is not one whose speed is known.
	SkipMedium SkipReason = iota + 1
	// SkipRemote: the blocks lie with another machine (locality REMOTE).
	SkipRemote
	// SkipGroup: the blocks belong to a group that says nothing about prefixes (cross
	// attention), or of a kind that is not known.
	SkipGroup
	// SkipPartial: the block is not full; no other prompt can share it.
	SkipPartial
)

// String is the reason as a metric label.
func (r SkipReason) String() string {
	switch r {
	case SkipMedium:
		return "medium"
	case SkipRemote:
		return "remote"
	case SkipGroup:
		return "group"
	case SkipPartial:
		return "partial"
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// Skip is one event that was understood and left out.
type Skip struct {
	Reason SkipReason
	// Detail is the word that decided: the medium, the locality, the group's kind,
	// the number of tokens.
	Detail string
	Kind   Kind
	Group  int
}

// Batch is one message of an engine.
type Batch struct {
	// Time is the engine's clock in seconds since 1970.
	Time float64
	// Rank is the data-parallel rank; nil where the engine does not say.
	Rank *int
	// Events are to be applied in order.
	Events []Event
	// Skipped are good events that do not count for a prefix index.
	Skipped []Skip
	// Bad has one error for each event that could not be read.
	Bad []error
}
