package policies

import (
	"math/rand/v2"
	"time"
)

// Weighted is llm-d's sum of scores, each within 0 to 1; the largest sum wins.
//
//	prefix    blocks held / blocks of the prompt
//	queue     1 for the shortest waiting queue, 0 for the longest
//	KV use    1 - share of the KV cache in use
//	no-hit    for prompts that nobody holds any of: 1 for the worker whose last such
//	          prompt is longest ago, falling to 0; otherwise 0.5 for all
type Weighted struct {
	stateless
	Rand                           *rand.Rand
	Prefix, Queue, KVUse, NoHitLRU float64

	lastCold []int // when a cold prompt went there, by order; 0 never
	cold     int
}

// Pick implements [Policy].
func (p *Weighted) Pick(r *Request, f Fleet) int {
	for len(p.lastCold) < f.Workers() {
		p.lastCold = append(p.lastCold, 0)
	}
	shortest, longest, hit := -1, 0, false
	for w := range f.Workers() {
		if !f.Up(w) {
			continue
		}
		q := f.Look(w).Waiting
		if shortest < 0 || q < shortest {
			shortest = q
		}
		longest = max(longest, q)
		hit = hit || r.Overlap[w] > 0
	}
	w := least(p.Rand, f, func(w int) float64 { return -p.score(r, w, f, shortest, longest, hit) })
	if !hit {
		p.cold++
		p.lastCold[w] = p.cold
	}
	return w
}

func (p *Weighted) score(r *Request, w int, f Fleet, shortest, longest int, hit bool) float64 {
	view := f.Look(w)
	prefix, queue, cold := 0.0, 1.0, 0.5
	if len(r.Blocks) > 0 {
		prefix = float64(r.Overlap[w]) / float64(len(r.Blocks))
	}
	if longest > shortest {
		queue = float64(longest-view.Waiting) / float64(longest-shortest)
	}
	if !hit && f.Workers() > 1 {
		newer := 0 // workers that got a cold prompt before this one did
		for other := range f.Workers() {
			if other != w && p.lastCold[other] > p.lastCold[w] {
				newer++
			}
		}
		cold = float64(newer) / float64(f.Workers()-1)
		if p.lastCold[w] == 0 {
			cold = 1
		}
	}
	use := float64(view.KVUsed) / float64(view.KVTotal)
	return p.Prefix*prefix + p.Queue*queue + p.KVUse*(1-use) + p.NoHitLRU*cold
}

// TokenAware is llm-d's "sticky until saturated": among the workers that hold at
// least Threshold of the prompt, or among all if there are none, the one with the
// least tokens to prefill, the request's own uncached ones included. If the best
// holder has Margin tokens more than the best of the others, all are candidates.
// It counts the tokens that it sent, until their first token.
type TokenAware struct {
	flight

	Rand      *rand.Rand
	BlockSize int
	Threshold float64
	Margin    int // tokens: the peak prefill rate times the longest wait for a hit
}

// flight counts the uncached tokens sent to each worker and not prefilled yet.
type flight struct {
	tokens []int
	of     map[string]int
}

func (p *flight) grow(n int) {
	if p.of == nil {
		p.of = map[string]int{}
	}
	for len(p.tokens) < n {
		p.tokens = append(p.tokens, 0)
	}
}

func (p *flight) book(r *Request, w, tokens int) {
	p.of[r.ID] = tokens
	p.tokens[w] += tokens
}

// First implements [Policy].
func (p *flight) First(r *Request, w int, _ time.Duration) {
	p.tokens[w] -= p.of[r.ID]
	delete(p.of, r.ID)
}

// Done implements [Policy].
func (p *flight) Done(r *Request, w int, now time.Duration) { p.First(r, w, now) }

// Pick implements [Policy].
func (p *TokenAware) Pick(r *Request, f Fleet) int {
	p.grow(f.Workers())
	warm := func(w int) bool {
		return len(r.Blocks) > 0 && float64(r.Overlap[w]) >= p.Threshold*float64(len(r.Blocks))
	}
	leastWarm, leastCold := -1, -1
	for w := range f.Workers() {
		if !f.Up(w) {
			continue
		}
		best := &leastCold
		if warm(w) {
			best = &leastWarm
		}
		if *best < 0 || p.tokens[w] < *best {
			*best = p.tokens[w]
		}
	}
	sticky := leastWarm >= 0 && (leastCold < 0 || leastWarm-leastCold <= p.Margin)
	w := least(p.Rand, f, func(w int) float64 {
		load := float64(p.tokens[w] + uncached(r, w, p.BlockSize))
		if sticky && !warm(w) {
			load += 1e15 // behind every worker that holds the prompt
		}
		return load
	})
	p.book(r, w, uncached(r, w, p.BlockSize))
	return w
}
