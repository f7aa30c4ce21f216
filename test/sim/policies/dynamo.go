package policies

import (
	"math/rand/v2"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// Dynamo is the default worker selection of NVIDIA Dynamo's KV router 1.6.1, at
// temperature 0. The costs are in blocks:
//
//	prefill = max(0, (tokens under prefill + prompt)/block - decay*overlap - 0.75*overlap in host memory)
//	decode  = distinct active prompt blocks, those of the request included
//	cost    = Scale*prefill + decode
//	decay   = 1 / (1 + Decay*(excess tokens under prefill/block)/blocks of the request)
//
// It tracks load by what it sent: tokens are under prefill from the pick to the
// first token, blocks are active from the pick to the end; output is not counted.
type Dynamo struct {
	Rand      *rand.Rand
	BlockSize int
	// Scale is prefill_load_scale (1), Decay overlap_score_credit_decay (0).
	Scale, Decay float64

	active  []activeLoad
	prefill map[string]int // tokens, of requests without a first token
}

// hostCredit is Dynamo's host_cache_hit_weight.
const hostCredit = 0.75

// activeLoad is what the router believes a worker to have.
type activeLoad struct {
	prefillTokens int
	blocks        map[kvindex.BlockHash]int // users of each
}

// Pick implements [Policy].
func (p *Dynamo) Pick(r *Request, f Fleet) int {
	p.grow(f.Workers())
	least0 := -1
	for w := range f.Workers() {
		if t := p.active[w].prefillTokens; f.Up(w) && (least0 < 0 || t < least0) {
			least0 = t
		}
	}
	w := least(p.Rand, f, func(w int) float64 { return p.cost(r, w, least0) })
	p.book(r, w)
	return w
}

func (p *Dynamo) grow(n int) {
	if p.prefill == nil {
		p.prefill = map[string]int{}
	}
	for len(p.active) < n {
		p.active = append(p.active, activeLoad{blocks: map[kvindex.BlockHash]int{}})
	}
}

func (p *Dynamo) cost(r *Request, w, leastPrefill int) float64 {
	a, size := &p.active[w], float64(p.BlockSize)
	decay := 1.0
	if p.Decay > 0 {
		excess := float64(a.prefillTokens-leastPrefill) / size
		blocks := max(1, (r.ISL+p.BlockSize-1)/p.BlockSize)
		decay = 1 / (1 + p.Decay*excess/float64(blocks))
	}
	credit := decay * float64(r.Overlap[w])
	if r.Hosted != nil {
		credit += hostCredit * float64(r.Hosted[w])
	}
	prefill := max(0, float64(a.prefillTokens+r.ISL)/size-credit)
	shared := 0 // leading blocks that other requests keep active
	for shared < len(r.Blocks) && a.blocks[r.Blocks[shared]] > 0 {
		shared++
	}
	return p.Scale*prefill + float64(len(a.blocks)+len(r.Blocks)-shared)
}

func (p *Dynamo) book(r *Request, w int) {
	a := &p.active[w]
	tokens := max(0, r.ISL-r.Overlap[w]*p.BlockSize)
	p.prefill[r.ID] = tokens
	a.prefillTokens += tokens
	for _, b := range r.Blocks {
		a.blocks[b]++
	}
}

// First implements [Policy].
func (p *Dynamo) First(r *Request, w int, _ time.Duration) {
	p.active[w].prefillTokens -= p.prefill[r.ID]
	delete(p.prefill, r.ID)
}

// Done implements [Policy].
func (p *Dynamo) Done(r *Request, w int, now time.Duration) {
	p.First(r, w, now)
	a := &p.active[w]
	for _, b := range r.Blocks {
		a.blocks[b]--
		if a.blocks[b] == 0 {
			delete(a.blocks, b)
		}
	}
}
