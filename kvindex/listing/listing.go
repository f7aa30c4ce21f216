package listing

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/kvlane/kvlane/kvindex"
)

// Kind says how a source knows what it lists.
type Kind string

// The kinds of sources.
const (
	// Dump: the engine listed its content itself.
	Dump Kind = "dump"
	// Replay: all of the engine's events since its start were folded.
	Replay Kind = "replay"
	// Gone: nothing listens at the engine's address, so its memory is gone.
	Gone Kind = "gone"
	// Unknown: see [Source].Problem.
	Unknown Kind = "unknown"
)

// Source is one engine rank that was asked.
type Source struct {
	Worker kvindex.WorkerID `json:"worker"`
	Rank   uint16           `json:"rank"`
	Kind   Kind             `json:"kind"`
	// Life tells one process of an engine from the next where the engine says so.
	Life string `json:"life,omitempty"`
	// Next is the number of the first batch of events that is not in the listing.
	Next uint64 `json:"next"`
	// Unnamed are blocks that the engine holds and whose tokens are not known from
	// their prompt's start; they are not listed.
	Unnamed int `json:"unnamed,omitempty"`
	// Problem is why nothing is known; empty unless Kind is Unknown.
	Problem string `json:"problem,omitempty"`
}

// Owner is the head of one owner's blocks.
type Owner struct {
	kvindex.Owner

	// Epoch, Term and Seq are the owner's place in the log, zero where the listing
	// is not of an index. Doubtful: records were lost and a snapshot is awaited.
	Epoch, Term, Seq uint64
	Doubtful         bool
	// Blocks is how many follow.
	Blocks int
}

// ownerLine is an Owner on the wire.
type ownerLine struct {
	Worker   kvindex.WorkerID `json:"worker"`
	Rank     uint16           `json:"rank"`
	Tier     string           `json:"tier"`
	Epoch    uint64           `json:"epoch,omitempty"`
	Term     uint64           `json:"term,omitempty"`
	Seq      uint64           `json:"seq,omitempty"`
	Doubtful bool             `json:"doubtful,omitempty"`
	Blocks   int              `json:"blocks"`
}

type endLine struct {
	Owners int `json:"owners"`
}

// line is one line; exactly one field is set.
type line struct {
	Source *Source    `json:"source,omitempty"`
	Owner  *ownerLine `json:"owner,omitempty"`
	Hashes Hashes     `json:"hashes,omitempty"`
	End    *endLine   `json:"end,omitempty"`
}

// hash is a block hash as 16 hexadecimal digits: JSON numbers lose the low bits
// of 64 in many readers.
type hash kvindex.BlockHash

// MarshalText writes 16 digits.
func (h hash) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%016x", uint64(h)), nil }

// UnmarshalText reads up to 16 digits.
func (h *hash) UnmarshalText(text []byte) error {
	v, err := strconv.ParseUint(string(text), 16, 64)
	if err != nil {
		return fmt.Errorf("block hash %.20q: %w", text, err)
	}
	*h = hash(v)
	return nil
}

// Hashes are block hashes as a JSON array of their texts.
type Hashes []kvindex.BlockHash

// MarshalJSON writes the array.
func (h Hashes) MarshalJSON() ([]byte, error) {
	list := make([]hash, len(h))
	for i := range h {
		list[i] = hash(h[i])
	}
	return json.Marshal(list)
}

// UnmarshalJSON reads an array of texts of up to 16 hexadecimal digits.
func (h *Hashes) UnmarshalJSON(text []byte) error {
	var list []hash
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	*h = make(Hashes, len(list))
	for i := range list {
		(*h)[i] = kvindex.BlockHash(list[i])
	}
	return nil
}

// perLine is how many hashes a line has at most.
const perLine = 512

// Writer writes a listing.
type Writer struct {
	out    *json.Encoder
	owners int
}

// NewWriter writes to w.
func NewWriter(w io.Writer) *Writer { return &Writer{out: json.NewEncoder(w)} }

