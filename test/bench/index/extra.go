package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/kvindex"
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
