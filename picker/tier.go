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
			k.cached[i] = int32(held)
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
	class, most := k.class(i), k.rates[c.class].most
	price := func(held int) float64 {
		compute, _ := k.prefill(class, held)
		return compute * c.weight
	}
	best, least, load := held, price(held), 0.0
	for tier, at := kvindex.Host, held; tier < kvindex.NumTiers; tier++ {
		to := min(int(m.Depth[tier])*class.blockSize, most)
		if to <= at {
			continue
		}
		if class.loads[tier] == 0 {
			break
		}
		load += float64(to-at) * class.loads[tier]
		at = to
		if total := load + price(to); total < least {
			best, least = to, total
			k.loads[i] = load
		}
	}
	k.extra[i] += k.loads[i]
	return best
}

// compute is the prefill's own time on candidate i, and the number of its steps.
func (k *picking) compute(i int) (ms, steps float64) {
	return k.prefill(k.class(i), int(k.cached[i]))
}

// prefill is that of an engine of the class which need not compute the first
// cached tokens.
func (k *picking) prefill(class *class, cached int) (ms, steps float64) {
	p := &class.timing.Prefill
	uncached := float64(max(1, k.req.ISL-cached))
	ms, steps = p.B*uncached+p.G*uncached*(float64(cached)+uncached/2), 1
	if k.req.ISL-cached > k.fleet.ChunkTokens && k.fleet.ChunkTokens > 0 {
		steps = float64(timing.Steps(k.req.ISL-cached, k.fleet.ChunkTokens))
	}
	return ms + p.A*steps, steps
}

func (k *picking) class(i int) *class { return &k.board.classes[k.board.candidates[i].class] }

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
