package policies

// Split is conditional disaggregation on a fleet whose first Prefillers workers
// only prefill: Remote decides by the prompt and what of it the best decoding
// worker lacks. Workers are chosen by the oracle's cost of the leg.
type Split struct {
	Oracle
	Prefillers int
	// Remote decides by tokens: uncached of isl.
	Remote func(uncached, isl int) bool

	prefiller int
}

// role limits a fleet to one of its pools.
type role struct {
	Fleet
	from, to int
}

// Up implements [Fleet].
func (r role) Up(w int) bool { return w >= r.from && w < r.to && r.Fleet.Up(w) }

// Pick implements [Policy].
func (p *Split) Pick(r *Request, f Fleet) int {
	p.prefiller = -1
	decode := role{f, p.Prefillers, f.Workers()}
	local := p.Oracle.Pick(r, decode)
	if p.Prefillers == 0 || !p.Remote(uncached(r, local, p.BlockSize), r.ISL) {
		return local
	}
	p.prefiller = p.Oracle.Pick(r, role{f, 0, p.Prefillers})
	return least(p.Rand, decode, func(w int) float64 {
		view := f.Look(w)
		return p.Decode(w, view.Requests()+1, view.ContextTokens+r.ISL)
	})
}

// Prefiller is the worker that prefills for the last pick; -1 if it is the picked
// one itself.
func (p *Split) Prefiller() int { return p.prefiller }

// AlwaysLocal never splits.
func AlwaysLocal(int, int) bool { return false }

// Threshold splits what has at least so many uncached tokens.
func Threshold(tokens int) func(uncached, isl int) bool {
	return func(uncached, _ int) bool { return uncached >= tokens }
}

// ISLBounding is Dynamo's conditional rule of that name: local if less than 2,048
// tokens and less than 70 % of the prompt are uncached.
func ISLBounding(uncached, isl int) bool {
	return uncached >= 2048 || float64(uncached) >= 0.7*float64(isl)
}
