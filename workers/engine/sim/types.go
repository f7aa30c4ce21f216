package sim

import (
	"time"

	"github.com/kvlane/kvlane/internal/timing"
)

// Config is one simulated engine. All times are virtual.
type Config struct {
	Timing timing.Model
	// Transfer and KVBytesPerToken price pulling KV from another engine.
	Transfer        timing.Transfer
	KVBytesPerToken int
	// BlockSize is in tokens; Blocks is the size of the cache.
	BlockSize int
	Blocks    int
	// HostBlocks is the size of a tier of host memory that takes what the device
	// evicts, in blocks; 0 for none. HostBytesPerSecond is how fast blocks come back.
	HostBlocks         int
	HostBytesPerSecond float64
	// MaxBatchedTokens bounds the tokens of one step (vLLM's default for serving: 8,192).
	MaxBatchedTokens int
	// MaxSeqs bounds the sequences of one step (256).
	MaxSeqs int
	// MaxModelLen bounds prompt and output together, tokens.
	MaxModelLen int
	// PrefixCaching shares blocks between requests with the same prefix.
	PrefixCaching bool
	// StepMs replaces Timing as the price of a step, in ms; nil for Timing. A
	// simulation that is compared with another simulator has to share its timing,
	// forms that Timing cannot express included.
	StepMs func(Step) float64
	// EarlyEvents returns the cache changes of a step when it starts. vLLM
	// publishes them with the step's results, at its end, and so does this core;
	// Dynamo's simulated engine publishes them at the start of the step.
	EarlyEvents bool
	// EmptyFirst takes released blocks that hold nothing to hit, as a sequence's last
	// and partly filled one, before evicting any. vLLM queues them behind the cached
	// ones like every other block, and so does this core; Dynamo's simulated engine
	// counts them free at once.
	EmptyFirst bool
	// Next gives the token after a sequence; state is a hash of all its tokens,
	// so that the same text goes on the same way on every engine. stop ends the
	// sequence with finish reason "stop" where the request allows it.
	Next func(state uint64) (token uint32, stop bool)
}

// Request is one sequence to generate. A request with n choices is submitted n
// times.
type Request struct {
	ID string
	// Tag is the caller's own, handed back with every token.
	Tag    int
	Prompt []uint32
	// Content names the full blocks of a prompt of PromptTokens tokens, in place of
	// Prompt: prompts with equal names at their start share those blocks. Block
	// hashes of a trace are such names; its tokens are not known. Names stand for
	// everything before them, LoRA and salt included. Events of these sequences have
	// no Tokens. Names beyond the prompt's are those of the blocks that what is
	// generated fills; without them it is shared with no other.
	Content      []BlockID
	PromptTokens int
	// MaxTokens is at least 1; MinTokens suppresses an early stop.
	MaxTokens int
	MinTokens int
	IgnoreEOS bool
	// Namespace separates caches: LoRA name and salt.
	LoRA, Salt string
	// Seed makes choices of one prompt differ; 0 for the plain continuation.
	Seed uint64
	// HoldKV keeps the prompt's blocks after the end until Release (the prefill
	// leg of a P/D hand-off).
	HoldKV bool
	// RemoteTokens is how much of the prompt comes from another engine by
	// transfer instead of prefill (the decode leg); 0 for none.
	RemoteTokens int
}

// Step is what one step computes.
type Step struct {
	// Tokens are prompt tokens, and tokens that a preemption lost.
	Tokens int
	// Decodes are sequences that had a token before and get another one, Context
	// their tokens so far.
	Decodes, Context int
}

// Reason a sequence ended.
type Reason string

// The finish reasons, as vLLM spells them. No Token carries Aborted: it is for
// the caller of Abort, who knows.
const (
	Running Reason = ""
	Stop    Reason = "stop"
	Length  Reason = "length"
	Aborted Reason = "abort"
)

// Token is one generated token.
type Token struct {
	ID     string // the request's, and its Tag
	Tag    int
	Token  uint32
	Index  int // 0 for the first token
	Finish Reason
	// CachedTokens is set on the first token: prompt tokens that needed no
	// prefill here, local cache and transfer together, as vLLM counts them.
	CachedTokens int
	// Preempted counts how often the sequence was thrown back.
	Preempted int
}

// EventKind is the kind of a KV event.
type EventKind uint8

// The kinds of KV events.
const (
	Stored EventKind = iota + 1
	Removed
	Cleared
)

// BlockID is the engine's own hash of a block, opaque to everyone else.
type BlockID uint64

// Event is one change of the cache's content.
type Event struct {
	Kind   EventKind
	Blocks []BlockID
	// Parent is valid if HasParent: the block before Blocks[0].
	Parent    BlockID
	HasParent bool
	Tokens    []uint32 // of Blocks, concatenated
	LoRA      string
	Salt      string
}

// Output is what happened up to the time of a call.
type Output struct {
	Tokens []Token
	Events []Event
	// HostEvents are changes of the host tier. They have no Tokens, LoRA and Salt; a
	// block's parent need not be there.
	HostEvents []Event
}

// Stats are gauges and totals since the start.
type Stats struct {
	Running, Waiting  int
	UsedBlocks        int // of Config.Blocks, evictable ones not counted
	CachedBlocks      int // full blocks that can be hit
	QueryTokens       uint64
	HitTokens         uint64
	PromptTokens      uint64
	GeneratedTokens   uint64
	Preemptions       uint64
	Steps             uint64
	BusyTime          time.Duration
	QueuedTokens      int // uncached prompt tokens not yet prefilled
	ContextTokens     int // resident tokens of decoding sequences
	HeldRequests      int // waiting for their KV to be pulled
	TransferredTokens uint64
	HostBlocks        int    // in the host tier
	LoadedTokens      uint64 // out of it
}
