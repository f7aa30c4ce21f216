package main

import (
	"context"
	"fmt"
	"time"

	known "github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// whyDecide is what a decision's time is spent on, by a profile.
const whyDecide = "hashing the prompt's 128 blocks takes 2 us whatever the fleet; then the plan's list of candidates, the lookup and the booking"

// decisionTokens is the prompt of the whole decision.
const decisionTokens = 2048

// decide compares the whole decision: hash the prompt, look it up, price the
// workers, book.
func (b *bench) decide(ctx context.Context) error {
	for _, c := range []struct {
		workers uint64
		replica string // empty: alone, as the peer is
	}{{32, ""}, {256, ""}, {256, "a"}, {1024, ""}} {
		workers := c.workers
		d, err := newDecision(workers, c.replica)
		if err != nil {
			return err
		}
		cpu := max(4*b.cpu, 200*time.Millisecond)
		var ours, theirs []timing
		var ourCPU, theirCPU []float64
		for range b.repeats {
			t, each, err := d.measure(cpu)
			if err != nil {
				return err
			}
			a, err := decidePeer(ctx, workers, cpu)
			if err != nil {
				return err
			}
			ours, theirs = append(ours, t), append(theirs, a.timing)
			ourCPU, theirCPU = append(ourCPU, each), append(theirCPU, a.CPUNs/1e3)
		}
		name := fmt.Sprintf("decide, prompt of 2,048 token ids, %d workers", workers)
		us := func(of func(timing) float64, all []timing) float64 {
			var v []float64
			for _, t := range all {
				v = append(v, of(t)/1e3)
			}
			return median(v)
		}
		p50, p99 := func(t timing) float64 { return t.P50 }, func(t timing) float64 { return t.P99 }
		if c.replica != "" {
			name += ", bookings told to other replicas"
		}
		b.file.Compare(name, "p50", "us", "lower", us(p50, ours), peerName, us(p50, theirs), 0.25)
		b.file.Because(whyDecide)
		b.file.Compare(name, "p99", "us", "lower", us(p99, ours), peerName, us(p99, theirs), 0.25)
		b.file.Because("the plan and the booking are memory that the collector takes back, and it stops a decision now and then")
		b.file.Compare(name+", with its end", "CPU time", "us", "lower", median(ourCPU), peerName, median(theirCPU), 0.25)
		b.file.Because(whyDecide)
	}
	return nil
}

// decidePeer asks a peer of its own: the threads of Dynamo's event subscribers
// stay for a while.
func decidePeer(ctx context.Context, workers uint64, cpu time.Duration) (answer, error) {
	p, err := startPeer(ctx, "timing")
	if err != nil {
		return answer{}, err
	}
	// With one indexer thread each of its decisions waits for another thread.
	const indexerThreads = 4 // its default
	a, err := p.one("decide %d %d %d %d", workers, decisionTokens, indexerThreads, cpu.Milliseconds())
	if err != nil {
		return a, err
	}
	return a, p.stop()
}

// decision is a picker's state with every prompt cached on a quarter of the workers.
type decision struct {
	index   *kvindex.Index
	pool    *picker.Pool
	prompts [][]uint32
	root    kvindex.BlockHash
	picked  int

	chain   []kvindex.BlockHash
	matches []kvindex.Match
	outbox  []kvindex.Record // to other replicas
}

func newDecision(workers uint64, replica string) (*decision, error) {
	config := picker.DefaultConfig()
	config.Replica = replica
	d := &decision{index: kvindex.NewIndex(), pool: picker.NewPool(config, known.Known()), root: root()}
	f := newFeed(workers, 1)
	for _, w := range f.workers {
		d.pool.Apply(&kvindex.Record{
			Owner: kvindex.Owner{Worker: w}, Epoch: 1, Term: 1, Kind: kvindex.KindHello,
			Hello: &kvindex.Hello{Address: string(w), Ready: true, Model: "bench", Served: []string{"bench"}, BlockSize: blockTokens, LeaseMs: 3_600_000},
		}, time.Now())
	}
	for i := range uint64(16) {
		tokens := make([]uint32, decisionTokens)
		for j := range tokens {
			tokens[j] = uint32(mix(i<<32|uint64(j)) % 128_000)
		}
		d.prompts = append(d.prompts, tokens)
		chain := kvindex.AppendChain(nil, d.root, tokens, blockTokens)
		for w := range workers {
			if (w+i)%4 == 0 {
				f.store(w, d.root, chain)
			}
		}
	}
	return d, f.applyAll(d.index)
}

// measure returns the call times of decisions, and the CPU time in us of one
// with the end of its booking. The collector runs as in a server.
func (d *decision) measure(cpu time.Duration) (t timing, each float64, err error) {
	defer collectAsUsual()()
	if err := d.run(1000); err != nil {
		return t, 0, err
	}
	s := lockedSamples()
	defer s.unlock()
	for begin := threadCPU(); threadCPU()-begin < cpu.Seconds() && !s.full() && err == nil; {
		id := d.name(0)
		s.batch(1, func() { err = d.decide(id) })
		d.end(id)
	}
	if err != nil {
		return t, 0, err
	}
	t = s.timing()
	each, err = d.cpuOfOne(int(cpu / max(1, time.Duration(t.P50))))
	return t, each, err
}

// cpuOfOne is the CPU time of the whole process for a decision with its end, us,
// without what times single calls.
func (d *decision) cpuOfOne(count int) (float64, error) {
	var ids []string
	for i := range count {
		ids = append(ids, d.name(i))
	}
	from := processCPU()
	for _, id := range ids {
		if err := d.decide(id); err != nil {
			return 0, err
		}
		d.end(id)
	}
	return (processCPU() - from) / float64(count) * 1e6, nil
}

// run makes decisions without a clock.
func (d *decision) run(count int) error {
	for range count {
		id := d.name(0)
		if err := d.decide(id); err != nil {
			return err
		}
		d.end(id)
	}
	return nil
}

// name is the id of the decision after the next n.
func (d *decision) name(n int) string { return fmt.Sprintf("b%d", d.picked+n) }

func (d *decision) decide(id string) error {
	tokens := d.prompts[d.picked%len(d.prompts)]
	d.picked++
	d.chain, d.matches = d.index.OverlapTokens(d.root, tokens, blockTokens, d.chain, d.matches[:0])
	plan := d.pool.Pick(&picker.Request{ID: id, Model: "bench", ISL: len(tokens), Matches: d.matches}, time.Now())
	if !plan.OK() || plan.Cached == 0 {
		return fmt.Errorf("request %s: %s, %d tokens cached", id, plan.Reason, plan.Cached)
	}
	return nil
}

func (d *decision) end(id string) {
	d.pool.Close(id, time.Now())
	d.outbox = d.pool.Outbox(d.outbox[:0])
}
