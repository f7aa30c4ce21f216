package policies

import (
	"math"
	"time"
)

// key is what a session is hashed by: its block at that depth, which stands for
// everything before it, or the last one of a shorter prompt.
func key(r *Request, depth int) uint64 {
	if n := min(depth, len(r.Blocks)); n > 0 {
		return uint64(r.Blocks[n-1])
	}
	return mix(uint64(r.Index)) // shorter than a block: nothing to stay near to
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// rank orders the workers for a key: rendezvous hashing.
func rank(key uint64, w int) uint64 { return mix(key ^ mix(uint64(w)+0x9e3779b97f4a7c15)) }

// highest is the worker that a key hashes to among those for which ok is true;
// -1 if there is none.
func highest(key uint64, n int, ok func(w int) bool) int {
	best, bestRank := -1, uint64(0)
	for w := range n {
		if r := rank(key, w); ok(w) && (best < 0 || r > bestRank) {
			best, bestRank = w, r
		}
	}
	return best
}

// Affinity sends everything with the same leading Depth blocks to the same
// worker.
type Affinity struct {
	stateless
	Depth int
}

// Pick implements [Policy].
func (p *Affinity) Pick(r *Request, f Fleet) int { return highest(key(r, p.Depth), f.Workers(), f.Up) }

// BoundedHash is Affinity with bounded loads (Mirrokni, Thorup, Zadimoghaddam): a
// worker that has Bound times the mean of requests under way, rounded up, passes a
// request on to the next one in its order.
type BoundedHash struct {
	Depth int
	Bound float64

	under []int // requests sent and not done
	all   int
}

// Pick implements [Policy].
func (p *BoundedHash) Pick(r *Request, f Fleet) int {
	for len(p.under) < f.Workers() {
		p.under = append(p.under, 0)
	}
	up := 0
	for w := range f.Workers() {
		if f.Up(w) {
			up++
		}
	}
	most := int(math.Ceil(p.Bound * float64(p.all+1) / float64(up)))
	w := highest(key(r, p.Depth), f.Workers(), func(w int) bool { return f.Up(w) && p.under[w] < most })
	p.under[w]++
	p.all++
	return w
}

// First implements [Policy].
func (p *BoundedHash) First(*Request, int, time.Duration) {}

// Done implements [Policy].
func (p *BoundedHash) Done(_ *Request, w int, _ time.Duration) {
	p.under[w]--
	p.all--
}

// uncached is how many tokens of a request a worker has to prefill: all but the
// blocks it holds, and always the last token.
func uncached(r *Request, w, blockSize int) int { return r.ISL - cachedTokens(r, w, blockSize) }

func cachedTokens(r *Request, w, blockSize int) int {
	return min(r.Overlap[w], (r.ISL-1)/blockSize) * blockSize
}
