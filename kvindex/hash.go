package kvindex

import (
	"encoding/binary"

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
func (h BlockHash) Next(tokens []uint32, media []string) BlockHash {
	b := make([]byte, 0, 8+4*len(tokens)+16*len(media))
	b = binary.LittleEndian.AppendUint64(b, uint64(h))
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	for _, m := range media {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(m)))
		b = append(b, m...)
	}
	return BlockHash(xxh3.Hash(b))
}

// AppendChain appends the hashes of all complete blocks of tokens to dst. The
// tokens after the last complete block are not hashed: engines do not share
// them either.
func AppendChain(dst []BlockHash, root BlockHash, tokens []uint32, blockSize int) []BlockHash {
	for len(tokens) >= blockSize {
		root = root.Next(tokens[:blockSize], nil)
		dst = append(dst, root)
		tokens = tokens[blockSize:]
	}
	return dst
}
