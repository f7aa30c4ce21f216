package main

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// sums are what all queries of a set match: workers, and their depths in blocks.
type sums struct{ matched, blocks int }

// wantSums are the sums of a query set for 32 or 256 workers. Every exact index
// gives them.
func wantSums(workers uint64, set string) sums {
	large := workers == 256
	pick := func(at32, at256 sums) sums {
		if large {
			return at256
		}
		return at32
	}
	switch set {
	case "q16":
		return pick(sums{70_144, 1_122_304}, sums{249_569, 3_993_104})
	case "q128":
		return pick(sums{69_768, 2_580_499}, sums{245_518, 8_204_802})
	case "q1024":
		return pick(sums{17_963, 705_844}, sums{59_140, 2_023_078})
	case "q8192":
		return pick(sums{4_487, 175_197}, sums{15_601, 533_141})
	case "deep1024":
		return sums{32, 32_768}
	case "deep8192":
		return sums{32, 237_568}
	default:
		return sums{}
	}
}

// filled is an index with all stores and documents applied.
func filled(p *plan, hash keys) (*kvindex.Index, error) {
	x := kvindex.NewIndex()
	f := newFeed(p.workers, 1)
	p.stores(hash, false, f.store)
	p.documents(hash, f.store)
	return x, f.applyAll(x)
}

func sumsOf(x *kvindex.Index, set querySet, hash keys) sums {
	var s sums
	var dst []kvindex.Match
	for _, prompt := range set.prompts {
		dst = x.Overlap(hash(prompt), dst[:0])
		s.matched += len(dst)
		for i := range dst {
			s.blocks += int(dst[i].Depth[kvindex.Device])
		}
	}
	return s
}

// lookups compares the queries on both sides. With fromIDs the keys are made on
// the clock, from the prompt's tokens. finish is called for each of the peer's
// indexers while it is still filled.
func (b *bench) lookups(p *plan, fromIDs bool, finish func(indexer string) error) error {
	mode, hash := "given", given
	if fromIDs {
		mode, hash = "tokens", fromTokens
	}
	x, err := filled(p, hash)
	if err != nil {
		return err
	}
	sets := p.queries()
	for _, set := range sets {
		if got, want := sumsOf(x, set, hash), wantSums(p.workers, set.name); got != want {
			return fmt.Errorf("%s, %d workers: sums %+v, want %+v", set.name, p.workers, got, want)
		}
	}
	calls := map[string]func(int){}
	for _, set := range sets {
		calls[set.name] = lookup(x, set, fromIDs)
	}
	ours, theirs := results{}, results{}
	for _, indexer := range b.indexers() {
		if err := b.fillPeer(p, indexer, mode); err != nil {
			return err
		}
		for range b.repeats {
			for _, set := range sets {
				call := calls[set.name]
				ours.add(set.name, indexer, times(len(set.prompts), b.cpu, call))
				a, err := b.peer.one("lookup %s %d", set.name, b.cpu.Milliseconds())
				if err != nil {
					return err
				}
				theirs.add(set.name, indexer, a.timing)
			}
		}
		if indexer == "crtc" && !fromIDs {
			if err := b.lookupRates(p, x, sets); err != nil {
				return err
			}
		}
		if err := finish(indexer); err != nil {
			return err
		}
	}
	for _, set := range sets {
		b.lookupRows(p, set.name, fromIDs, ours[set.name], theirs[set.name])
	}
	return nil
}

// lookupRates compares readers that run at once, while the peer's crtc is filled.
func (b *bench) lookupRates(p *plan, x *kvindex.Index, sets []querySet) error {
	const threads = 2
	for _, set := range sets {
		if set.name != "q16" && set.name != "q128" {
			continue
		}
		var ours, theirs []float64
		for range b.repeats {
			ours = append(ours, lookupRate(x, set, threads, b.cpu))
			a, err := b.peer.one("rate %s %d %d", set.name, threads, b.cpu.Milliseconds())
			if err != nil {
				return err
			}
			theirs = append(theirs, a.Rate)
		}
		name := fmt.Sprintf("lookup %s, %d workers, %d readers at once", set.name, p.workers, threads)
		b.file.Compare(name, "rate", "lookups/CPU-s", "higher", median(ours), peerName+" crtc", median(theirs), 0)
	}
	return nil
}