// Source names where the owners that follow come from.
func (w *Writer) Source(s Source) error { return w.out.Encode(line{Source: &s}) }

// Owner writes an owner with its blocks. Its Blocks field is set from them.
func (w *Writer) Owner(o Owner, blocks []kvindex.BlockHash) error {
	w.owners++
	err := w.out.Encode(line{Owner: &ownerLine{
		Worker: o.Worker, Rank: o.Rank, Tier: o.Tier.String(),
		Epoch: o.Epoch, Term: o.Term, Seq: o.Seq, Doubtful: o.Doubtful, Blocks: len(blocks),
	}})
	for len(blocks) > 0 && err == nil {
		part := blocks[:min(len(blocks), perLine)]
		blocks = blocks[len(part):]
		err = w.out.Encode(line{Hashes: part})
	}
	return err
}

// End completes the listing.
func (w *Writer) End() error { return w.out.Encode(line{End: &endLine{w.owners}}) }

// Listing is a whole listing in memory.
type Listing struct {
	Sources []Source
	Owners  []Held
}

// Held is an owner with its blocks, in the order in which they were listed.
type Held struct {
	Owner

	Hashes []kvindex.BlockHash
}

// Of is what the listing says an owner holds; nil if it does not name it.
func (l *Listing) Of(o kvindex.Owner) []kvindex.BlockHash {
	for i := range l.Owners {
		if l.Owners[i].Owner.Owner == o {
			return l.Owners[i].Hashes
		}
	}
	return nil
}

// ErrCut refuses a listing that ends before its end line, or whose counts do not
// agree: its writer failed on the way.
var ErrCut = errors.New("the listing is not whole")

// Read reads a listing to its end.
func Read(r io.Reader) (*Listing, error) {
	l := &Listing{}
	in := json.NewDecoder(r)
	for n := 1; ; n++ {
		var next line
		err := in.Decode(&next)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("line %d: %w", n, ErrCut)
		}
		if err == nil {
			err = l.add(&next)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if next.End != nil {
			return l, nil
		}
	}
}

func (l *Listing) add(next *line) error {
	switch {
	case next.Source != nil:
		l.Sources = append(l.Sources, *next.Source)
	case next.Owner != nil:
		if err := l.whole(); err != nil {
			return err
		}
		o := next.Owner
		tier, err := parseTier(o.Tier)
		if err != nil {
			return err
		}
		l.Owners = append(l.Owners, Held{Owner: Owner{
			Owner: kvindex.Owner{Worker: o.Worker, Rank: o.Rank, Tier: tier},
			Epoch: o.Epoch, Term: o.Term, Seq: o.Seq, Doubtful: o.Doubtful, Blocks: o.Blocks,
		}})
	case len(next.Hashes) > 0:
		if len(l.Owners) == 0 {
			return errors.New("hashes before the first owner")
		}
		last := &l.Owners[len(l.Owners)-1]
		last.Hashes = append(last.Hashes, next.Hashes...)
	case next.End != nil:
		if next.End.Owners != len(l.Owners) {
			return fmt.Errorf("%d owners of %d: %w", len(l.Owners), next.End.Owners, ErrCut)
		}
		return l.whole()
	default:
		return errors.New("neither source, owner, hashes nor end")
	}
	return nil
}

// whole checks the last owner's count.
func (l *Listing) whole() error {
	if len(l.Owners) == 0 {
		return nil
	}
	if o := &l.Owners[len(l.Owners)-1]; len(o.Hashes) != o.Blocks {
		return fmt.Errorf("%d blocks of %d: %w", len(o.Hashes), o.Blocks, ErrCut)
	}
	return nil
}

func parseTier(name string) (kvindex.Tier, error) {
	for t := range kvindex.Tier(kvindex.NumTiers) {
		if t.String() == name {
			return t, nil
		}
	}
	return 0, fmt.Errorf("tier %.20q: not known", name)
}
