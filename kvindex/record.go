package kvindex

import "fmt"

// WorkerID names one agent for its whole life; the default is the address it
// serves on. It is never split or parsed.
type WorkerID string

// Tier is where a block's memory is.
type Tier uint8

// The tiers, from the fastest to the slowest.
const (
	Device Tier = iota
	Host
	Disk
	External
	NumTiers = 4
)

// String is the tier's lower-case name.
func (t Tier) String() string {
	if t < NumTiers {
		return [NumTiers]string{"device", "host", "disk", "external"}[t]
	}
	return fmt.Sprintf("tier(%d)", uint8(t))
}

// Owner is one pool of blocks: a worker's data-parallel rank and a tier. Each
// owner has an epoch and a sequence of records of its own.
type Owner struct {
	Worker WorkerID
	Rank   uint16
	Tier   Tier
}

// String writes the owner for people; it is not parsed anywhere.
func (o Owner) String() string { return fmt.Sprintf("%s/%d/%s", o.Worker, o.Rank, o.Tier) }

// Kind says which body a record carries.
type Kind uint8

// The kinds of records. Stored, Removed, Cleared and Learned carry a
// contiguous Seq per (owner, epoch); the others have Seq 0.
const (
	KindStored Kind = iota + 1
	KindRemoved
	KindCleared
	KindLearned
	KindHello
	KindLoad
	KindBooking
	KindBye
)

