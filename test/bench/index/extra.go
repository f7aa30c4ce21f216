package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/kvlane/kvlane/internal/openai"
	known "github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// chain scores one prompt of 3,750 blocks against 96 workers, as in
// llm-d-router's issue 2390, where that took 674 ms.
func (b *bench) chain(context.Context) error {
	const length, workers = 3750, 96
	blocks := make([]uint64, length)
	for i := range blocks {
		blocks[i] = block(8, 0, uint64(i))
	}
	chain := given(blocks)
	for _, c := range []struct {
		name string
		held func(worker int) int
	}{
		{"all held by each", func(int) int { return length }},
		{"each worker ends elsewhere", func(w int) int { return (w + 1) * length / workers }},
	} {
		x := kvindex.NewIndex()
		f := newFeed(workers, 1)
		for w := range uint64(workers) {
			held := c.held(int(w))
			for from := 0; from < held; from += 128 {
				f.store(w, parentOf(chain, from), chain[from:min(held, from+128)])
			}
		}
		if err := f.applyAll(x); err != nil {
			return err
		}
		dst := make([]kvindex.Match, 0, workers)
		t := times(1, b.cpu, func(int) { dst = x.Overlap(chain, dst[:0]) })
		if len(dst) != workers {
			return fmt.Errorf("%d workers matched, want %d", len(dst), workers)
		}
		name := "score 3,750 blocks x 96 workers, " + c.name
		b.file.Bound(name, "p50", "us", "lower", t.P50/1e3, 50)
		b.file.Bound(name, "p99", "us", "lower", t.P99/1e3, 50)
	}
	return nil
}

// hash compares making keys from token ids. Dynamo's lookups need only the
// hashes of the single blocks, its bookings the chained ones too.
func (b *bench) hash(context.Context) error {
	const count = 2048
	tokens := make([]uint32, count)
	for i := range tokens {
		tokens[i] = uint32(mix(uint64(i)) % 128_000)
	}
	chain, start := make([]kvindex.BlockHash, 0, count/blockTokens), root()
	t := times(1, b.cpu, func(int) { chain = kvindex.AppendChain(chain[:0], start, tokens, blockTokens) })
	a, err := b.peer.one("hash %d %d %d", blockTokens, count, b.cpu.Milliseconds())
	if err != nil {
		return err
	}
	ours := count / t.Mean * 1e3
	const name, unit = "hash 2,048 token ids, blocks of 16, chained", "million tokens/s"
	b.file.Compare(name, "rate", unit, "higher", ours, peerName, a.Sequence/1e6, 0)
	b.file.Compare(name+"; theirs not chained", "rate", unit, "higher", ours, peerName, a.Local/1e6, 0)
	return nil
}

// decisionTokens is the prompt of the whole decision.
const decisionTokens = 2048

// decide compares the whole decision: hash the prompt, look it up, price the
// workers, book.
func (b *bench) decide(ctx context.Context) error {
	for _, workers := range []uint64{32, 256, 1024} {
		d, err := newDecision(workers)
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
		b.file.Compare(name, "p50", "us", "lower", us(p50, ours), peerName, us(p50, theirs), 0.25)
		b.file.Compare(name, "p99", "us", "lower", us(p99, ours), peerName, us(p99, theirs), 0.25)
		b.file.Compare(name+", with its end", "CPU time", "us", "lower", median(ourCPU), peerName, median(theirCPU), 0.25)
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
	a, err := p.one("decide %d %d %d", workers, decisionTokens, cpu.Milliseconds())
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
}

func newDecision(workers uint64) (*decision, error) {
	d := &decision{index: kvindex.NewIndex(), pool: picker.NewPool(picker.DefaultConfig(), known.Known()), root: root()}
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
	chain, matches := make([]kvindex.BlockHash, 0, decisionTokens/blockTokens), make([]kvindex.Match, 0, 1024)
	var id string
	decide := func() {
		tokens := d.prompts[d.picked%len(d.prompts)]
		chain = kvindex.AppendChain(chain[:0], d.root, tokens, blockTokens)
		matches = d.index.Overlap(chain, matches[:0])
		plan := d.pool.Pick(&picker.Request{ID: id, Model: "bench", ISL: len(tokens), Matches: matches}, time.Now())
		if !plan.OK() || plan.Cached == 0 {
			err = fmt.Errorf("request %s: %s, %d tokens cached", id, plan.Reason, plan.Cached)
		}
	}
	one := func(call func(func())) {
		id = fmt.Sprintf("b%d", d.picked)
		call(decide)
		d.pool.Close(id, time.Now())
		d.picked++
	}
	for range 1000 {
		one(func(call func()) { call() })
	}
	s, done, from := lockedSamples(), 0, processCPU()
	defer s.unlock()
	for begin := threadCPU(); threadCPU()-begin < cpu.Seconds() && !s.full() && err == nil; done++ {
		one(func(call func()) { s.batch(1, call) })
	}
	return s.timing(), (processCPU() - from) / float64(done) * 1e6, err
}

// body measures making keys from the body of a chat of about 2,048 tokens, as a
// picker without a tokenizer does: scan the JSON, hash the text, ask the prefix map.
func (b *bench) body(context.Context) error {
	body, err := chatBody(8192)
	if err != nil {
		return err
	}
	m := kvindex.NewPrefixMap(64 << 20)
	var blocks []kvindex.BlockHash
	var found kvindex.Known
	var failed error
	key := func(learn bool) {
		r, err := openai.Parse(openai.APIChat, body)
		if err != nil {
			failed = err
			return
		}
		seed := r.Seed("secret", r.Model, "")
		h := r.Hashers(seed)[0]
		if learn {
			tokens := h.Len() / 4
			m.Learn(&kvindex.Learned{
				Seed: seed, Chunks: h.Chunks(), Bytes: uint32(h.Len()), Tokens: uint32(tokens),
				BlockSize: blockTokens, Blocks: given(make([]uint64, tokens/blockTokens)),
			})
			return
		}
		found = m.Lookup(h.Chunks(), blocks)
		blocks = found.Blocks
	}
	key(true)
	defer collectAsUsual()()
	t := times(1, b.cpu, func(int) { key(false) })
	if failed != nil {
		return failed
	}
	if found.Tokens < 2000 {
		return fmt.Errorf("the prefix map knows %d tokens of the body, want at least 2,000", found.Tokens)
	}
	name := fmt.Sprintf("keys from a chat body of %d bytes (about 2,048 tokens)", len(body))
	b.report(name, "p50", "us", "lower", t.P50/1e3)
	b.report(name, "p99", "us", "lower", t.P99/1e3)
	b.report(name, "rate", "MB/s", "higher", float64(len(body))/t.Mean*1e3)
	return nil
}

func chatBody(textBytes int) ([]byte, error) {
	var text strings.Builder
	for i := uint64(0); text.Len() < textBytes; i++ {
		fmt.Fprintf(&text, "word%d ", mix(i)%10_000)
	}
	body, err := json.Marshal(map[string]any{
		"model": "bench", "stream": true, "max_tokens": 256,
		"messages": []map[string]string{
			{"role": "system", "content": "Answer in one sentence.\n"},
			{"role": "user", "content": text.String()[:textBytes]},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("encode a body: %w", err)
	}
	return body, nil
}
