package kvindex

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// naiveCache is the obvious model: lists that are searched.
type naiveCache struct {
	room    int
	idle    []BlockHash // the next to go first
	leases  map[string][]BlockHash
	private map[string]int
}

func (c *naiveCache) leased(h BlockHash) bool {
	for _, l := range c.leases {
		if slices.Contains(l, h) {
			return true
		}
	}
	return false
}

// held is every block of the cache, sorted.
func (c *naiveCache) held() []BlockHash {
	list := slices.Clone(c.idle)
	for _, l := range c.leases {
		list = append(list, l...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func (c *naiveCache) shrink() {
	for {
		used := len(c.held())
		for _, n := range c.private {
			used += n
		}
		if used <= c.room || len(c.idle) == 0 {
			return
		}
		c.idle = c.idle[1:]
	}
}

// take gives a lease its blocks one after the other, as they are allocated.
func (c *naiveCache) take(name string, chain []BlockHash) {
	for _, h := range chain {
		c.idle = slices.DeleteFunc(c.idle, func(x BlockHash) bool { return x == h })
		c.leases[name] = append(c.leases[name], h)
	}
	c.shrink()
}

func (c *naiveCache) end(name string) {
	blocks := c.leases[name]
	delete(c.leases, name)
	delete(c.private, name)
	for _, h := range slices.Backward(blocks) {
		if !c.leased(h) {
			c.idle = append(c.idle, h)
		}
	}
	c.shrink()
}

// TestApproxRandom compares random histories of requests with the naive cache:
// the same blocks are held at every moment, and the records say the same.
func TestApproxRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 60 {
		room := 1 + r.IntN(60)
		a := NewApprox(room)
		c := &naiveCache{room: room, leases: map[string][]BlockHash{}, private: map[string]int{}}
		said := map[BlockHash]bool{}
		for step := range 300 {
			name := fmt.Sprint(r.IntN(6))
			switch r.IntN(4) {
			case 0, 1:
				c.end(name)
				chain := randomChain(r)
				want := 0
				for held := c.held(); want < len(chain) && slices.Contains(held, chain[want]); want++ {
				}
				c.take(name, chain)
				total := len(chain) + r.IntN(4)
				c.private[name] = total - len(chain)
				c.shrink()
				if got := a.Begin(name, 1, chain, total); got != want {
					t.Fatalf("step %d: %d blocks were held, want %d", step, got, want)
				}
			case 2:
				more := r.IntN(3)
				if blocks := c.leases[name]; len(blocks) > 0 {
					var next []BlockHash
					for h := blocks[len(blocks)-1]; len(next) < more; next = append(next, h) {
						h = h.Next([]uint32{9}, nil)
					}
					n := min(c.private[name], len(next))
					c.private[name] -= n
					c.take(name, next)
					a.Extend(name, next)
				}
			case 3:
				c.end(name)
				a.End(name)
			}
			follow(t, said, a.Changes())
			held := c.held()
			if a.Len() != len(held) || len(said) != len(held) {
				t.Fatalf("step %d: %d blocks, %d by the records, want %d", step, a.Len(), len(said), len(held))
			}
			for _, h := range held {
				if !said[h] {
					t.Fatalf("step %d: block %x is missing", step, h)
				}
			}
		}
	}
}

// randomChain is a prompt that shares beginnings with others.
func randomChain(r *rand.Rand) []BlockHash {
	var chain []BlockHash
	h := BlockHash(1)
	for range 1 + r.IntN(8) {
		h = h.Next([]uint32{uint32(r.IntN(2))}, nil)
		chain = append(chain, h)
	}
	return chain
}

// follow applies records to a set, and checks that none says what is so already.
func follow(t *testing.T, held map[BlockHash]bool, records []Record) {
	t.Helper()
	for _, rec := range records {
		switch rec.Kind {
		case KindStored:
			for _, h := range rec.Stored.Hashes {
				if held[h] {
					t.Fatalf("block %x is stored twice", h)
				}
				held[h] = true
			}
		case KindRemoved:
			for _, h := range rec.Removed.Hashes {
				if !held[h] {
					t.Fatalf("block %x is removed and was not there", h)
				}
				delete(held, h)
			}
		default:
			clear(held)
		}
	}
}

// TestApproxCorrected: what the engine reports moves the model to the truth.
func TestApproxCorrected(t *testing.T) {
	chain := func(first uint32, n int) []BlockHash {
		var out []BlockHash
		h := BlockHash(1)
		for i := range n {
			h = h.Next([]uint32{first, uint32(i)}, nil)
			out = append(out, h)
		}
		return out
	}
	// The engine has 20 blocks, the model thinks it has 100.
	engine, a := NewApprox(20), NewApprox(100)
	wrong := 0
	for round := range 200 {
		name, c := fmt.Sprint(round), chain(uint32(round%9), 4)
		found := engine.Begin(name, 1, c, 4)
		if a.Begin(name, 1, c, 4) != found {
			wrong++
		}
		a.Found(name, found, 4)
		engine.End(name)
		a.End(name)
	}
	if wrong > 12 {
		t.Errorf("the model was wrong %d times of 200, want a few times at the start", wrong)
	}
	// A prompt that is cached whole is not: at least one token is computed.
	a = NewApprox(100)
	a.Begin("a", 1, chain(1, 4), 4)
	a.End("a")
	a.Begin("b", 1, chain(1, 4), 4)
	a.Found("b", 3, 3)
	a.End("b")
	if a.Len() != 4 || a.room != 100 {
		t.Errorf("%d blocks in room for %d, want 4 in 100", a.Len(), a.room)
	}
	// More than was thought: the room grows back.
	a.room = 10
	a.Begin("c", 1, chain(2, 4), 4)
	a.Found("c", 2, 3)
	if a.room != 12 {
		t.Errorf("room for %d, want 12", a.room)
	}
	a.Clear()
	held := map[BlockHash]bool{}
	follow(t, held, a.Changes())
	if a.Len() != 0 || len(held) != 0 {
		t.Errorf("%d blocks after a clear", a.Len())
	}
}

func ExampleApprox() {
	root := Namespace{Model: "m", BlockSize: 2}.Root()
	cache := NewApprox(3)
	ask := func(name string, tokens ...uint32) {
		held := cache.Begin(name, root, AppendChain(nil, root, tokens, 2), (len(tokens)+1)/2)
		cache.End(name)
		fmt.Printf("%s: %d blocks held, %d changes\n", name, held, len(cache.Changes()))
	}
	ask("a", 1, 2, 3, 4)
	ask("b", 1, 2, 5, 6)
	ask("c", 7, 8, 9, 10) // there is room for three: the end of a goes
	ask("d", 1, 2, 3, 4)
	// Output:
	// a: 0 blocks held, 1 changes
	// b: 1 blocks held, 1 changes
	// c: 0 blocks held, 2 changes
	// d: 1 blocks held, 2 changes
}

// However much comes or goes at once, no record grows beyond what a log takes.
func TestApproxRecordsAreBounded(t *testing.T) {
	const n = 3*maxApproxHashes + 5
	a := NewApprox(n)
	chain := func(first int) []BlockHash {
		list := make([]BlockHash, n)
		for i := range list {
			list[i] = BlockHash(first + i)
		}
		return list
	}
	a.Begin("one", 1, chain(10), n)
	a.End("one")
	a.Begin("two", 1, chain(10+n), n)
	sums, parent := map[Kind]int{}, map[BlockHash]BlockHash{}
	for _, r := range a.Changes() {
		var hashes []BlockHash
		if r.Kind == KindStored {
			hashes = r.Stored.Hashes
			for before := r.Stored.Parent; len(hashes) > 0; hashes = hashes[1:] {
				parent[hashes[0]], before = before, hashes[0]
			}
			hashes = r.Stored.Hashes
		} else {
			hashes = r.Removed.Hashes
		}
		if sums[r.Kind] += len(hashes); len(hashes) > maxApproxHashes {
			t.Errorf("%s of %d blocks", r.Kind, len(hashes))
		}
	}
	if sums[KindStored] != 2*n || sums[KindRemoved] != n {
		t.Errorf("%v blocks came and went, want %d and %d", sums, 2*n, n)
	}
	for h, p := range parent {
		if h != 10 && h != 10+n && p != h-1 {
			t.Fatalf("block %d follows %d", h, p)
		}
	}
}
