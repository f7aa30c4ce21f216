package picker

import (
	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// credit fills in cached from the request's matches. An engine computes the last
// token of a prompt again even if all of it is cached, so the credit ends with
// the last whole block before it. Blocks in slower tiers count where the engine
// brings them back by itself.
func (k *picking) credit() {
	for j := range k.req.Matches {
		m := &k.req.Matches[j]
		i := k.board.locate(m)
		if i < 0 {
			continue
		}
		c := k.board.candidates[i].class
		class, most := &k.board.classes[c], k.rates[c].most
		held := min(int(m.Depth[kvindex.Device])*class.blockSize, most)
		if class.slow && m.Depth[kvindex.NumTiers-1] > m.Depth[kvindex.Device] {
			held = k.bring(i, m, held)
		}
		if held > 0 {
			k.cached[i], k.computes[i] = int32(held), k.prefill(&k.rates[c], class, held)
			k.credited = append(k.credited, int32(i))
		}
	}
}

// bring is how many tokens candidate i does not compute if what it holds in slower
// tiers counts as far as bringing it back costs less than computing it, and notes
// what that takes. held are those in the device's memory.
//
// Each token further back in a prompt is dearer to compute and as dear to load as
// the one before it, so the least cost lies at the end of a tier's part.
func (k *picking) bring(i int, m *kvindex.Match, held int) int {
	c := &k.board.candidates[i]
	class, rate := &k.board.classes[c.class], &k.rates[c.class]
	p := &class.timing.Prefill
	best, load, paid, least := held, 0.0, 0.0, -1.0
	for tier, at := kvindex.Host, held; tier < kvindex.NumTiers; tier++ {
		to := min(int(m.Depth[tier])*class.blockSize, rate.most)
		if to <= at {
			continue
		}
		if class.loads[tier] == 0 {
			break
		}
		load += float64(to-at) * class.loads[tier]
		if best == at && rate.steps == 1 && class.loads[tier] <= (p.B+p.G*float64(at))*c.weight {
			at, best, paid, least = to, to, load, -1 // even its first token is dearer to compute
			continue
		}
		if least < 0 {
			least = paid + k.prefill(rate, class, best)*c.weight
		}
		at = to
		if total := load + k.prefill(rate, class, to)*c.weight; total < least {
			best, least, paid = to, total, load
		}
	}
	k.loads[i] = paid
	k.extra[i] += paid
	return best
}

// compute is the prefill's own time on candidate i.
func (k *picking) compute(i int) float64 {
	if k.cached[i] > 0 {
		return k.computes[i]
	}
	return k.rates[k.board.candidates[i].class].compute
}

// prefill is that on an engine of the class which need not compute the first cached
// tokens: with n tokens in all b*(n-c) + g*(n-c)*(c + (n-c)/2) is what it is with
// c = 0 less b*c + g*c*c/2.
func (k *picking) prefill(r *rate, class *class, cached int) float64 {
	p, c := &class.timing.Prefill, float64(cached)
	ms := r.single - c*(p.B+p.G/2*c)
	if r.steps > 1 {
		ms += p.A * float64(timing.Steps(k.req.ISL-cached, k.fleet.ChunkTokens)-1)
	}
	return ms
}

// steps is how many the prefill on candidate i takes.
func (k *picking) steps(i int) float64 {
	steps := k.rates[k.board.candidates[i].class].steps
	if steps == 1 || k.cached[i] == 0 {
		return steps
	}
	return float64(timing.Steps(k.req.ISL-int(k.cached[i]), k.fleet.ChunkTokens))
}

// loadSpeeds are the bytes a second that a worker's engine brings back from each
// tier.
func (p *Pool) loadSpeeds(h *kvindex.Hello) (speeds [kvindex.NumTiers]float64) {
	for _, t := range h.Tiers {
		if t.Tier <= kvindex.Device || t.Tier >= kvindex.NumTiers {
			continue
		}
		speed := float64(t.BytesPerSecond)
		if speed == 0 {
			speed = [kvindex.NumTiers]float64{
				kvindex.Host: p.config.HostBytesPerSecond, kvindex.Disk: p.config.DiskBytesPerSecond, kvindex.External: p.config.ExternalBytesPerSecond,
			}[t.Tier]
		}
		speeds[t.Tier] = speed * p.config.TimeScale
	}
	return speeds
}
