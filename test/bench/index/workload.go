package main

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/kvindex"
)

// The workload is that of test/peers/dynamo-index, number by number: what its
// program and this one print of the same plan must agree.
const (
	families    = 2000
	hotFamilies = 20
	prefix      = 32 // blocks that a family's conversations share
	target      = 1_000_000
	wave        = 256 // conversations under way at a time
	documents   = 8
	document    = 8192 // blocks
	blockTokens = 16
	evicted     = 16 // blocks in a Removed
	golden      = 0x9E3779B97F4A7C15
	chainSeed   = 1337
)

// What a block's number stands for.
const (
	inPrefix = iota + 1
	inBody
	inDocument
	unknown
)

func mix(x uint64) uint64 {
	x += golden
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

type random struct{ state uint64 }

func (r *random) next() uint64 {
	v := mix(r.state)
	r.state += golden
	return v
}

func (r *random) below(n uint64) uint64 { return r.next() % n }

func block(kind, id, position uint64) uint64 { return mix(kind<<60 | id<<24 | position) }

// keys turn the blocks of a prompt into its chain of hashes.
type keys func(blocks []uint64) []kvindex.BlockHash

// given makes the hashes of blocks whose numbers are their local hashes, as the
// peer chains them. Making them is never on the clock.
func given(blocks []uint64) []kvindex.BlockHash {
	chain := make([]kvindex.BlockHash, len(blocks))
	var b [16]byte
	for i, local := range blocks {
		if i == 0 {
			chain[0] = kvindex.BlockHash(local)
			continue
		}
		binary.LittleEndian.PutUint64(b[:], uint64(chain[i-1]))
		binary.LittleEndian.PutUint64(b[8:], local)
		chain[i] = kvindex.BlockHash(xxh3.HashSeed(b[:], chainSeed))
	}
	return chain
}

// fromTokens makes the hashes of blocks as a picker does, from their tokens.
func fromTokens(blocks []uint64) []kvindex.BlockHash {
	return kvindex.AppendChain(nil, root(), tokensOf(blocks), blockTokens)
}

func root() kvindex.BlockHash {
	return kvindex.Namespace{Model: "bench", BlockSize: blockTokens}.Root()
}

func tokensOf(blocks []uint64) []uint32 {
	tokens := make([]uint32, 0, len(blocks)*blockTokens)
	for _, b := range blocks {
		for j := range uint64(blockTokens) {
			tokens = append(tokens, uint32(mix(b+j)%128_000))
		}
	}
	return tokens
}

type conversation struct {
	id, family, worker uint64
	length             int // blocks, the prefix included
	turns              []int
	warm               bool // the worker had the family's prefix already
}

func (c *conversation) blocks() []uint64 {
	out := make([]uint64, c.length)
	for i := range out {
		if i < prefix {
			out[i] = block(inPrefix, c.family, uint64(i))
		} else {
			out[i] = block(inBody, c.id, uint64(i))
		}
	}
	return out
}

// plan is the workload for a number of workers.
type plan struct {
	workers       uint64
	conversations []conversation
	memberships   int // (block, worker) pairs after all stores
	distinct      int // blocks
}

func newPlan(workers uint64, memberships int) *plan {
	r := random{state: 42}
	type at struct{ worker, family uint64 }
	warm, seen := map[at]bool{}, map[uint64]bool{}
	p := &plan{workers: workers}
	for p.memberships < memberships {
		n := uint64(families)
		if r.next()%2 == 0 {
			n = hotFamilies
		}
		c := conversation{id: uint64(len(p.conversations)), family: r.below(n), worker: r.below(workers)}
		c.length = 64 + int(r.below(193))
		for left := c.length - prefix; left > 0; {
			turn := min(left, 4+int(r.below(29)))
			c.turns = append(c.turns, turn)
			left -= turn
		}
		place := at{c.worker, c.family}
		c.warm, warm[place], seen[c.family] = warm[place], true, true
		p.distinct += c.length - prefix
		p.memberships += c.length - prefix
		if !c.warm {
			p.memberships += prefix
		}
		p.conversations = append(p.conversations, c)
	}
	p.distinct += prefix * len(seen)
	return p
}

// stored is called with a run of blocks that a worker stores.
type stored func(worker uint64, parent kvindex.BlockHash, hashes []kvindex.BlockHash)

// stores gives all stores in order. With singles the last quarter of each turn
// comes block by block, as while decoding.
func (p *plan) stores(hash keys, singles bool, give stored) {
	for some := range slices.Chunk(p.conversations, wave) {
		chains := buildChains(some, hash)
		for turn, more := 0, true; more; turn++ {
			more = false
			for i := range some {
				c := &some[i]
				if turn >= len(c.turns) {
					continue
				}
				more = true
				chains[i].turn(c, turn, singles, give)
			}
		}
	}
}

// growing is a conversation's chain and how much of it is stored.
type growing struct {
	chain []kvindex.BlockHash
	end   int
}

func buildChains(some []conversation, hash keys) []growing {
	var out []growing
	for i := range some {
		out = append(out, growing{hash(some[i].blocks()), prefix})
	}
	return out
}

func (g *growing) turn(c *conversation, turn int, singles bool, give stored) {
	from, size := g.end, c.turns[turn]
	if turn == 0 && !c.warm {
		from = 0
	}
	g.end += size
	whole := g.end
	if singles {
		whole -= size / 4
	}
	give(c.worker, parentOf(g.chain, from), g.chain[from:whole])
	for i := whole; i < g.end; i++ {
		give(c.worker, g.chain[i-1], g.chain[i:i+1])
	}
}

func parentOf(chain []kvindex.BlockHash, i int) kvindex.BlockHash {
	if i == 0 {
		return root()
	}
	return chain[i-1]
}

// removes gives what evicts the first half of the conversations, each from its
// tail, without the prefixes.
func (p *plan) removes(hash keys, give func(worker uint64, hashes []kvindex.BlockHash)) {
	for i := range p.conversations[:len(p.conversations)/2] {
		c := &p.conversations[i]
		own := hash(c.blocks())[prefix:]
		slices.Reverse(own)
		for some := range slices.Chunk(own, evicted) {
			give(c.worker, some)
		}
	}
}

// documents gives the stores of the long documents that only queries need.
func (p *plan) documents(hash keys, give stored) {
	for d := range uint64(documents) {
		chain := hash(documentBlocks(d))
		for j := range uint64(4) {
			held := document - 512*int(j)
			for from := 0; from < held; from += 512 {
				give((4*d+j)%p.workers, parentOf(chain, from), chain[from:min(held, from+512)])
			}
		}
	}
}

func documentBlocks(d uint64) []uint64 {
	out := make([]uint64, document)
	for i := range out {
		out[i] = block(inDocument, d, uint64(i))
	}
	return out
}

// querySet is one kind of queries, as the blocks of their prompts.
type querySet struct {
	name    string
	prompts [][]uint64
}

func (p *plan) queries() []querySet {
	r := random{state: 7}
	asked := uint64(0)
	var sets []querySet
	for _, s := range []struct {
		name          string
		length, count int
	}{{"q16", 16, 4096}, {"q128", 128, 4096}, {"q1024", 1024, 1024}, {"q8192", 8192, 256}} {
		set := querySet{name: s.name}
		for range s.count {
			c := &p.conversations[r.below(uint64(len(p.conversations)))]
			asked++
			blocks := c.blocks()
			blocks = blocks[:min(len(blocks), s.length)]
			for i := len(blocks); i < s.length; i++ {
				blocks = append(blocks, block(unknown, asked, uint64(i)))
			}
			set.prompts = append(set.prompts, blocks)
		}
		sets = append(sets, set)
	}
	short, long, miss := querySet{name: "deep1024"}, querySet{name: "deep8192"}, querySet{name: "miss"}
	for d := range uint64(documents) {
		short.prompts = append(short.prompts, documentBlocks(d)[:1024])
		long.prompts = append(long.prompts, documentBlocks(d))
	}
	for k := range uint64(4096) {
		blocks := make([]uint64, 128)
		for i := range blocks {
			blocks[i] = block(unknown, 1_000_000+k, uint64(i))
		}
		miss.prompts = append(miss.prompts, blocks)
	}
	return append(sets, short, long, miss)
}
