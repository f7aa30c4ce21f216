package kvindex

// The first blocks that OverlapTokens hashes before it asks, and by how much
// each further part is longer than all before it together. A question costs as
// much as hashing some twenty blocks, so few questions are asked in vain, and at
// most about three times as many blocks are hashed as somebody holds.
const (
	firstBlocks = 16
	growBlocks  = 3
)

// OverlapTokens is [Index.Overlap] of the chain that [AppendChain] makes of the
// tokens. It makes no more of the chain than there is somebody who holds what it
// has so far: the end of a long prompt that nobody knows is not even hashed. The
// chain is built in the memory of buf, and what was made of it is returned.
func (x *Index) OverlapTokens(root BlockHash, tokens []uint32, blockSize int, buf []BlockHash, dst []Match) ([]BlockHash, []Match) {
	chain, base := buf[:0], len(dst)
	for part := firstBlocks; ; part = growBlocks * len(chain) {
		n := min(part*blockSize, len(tokens))
		if len(chain) > 0 {
			root = chain[len(chain)-1]
		}
		chain = AppendChain(chain, root, tokens[:n], blockSize)
		tokens = tokens[n:]
		dst = x.prefixes(chain, dst[:base])
		if len(tokens) < blockSize || !reaches(dst[base:], uint32(len(chain))) {
			return chain, x.groups.trim(chain, dst, base)
		}
	}
}

// reaches reports whether somebody holds the first n blocks, in whatever tier.
func reaches(matches []Match, n uint32) bool {
	for i := range matches {
		if matches[i].Depth[NumTiers-1] == n {
			return true
		}
	}
	return false
}
