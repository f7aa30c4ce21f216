package policies

import (
	"math/rand/v2"
	"time"
)

// LMetric is the rule of arXiv 2603.15202: the tokens that the worker would have
// to prefill with the request, queued ones included, times its batch size with
// the request.
type LMetric struct {
	stateless
	Rand      *rand.Rand
	BlockSize int
}

// Pick implements [Policy].
func (p *LMetric) Pick(r *Request, f Fleet) int {
	return least(p.Rand, f, func(w int) float64 {
		view := f.Look(w)
		return float64(view.QueuedTokens+uncached(r, w, p.BlockSize)) * float64(view.Requests()+1)
	})
}

// Mooncake is the prefill routing of Mooncake (FAST'25) on workers that do both
// legs: the least predicted queue and prefill time. The queue is the predicted
// prefill time of what it sent and has no first token yet, less the time since
// the worker began with the oldest.
type Mooncake struct {
	Rand      *rand.Rand
	BlockSize int
	// Prefill is the time on an idle worker, ms.
	Prefill func(w, uncached, cached int) float64

	queues []queue
}

// queue is what a worker was given and when it will be through, as predicted.
type queue struct {
	of    map[string]float64
	sumMs float64
	// since is when the present head began.
	since time.Duration
}

func (p *Mooncake) grow(n int) {
	for len(p.queues) < n {
		p.queues = append(p.queues, queue{of: map[string]float64{}})
	}
}

// Pick implements [Policy].
func (p *Mooncake) Pick(r *Request, f Fleet) int {
	p.grow(f.Workers())
	own := func(w int) float64 { return p.Prefill(w, uncached(r, w, p.BlockSize), cachedTokens(r, w, p.BlockSize)) }
	w := least(p.Rand, f, func(w int) float64 {
		q := &p.queues[w]
		wait := 0.0
		if len(q.of) > 0 {
			wait = max(0, q.sumMs-milliseconds(r.Now-q.since))
		}
		return wait + own(w)
	})
	q := &p.queues[w]
	if len(q.of) == 0 {
		q.since, q.sumMs = r.Now, 0
	}
	q.of[r.ID] = own(w)
	q.sumMs += q.of[r.ID]
	return w
}

// First implements [Policy].
func (p *Mooncake) First(r *Request, w int, now time.Duration) {
	q := &p.queues[w]
	if ms, ok := q.of[r.ID]; ok {
		q.sumMs -= ms
		delete(q.of, r.ID)
		q.since = now
	}
}

// Done implements [Policy].
func (p *Mooncake) Done(r *Request, w int, now time.Duration) { p.First(r, w, now) }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Oracle knows every engine's state at the moment of the pick: the rest of the
// running step, the tokens not yet prefilled, the context that decodes, and all
// constants. It takes the least of what the request waits for and Alpha times
// what its prefill costs the others: the picker's own rule without any error of
// what it is fed. What comes later it does not know either.
type Oracle struct {
	stateless
	Rand      *rand.Rand
	BlockSize int
	Chunk     int // tokens a step
	Alpha     float64
	Prefill   func(w, uncached, cached int) float64
	Decode    func(w, sequences, context int) float64
}

// Pick implements [Policy].
func (p *Oracle) Pick(r *Request, f Fleet) int {
	return least(p.Rand, f, func(w int) float64 {
		view := f.Look(w)
		own := p.Prefill(w, uncached(r, w, p.BlockSize), cachedTokens(r, w, p.BlockSize))
		tokens := view.QueuedTokens + uncached(r, w, p.BlockSize)
		steps := float64((tokens + p.Chunk - 1) / p.Chunk)
		queue := milliseconds(view.StepLeft)
		if view.QueuedTokens > 0 {
			queue += p.Prefill(w, view.QueuedTokens, 0)
		}
		return queue + own + steps*p.Decode(w, view.Running, view.ContextTokens) + p.Alpha*own*float64(view.Requests())
	})
}