// String is the kind's lower-case name.
func (k Kind) String() string {
	names := [...]string{"", "stored", "removed", "cleared", "learned", "hello", "load", "booking", "bye"}
	if k >= 1 && int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Later versions may have more kinds. Their numbers tell an older reader what it
// has to know: those from kindSequenced to kindUnsequenced-1 carry a Seq, others do
// not. It counts the former and passes over both.
const (
	kindSequenced   Kind = 64
	kindUnsequenced Kind = 128
)

// Sequenced reports whether records of this kind carry a contiguous Seq.
func (k Kind) Sequenced() bool {
	return k >= KindStored && k <= KindLearned || k >= kindSequenced && k < kindUnsequenced
}

// Record is one entry of the log.
type Record struct {
	Owner Owner
	// Epoch is one life of the owner's memory: of the engine process for
	// Device. It only grows. A record of a newer epoch empties the owner first.
	Epoch uint64
	// Term is one life of the writer (the agent). It only grows; a record with an
	// older term than the newest seen for the owner is refused ([ErrFenced]).
	Term uint64
	// Seq counts the owner's sequenced records within an epoch from 1. A Cleared
	// may jump ahead: nothing before it matters any more. In a snapshot that a
	// log makes, the Cleared has the owner's last Seq and what follows has Seq 0,
	// so that the next live record is the next number; see [Cursor].
	Seq uint64
	// EngineSeq is the engine's own batch number, for people and for replay.
	EngineSeq uint64
	Kind      Kind

	// Lapsed is set in a Bye that nobody said: the worker's lease ran out. It is gone
	// with all it held, but nobody took it out of the pool, and it may come back.
	Lapsed bool

	// Exactly the field of Kind is set; Cleared has no body, Bye only Lapsed.
	Stored  *Stored
	Removed *Removed
	Learned *Learned
	Hello   *Hello
	Load    *Load
	Booking *Booking

	// Rest is what a later version wrote behind the fields that this one knows, or
	// the whole body of a kind that it does not know. It is passed on as it is.
	Rest []byte
}

// Stored says that the owner now holds a run of blocks.
type Stored struct {
	// Group is the KV-cache group, a number into [Hello.Groups]; 0 where there is one.
	// A block of a group with longer ones goes by the hash of the last of the
	// worker's blocks in it.
	Group uint16
	// Parent is the block before the first; the namespace's root at a prompt's start.
	Parent BlockHash
	// Hashes are consecutive blocks, each the parent of the next; never empty.
	Hashes []BlockHash
}

// Removed says that the owner no longer holds these blocks.
type Removed struct {
	Group  uint16
	Hashes []BlockHash
}

// Learned says what an engine made of a prompt text: its tokens and blocks. It
// always describes the text from its start.
type Learned struct {
	Seed Seed
	// Chunks are the hashes of the text's complete chunks, from the start.
	Chunks []ChunkHash
	// Bytes is the length of the whole canonical text, at least
	// ChunkSize*len(Chunks) and less than one chunk more.
	Bytes uint32
	// Tokens is the length of the whole prompt in tokens.
	Tokens uint32
	// BlockSize is in tokens.
	BlockSize uint32
	// Blocks are the hashes of the prompt's complete blocks: Tokens/BlockSize of them.
	Blocks []BlockHash
}

// Role is what a worker may be used for.
type Role uint8

// The roles. Aggregated workers do both legs; relays are never picked.
const (
	RoleAggregated Role = iota
	RolePrefill
	RoleDecode
	RoleRelay
)

// String is the role's name in configs and headers.
func (r Role) String() string {
	names := [...]string{"aggregated", "prefill", "decode", "relay"}
	if int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

// ParseRole reads what [Role.String] writes.
func ParseRole(s string) (Role, error) {
	for r := RoleAggregated; r <= RoleRelay; r++ {
		if r.String() == s {
			return r, nil
		}
	}
	return 0, fmt.Errorf("role %q: want aggregated, prefill, decode or relay", s)
}

// Hello introduces a worker, and repeated as a heartbeat keeps it in the pool.
type Hello struct {
	// Address is the ip:port that the gateway sends requests to.
	Address string
	Role    Role
	// Ready is false while the engine starts, drains or is down.
	Ready bool
	// Model is the base model: Namespace.Model of the worker's blocks.
	Model string
	// Served are the names a request may use: the model, its aliases.
	Served []string
	// Adapters are the LoRA adapters loaded now.
	Adapters []string
	// BlockSize is in tokens; KVBlocks is the device capacity in blocks.
	BlockSize uint32
	KVBlocks  uint32
	// Deployment names the timing constants to start from (internal/timing);
	// empty if unknown.
	Deployment string
	// LeaseMs is how long the worker counts as present without another record, ms.
	LeaseMs uint32
	// Admin is where the agent's pages for operators are, empty if there are none:
	// ip:port, with a path behind it where one address has those of several workers. Pickers pass it on to people; they do not ask there themselves.
	Admin string
	// Ranks is the number of data-parallel ranks with a cache of their own; 0 says
	// the same as 1.
	Ranks uint32
	// Eagle: the engine drafts with hidden states (EAGLE, MTP), so it computes the
	// last block that it finds anew.
	Eagle bool
	// NoEvents: the engine does not say what it holds; what is in the log is a
	// model of it ([Approx]), or nothing if it is Bare.
	NoEvents bool
	// Groups are the engine's KV-cache groups by the number in [Stored.Group]; empty
	// for one group of full attention. Group 0 is one of full attention if there is
	// any.
	Groups []GroupSpec
	// Loading are the LoRA adapters that the engine is loading.
	Loading []string
	// Zone, Rack and Domain say where the worker is, each empty if unknown: what a
	// network is slower between, what a switch connects, and the machine or NVLink
	// domain within which GPUs reach each other's memory. Names of racks and domains
	// are unique in the pool.
	Zone, Rack, Domain string
	// Lockstep: the ranks of this worker step together (expert parallelism), so each
	// waits for the slowest, and what one was seen to take says nothing of itself.
	Lockstep bool
	// Tiers are the slower tiers out of which the engine brings blocks back by itself
	// when a prompt needs them; blocks in others are of no use to a request.
	Tiers []TierSpec
	// Bare: no agent stands before the engine. Nobody counts its requests, so its loads
	// are what its metrics page said ([Load.AgeMs]) and name no bookings.
	Bare bool
}

// TierSpec is a tier that an engine loads from.
type TierSpec struct {
	Tier Tier
	// BytesPerSecond is how fast; 0 if unknown.
	BytesPerSecond uint64
}

// GroupKind is what a prefix needs of a group's blocks to be of use.
type GroupKind uint8

// The kinds of groups.
const (
	// GroupFull needs every block (full attention, MLA).
	GroupFull GroupKind = iota
	// GroupWindow needs the blocks of the last Window tokens (sliding window).
	GroupWindow
	// GroupChunk needs the blocks from the last multiple of Window tokens on (chunked
	// local attention).
	GroupChunk
	// GroupState needs the one block at the prefix's end (Mamba, linear attention).
	GroupState
	// GroupUnused says nothing about prefixes (cross attention).
	GroupUnused
)

// String is the kind's name in flags.
func (k GroupKind) String() string {
	names := [...]string{"full", "window", "chunk", "state", "unused"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("group(%d)", uint8(k))
}

// GroupSpec describes one KV-cache group.
type GroupSpec struct {
	Kind GroupKind
	// Window is in tokens: the window's or the chunk's length.
	Window uint32
	// BlockSize is in tokens, a multiple of the worker's; 0 says the same as that.
	BlockSize uint32
}

// Load is what a worker has to do at one moment.
type Load struct {
	Running uint32
	Waiting uint32
	// QueuedTokens are uncached prompt tokens accepted and not yet prefilled.
	QueuedTokens uint64
	// ContextTokens is the sum of the context lengths of decoding sequences.
	ContextTokens uint64
	KVUsed        uint32 // blocks
	KVTotal       uint32 // blocks
	// Accepted are the bookings that reached the worker since its last report;
	// they are in the figures above, so a picker stops counting them itself.
	Accepted []string
	// FirstToken are requests that produced their first token since the last report.
	FirstToken []Sample
	// Done are requests that ended since the last report.
	Done []Sample
	// Failed are the bookings of those among Done that the engine failed, with
	// nothing for requests that came without a picker.
	Failed []string
	// AgeMs is how old the figures were when the report was made, ms; 0 for an agent's,
	// which are of that moment.
	AgeMs uint32
}

// Sample is one request as its agent saw it.
type Sample struct {
	// Booking is the picker's id of the request; empty for requests that came
	// without a picker.
	Booking string
	// PromptTokens, CachedTokens and OutputTokens are the engine's own counts;
	// CachedTokens is -1 where the engine does not say.
	PromptTokens int32
	CachedTokens int32
	OutputTokens int32
	// FirstTokenMs and TotalMs count from the request's arrival at the agent.
	FirstTokenMs float64
	TotalMs      float64
	// Aborted: the client went away or the engine failed.
	Aborted bool
}

// BookingState is where a booked request is.
type BookingState uint8

// The states of a booking: the request was sent to the record's owner; it ended,
// with all its legs; it is still there, or has moved there.
const (
	BookingOpen BookingState = iota
	BookingClosed
	BookingAgain
)

// Booking is a picker's announcement that it sent a request to a worker. A
// request that is prefilled on another worker has one for each of its two legs.
type Booking struct {
	ID       string
	Replica  string
	Cached   uint32 // tokens
	Uncached uint32 // tokens to prefill at the owner; 0 where only decoding happens
	State    BookingState
	// LeaseMs ends a booking whose picker died, ms.
	LeaseMs uint32
	// Seq grows with each announcement of the replica, so that later ones win
	// whatever order they arrive in. The two legs of one announcement have the same.
	Seq uint64
	// Prefill marks the leg that does not answer.
	Prefill bool
}
