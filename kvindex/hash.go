package kvindex

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// BlockHash names one KV-cache block together with everything before it: two
// blocks have the same hash only if the whole prompt up to their end, the base
// model, the LoRA adapter, the cache salt and the block size agree.
type BlockHash uint64

// Namespace is what separates caches that must never match although their
// tokens are equal.
type Namespace struct {
	// Model is the base model's name as the engine reports it, not an alias.
	Model string
	// LoRA is the adapter's name; empty for the base model.
	LoRA string
	// Salt is the request's cache_salt; empty for none.
	Salt string
	// BlockSize is in tokens, at least 1.
	BlockSize int
}

// Root is the parent of a prompt's first block.
func (n Namespace) Root() BlockHash {
	b := make([]byte, 0, 64)
	for _, s := range []string{n.Model, n.LoRA, n.Salt} {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(n.BlockSize))
	return BlockHash(xxh3.Hash(b))
}

// Next is the hash of the block that follows parent and holds these tokens.
// media are the keys of images or audio that lie in the block, in order; nil
// for text.
//
// It is XXH3-64(parent, XXH3-64(tokens, media)), the integers little-endian. Two
// steps, because only the short second one waits for the block before: a
// processor works on several blocks at once, which makes a chain about three
// times faster than hashing parent and tokens together (docs/decisions/007).
func (h BlockHash) Next(tokens []uint32, media []string) BlockHash {
	if len(media) > 0 {
		return h.then(withMedia(tokens, media))
	}
	return h.then(hashTokens(tokens))
}

// AppendChain appends the hashes of all complete blocks of tokens to dst. The
// tokens after the last complete block are not hashed: engines do not share
// them either. blockSize is at least 1.
func AppendChain(dst []BlockHash, root BlockHash, tokens []uint32, blockSize int) []BlockHash {
	dst = slices.Grow(dst, len(tokens)/blockSize)
	for len(tokens) >= blockSize {
		root = root.then(hashTokens(tokens[:blockSize]))
		dst = append(dst, root)
		tokens = tokens[blockSize:]
	}
	return dst
}

// then is XXH3-64 of the 16 bytes of h and content; a test compares it with the
// library. Here it can be inlined.
func (h BlockHash) then(content uint64) BlockHash {
	const ( // words of XXH3's secret, as its 9 to 16 byte case combines them
		low  = 0x1f67b3b7a4a44072 ^ 0x78e5c0cc4ee679cb
		high = 0x2172ffcc7dd05a82 ^ 0x8e2443f7744608b8
	)
	a, b := uint64(h)^low, content^high
	upper, lower := bits.Mul64(a, b)
	x := 16 + bits.ReverseBytes64(a) + b + (upper ^ lower)
	x ^= x >> 37
	x *= 0x165667919e3779f9
	return BlockHash(x ^ x>>32)
}

// hashTokens hashes the tokens of one block.
func hashTokens(tokens []uint32) uint64 {
	if len(tokens) == 0 || binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return withMedia(tokens, nil)
	}
	// The memory of little-endian tokens is their encoding.
	return xxh3.Hash(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens))) //nolint:gosec // read within its length, not kept
}

func withMedia(tokens []uint32, media []string) uint64 {
	b := make([]byte, 0, 4*len(tokens)+16*len(media))
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	for _, m := range media {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(m)))
		b = append(b, m...)
	}
	return xxh3.Hash(b)
}