// lookupRate is lookups per CPU second, summed over threads that run at once.
func lookupRate(x *kvindex.Index, set querySet, threads int, cpu time.Duration) (sum float64) {
	rates := make([]float64, threads)
	var done sync.WaitGroup
	start := make(chan struct{})
	for t := range threads {
		call := lookup(x, set, false)
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			<-start
			n, first, used := 0, t*len(set.prompts)/threads, 0.0
			for from := threadCPU(); used < cpu.Seconds(); used = threadCPU() - from {
				for range 32 {
					call((first + n) % len(set.prompts))
					n++
				}
			}
			rates[t] = float64(n) / used
		})
	}
	close(start)
	done.Wait()
	for _, r := range rates {
		sum += r
	}
	return sum
}

// lookup is a call of query i of the set.
func lookup(x *kvindex.Index, set querySet, fromIDs bool) func(i int) {
	dst := make([]kvindex.Match, 0, 1024)
	if !fromIDs {
		var chains [][]kvindex.BlockHash
		for _, prompt := range set.prompts {
			chains = append(chains, given(prompt))
		}
		return func(i int) { dst = x.Overlap(chains[i], dst[:0]) }
	}
	var prompts [][]uint32
	for _, prompt := range set.prompts {
		prompts = append(prompts, tokensOf(prompt))
	}
	chain, start := make([]kvindex.BlockHash, 0, document), root()
	return func(i int) {
		chain, dst = x.OverlapTokens(start, prompts[i], blockTokens, chain, dst[:0])
	}
}

// fillPeer has the peer fill an indexer and checks that it gives the same answers.
func (b *bench) fillPeer(p *plan, indexer, mode string) error {
	if _, err := b.peer.ask("fill %s %s", indexer, mode); err != nil {
		return err
	}
	rows, err := b.peer.ask("sums")
	if err != nil {
		return err
	}
	for _, r := range rows {
		if got, want := (sums{r.Matched, r.Blocks}), wantSums(p.workers, r.Query); got != want {
			return fmt.Errorf("the peer's %s, %s, %d workers: sums %+v, want %+v", indexer, r.Query, p.workers, got, want)
		}
	}
	return nil
}

func (b *bench) lookupRows(p *plan, set string, fromIDs bool, ours, theirs map[string][]timing) {
	goal := 0.5
	if set == "miss" {
		goal = 1
	}
	name := fmt.Sprintf("lookup %s, %d workers", set, p.workers)
	empty := times(1, b.cpu/10, func(int) {}).P50
	if fromIDs {
		name += ", keys from token ids"
	}
	for _, c := range []struct {
		metric string
		of     func(timing) float64
		goal   float64
	}{
		{"p50", func(t timing) float64 { return t.P50 }, goal},
		{"p99", func(t timing) float64 { return t.P99 }, goal},
		{"mean", func(t timing) float64 { return t.Mean }, 0},
	} {
		indexer, our, their := strongest(ours, theirs, c.of)
		b.file.Compare(name, c.metric, "ns", "lower", our, peerName+" "+indexer, their, c.goal)
		b.file.Because(whySlow(set, fromIDs, empty))
	}
}

// whySlow is why a lookup may take longer than it should; empty is what the clock
// shows for a call of nothing, ns.
func whySlow(set string, fromIDs bool, empty float64) string {
	switch {
	case fromIDs:
		return "most of it is hashing blocks that are held: ours chains them, Dynamo does that only when it books"
	case set == "miss":
		return fmt.Sprintf("nearly all of it is the clock, which shows %.0f ns for a call of nothing in our program", empty)
	default:
		return fmt.Sprintf("%.0f ns of ours are the clock; the rest is waiting for lines of which each leads to the next: "+
			"head, run, chunk, table, holders", empty)
	}
}

// results are the repeated timings of each query set by each indexer.
type results map[string]map[string][]timing

func (r results) add(set, indexer string, t timing) {
	if r[set] == nil {
		r[set] = map[string][]timing{}
	}
	r[set][indexer] = append(r[set][indexer], t)
}

// strongest is the indexer that compares best with ours, by medians of a figure
// of the same minutes: the machine is not equally fast all the time.
func strongest(ours, theirs map[string][]timing, of func(timing) float64) (indexer string, our, their float64) {
	middle := func(all []timing) float64 {
		var v []float64
		for _, t := range all {
			v = append(v, of(t))
		}
		return median(v)
	}
	for _, i := range slices.Sorted(maps.Keys(theirs)) {
		o, t := middle(ours[i]), middle(theirs[i])
		if indexer == "" || o*their > our*t {
			indexer, our, their = i, o, t
		}
	}
	return indexer, our, their
}
