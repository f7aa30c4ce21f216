package policies

import "math/rand/v2"

// RoundRobin takes the workers in turn.
type RoundRobin struct {
	stateless
	turn int
}

// Pick implements [Policy].
func (p *RoundRobin) Pick(_ *Request, f Fleet) int {
	for {
		w := p.turn % f.Workers()
		p.turn++
		if f.Up(w) {
			return w
		}
	}
}

// Random takes any worker.
type Random struct {
	stateless
	Rand *rand.Rand
}

// Pick implements [Policy].
func (p *Random) Pick(_ *Request, f Fleet) int { return anyUp(p.Rand, f) }

// anyUp is a random worker that takes requests.
func anyUp(rng *rand.Rand, f Fleet) int {
	for {
		if w := rng.IntN(f.Workers()); f.Up(w) {
			return w
		}
	}
}

// LeastRequests takes the worker with the fewest requests.
type LeastRequests struct {
	stateless
	Rand *rand.Rand
}

// Pick implements [Policy].
func (p *LeastRequests) Pick(_ *Request, f Fleet) int {
	return least(p.Rand, f, func(w int) float64 { return float64(f.Look(w).Requests()) })
}

// PowerOfTwo draws two workers and takes the one with fewer requests.
type PowerOfTwo struct {
	stateless
	Rand *rand.Rand
}

// Pick implements [Policy].
func (p *PowerOfTwo) Pick(_ *Request, f Fleet) int {
	a, b := anyUp(p.Rand, f), anyUp(p.Rand, f)
	requests := f.Look(a).Requests()
	if f.Look(b).Requests() < requests {
		return b
	}
	return a
}

// least is the worker with the smallest cost; among equal ones each has the
// same chance.
func least(rng *rand.Rand, f Fleet, cost func(w int) float64) int {
	best, bestCost, ties := -1, 0.0, 0
	for w := range f.Workers() {
		if !f.Up(w) {
			continue
		}
		switch c := cost(w); {
		case best < 0 || c < bestCost:
			best, bestCost, ties = w, c, 1
		case c == bestCost:
			ties++
			if rng.IntN(ties) == 0 {
				best = w
			}
		}
	}
	return best
}
