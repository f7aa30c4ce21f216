package bpe

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
)

// The special tokens, as they are written in text. They take the last ids of
// the vocabulary, in this order.
const (
	EndOfTextText = "<|endoftext|>"
	ImStartText   = "<|im_start|>"
	ImEndText     = "<|im_end|>"
)

const (
	// cacheSlots bounds the cache of encoded pre-tokens. English prose of a
	// million words has fewer distinct ones.
	cacheSlots = 1 << 15
	// maxCached is the longest pre-token that is cached, in bytes; longer ones
	// are seldom words and seldom come twice.
	maxCached = 48
	// heapFrom is the pre-token length in bytes from which merging with a heap
	// (n log n) is used instead of repeated scans (n squared, but small).
	heapFrom = 64
)

// Tokenizer encodes and decodes. It is safe for concurrent use.
type Tokenizer struct {
	splitter

	// tokens is the text of each id.
	tokens []string
	// pairs is the id that two adjacent ids merge to; a lower id merges first.
	pairs map[uint64]uint32
	words []uint32
	// special is the id of endoftext; imstart and imend follow.
	special uint32
	// cache maps pre-tokens to their ids, one pre-token a slot, the last one
	// encoded wins: bounded, and without a lock on the way.
	cache []atomic.Pointer[cached]
	seed  maphash.Seed
}

// cached is immutable once it is in a slot.
type cached struct {
	text string
	ids  []uint32
}

// Load builds the tokenizer from the embedded vocabulary. It fails only if the
// embedded file is damaged.
func Load() (*Tokenizer, error) {
	merges, err := parseMerges(mergesText)
	if err != nil {
		return nil, fmt.Errorf("read the embedded vocabulary: %w", err)
	}
	t, err := newTokenizer(merges)
	if err != nil {
		return nil, fmt.Errorf("read the embedded vocabulary: %w", err)
	}
	return t, nil
}

func newTokenizer(merges [][2]string) (*Tokenizer, error) {
	t := &Tokenizer{
		splitter: splitter{ascii: asciiClasses()},
		pairs:    make(map[uint64]uint32, len(merges)),
		cache:    make([]atomic.Pointer[cached], cacheSlots),
		seed:     maphash.MakeSeed(),
	}
	ids := make(map[string]uint32, 256+len(merges))
	add := func(text string) {
		ids[text] = uint32(len(t.tokens))
		t.tokens = append(t.tokens, text)
	}
	for b := range 256 {
		add(string([]byte{byte(b)}))
	}
	for i, m := range merges {
		left, okLeft := ids[m[0]]
		right, okRight := ids[m[1]]
		if !okLeft || !okRight {
			return nil, fmt.Errorf("merge %d joins %q and %q, which are not both earlier tokens", i+1, m[0], m[1])
		}
		if _, dup := ids[m[0]+m[1]]; dup {
			return nil, fmt.Errorf("merge %d makes %q again", i+1, m[0]+m[1])
		}
		t.pairs[pair(left, right)] = uint32(len(t.tokens))
		add(m[0] + m[1])
	}
	t.special = uint32(len(t.tokens))
	t.tokens = append(t.tokens, EndOfTextText, ImStartText, ImEndText)
	t.words = t.findWords()
	return t, nil
}

func pair(left, right uint32) uint64 { return uint64(left)<<32 | uint64(right) }

// findWords lists the tokens made of a space and ASCII letters that their own
// text encodes to. A pre-token never goes past the next space, so any sequence
// of them encodes to itself.
func (t *Tokenizer) findWords() []uint32 {
	var words []uint32
	for id, text := range t.tokens[:t.special] {
		if len(text) < 2 || text[0] != ' ' || strings.Trim(text[1:], asciiLetters) != "" {
			continue
		}
		if slices.Equal(t.merge(nil, text), []uint32{uint32(id)}) {
			words = append(words, uint32(id))
		}
	}
	return words
}

const asciiLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// VocabSize is the number of tokens, special ones included: ids are below it.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// EndOfText is the id of <|endoftext|>.
func (t *Tokenizer) EndOfText() uint32 { return t.special }

// ImStart is the id of <|im_start|>, which opens a message.
func (t *Tokenizer) ImStart() uint32 { return t.special + 1 }

// ImEnd is the id of <|im_end|>, which closes a message.
func (t *Tokenizer) ImEnd() uint32 { return t.special + 2 }

// Words are the ids of tokens that are a space and ASCII letters, in ascending
// order, such that the text of any sequence of them encodes to that sequence.
// The caller must not change the slice.
func (t *Tokenizer) Words() []uint32 { return t.words }

// Encode is the ids of text. Special tokens written in it are ordinary text.
func (t *Tokenizer) Encode(text string) []uint32 {
	return t.AppendEncode(make([]uint32, 0, len(text)/4+1), text)
}

// AppendEncode appends the ids of text to dst, as Encode gives them.
func (t *Tokenizer) AppendEncode(dst []uint32, text string) []uint32 {
	for text != "" {
		n := t.next(text)
		dst = t.pretoken(dst, text[:n])
		text = text[n:]
	}
	return dst
}

// EncodeSpecial is the ids of text in which special tokens stand for
// themselves: a rendered chat template.
func (t *Tokenizer) EncodeSpecial(text string) []uint32 {
	dst := make([]uint32, 0, len(text)/4+1)
	plain := 0 // text[plain:i] waits to be encoded
	for i := 0; i < len(text); {
		n := strings.Index(text[i:], "<|")
		if n < 0 {
			break
		}
		i += n
		id, length := t.specialAt(text[i:])
		if length == 0 {
			i += len("<|")
			continue
		}
		dst = t.AppendEncode(dst, text[plain:i])
		dst = append(dst, id)
		i += length
		plain = i
	}
	return t.AppendEncode(dst, text[plain:])
}

// specialAt is the special token that text starts with and its length, 0 for
// none.
func (t *Tokenizer) specialAt(text string) (uint32, int) {
	for i, s := range t.tokens[t.special:] {
		if strings.HasPrefix(text, s) {
			return t.special + uint32(i), len(s)
		}
	}
	return 0, 0
}

// pretoken appends the ids of one pre-token, from the cache where it is there.
func (t *Tokenizer) pretoken(dst []uint32, text string) []uint32 {
	if len(text) == 1 {
		return append(dst, uint32(text[0]))
	}
	if len(text) > maxCached {
		return t.merge(dst, text)
	}
	slot := &t.cache[maphash.String(t.seed, text)%cacheSlots]
	if c := slot.Load(); c != nil && c.text == text {
		return append(dst, c.ids...)
	}
	start := len(dst)
	dst = t.merge(dst, text)
	slot.Store(&cached{text: strings.Clone(text), ids: slices.Clone(dst[start:])})
	return dst
}
