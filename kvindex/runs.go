package kvindex

import (
	"math/bits"
	"sync/atomic"
)

// A run is a sequence of blocks, each the parent of the next. It grows at its end
// and is never split: what branches off, at any place, is a run of its own, and
// nothing but the hashes themselves leads from one run to the next. Its hashes
// lie in chunks of 16; a block is named by the address of its hash.
//
// A run is a line of 8 words:
//
//	0  state: length, end, held, flags (see runState)
//	1  the list of holders: address, count (bits 32-51), version (52-58), size
//	   (59-63, log2); 0 while the two holders below are enough
//	2  the chunks after the fourth: address of a list, two chunks a word, its size
//	   (52-56, log2); bits 32-51: where the last run branched off
//	3  holder
//	4  holder
//	5  the round in which a query last met the run
//	6  first and second chunk
//	7  third and fourth chunk
//
// Invariant: for every place below the length the hash is in its chunk, the
// chunk's origin names the run and its place, and the table has the block.
const (
	runWords  = 8
	slabRuns  = 64 // runs are allocated in slabs of this many, so that all can be visited
	firstPart = 4  // chunks named in the run itself

	wordState  = 0
	wordList   = 1
	wordChunks = 2
	wordHolder = 3
	wordRound  = 5
	wordFirst  = 6

	fieldBits = 20
	field     = 1<<fieldBits - 1
	// maxRun is the greatest length; places and lengths have 20 bits.
	maxRun = field &^ (chunkWords - 1)
)

// runState is: length (bits 0-19), end (20-39): no holder reaches further, held
// (40-59): blocks that somebody holds, and flags. Blocks from end on are idle:
// they wait for somebody to store them again, or for the sweep.
type runState uint64

const (
	runUsed   runState = 1 << 60
	runSealed runState = 1 << 61 // its end was cut off: it does not grow any more
)

func (s runState) length() uint32 { return uint32(s) & field }
func (s runState) end() uint32    { return uint32(s>>fieldBits) & field }
func (s runState) held() uint32   { return uint32(s>>(2*fieldBits)) & field }
func (s runState) idle() uint32   { return s.length() - s.end() }

func (s runState) with(length, end, held uint32) runState {
	return s&(runUsed|runSealed) | runState(length) | runState(end)<<fieldBits | runState(held)<<(2*fieldBits)
}

// place is a block as a run and its place in it.
type place struct {
	run uint32 // address, 0 for none
	at  uint32
}

// view is the index as a goroutine sees it.
type view struct {
	x   *Index
	mem pages
}

func (v *view) word(addr uint32) *uint64 {
	if int(addr>>pageBits) >= len(v.mem) {
		v.reload()
	}
	return v.mem.word(addr)
}

func (v *view) line(addr uint32) *[8]uint64 {
	if int(addr>>pageBits) >= len(v.mem) {
		v.reload()
	}
	return v.mem.line(addr)
}

// reload takes over pages that were added since.
func (v *view) reload() { v.mem = *v.x.arena.list.Load() }

// place says where the block at an address is.
func (v *view) place(addr uint32) place {
	_ = v.word(addr)
	o := *v.mem.origin(addr)
	return place{run: uint32(o >> 32), at: uint32(o)<<chunkBits + addr&(chunkWords-1)}
}

// chunk is the address of a run's n-th chunk.
func (v *view) chunk(r *[8]uint64, n uint32) uint32 {
	if n < firstPart {
		return uint32(atomic.LoadUint64(&r[wordFirst+n/2]) >> (32 * (n & 1)))
	}
	n -= firstPart
	list := uint32(atomic.LoadUint64(&r[wordChunks]))
	return uint32(atomic.LoadUint64(v.word(list+n/2)) >> (32 * (n & 1)))
}

// hash is the block at a place below the run's length.
func (v *view) hash(r *[8]uint64, at uint32) BlockHash {
	return BlockHash(*v.word(v.chunk(r, at>>chunkBits) + at&(chunkWords-1)))
}

// span is how many blocks of the chain the run has from place at on, where it has
// chain[0]. A block's hash covers all before it, so one equal block vouches for
// those before.
func (v *view) span(r *[8]uint64, length, at uint32, chain []BlockHash) uint32 {
	limit := min(uint32(len(chain)), length-at)
	low, high := uint32(0), limit // equal at low, not at high
	fork := uint32(atomic.LoadUint64(&r[wordChunks])>>32) & field
	if fork > at && fork-at < limit {
		if f := fork - at; v.hash(r, fork) != chain[f] {
			high = f
			if v.hash(r, fork-1) == chain[f-1] {
				return f
			}
		} else {
			low = f
		}
	}
	if high == limit && v.hash(r, at+limit-1) == chain[limit-1] {
		return limit
	}
	for step := uint32(1); low+1 < high; {
		mid := low + (high-low)/2
		if low+step < mid { // most chains part soon
			mid = low + step
			step *= 4
		}
		if v.hash(r, at+mid) == chain[mid] {
			low = mid
		} else {
			high = mid
		}
	}
	return low + 1
}

// run is the run at an address, for the writer.
func (x *Index) run(addr uint32) *[8]uint64 { return x.arena.mem.line(addr) }

// newRun is the address of an empty run, 0 without memory.
func (x *Index) newRun() uint32 {
	if x.freeRun == 0 {
		slab := x.arena.alloc(slabRuns * runWords)
		if slab == 0 {
			return 0
		}
		clear(x.arena.mem.span(slab, slabRuns*runWords))
		x.slabs = append(x.slabs, slab)
		for i := range uint32(slabRuns) {
			x.putRun(slab + (slabRuns-1-i)*runWords)
		}
	}
	addr := x.freeRun
	r := x.run(addr)
	x.freeRun = uint32(r[wordHolder])
	for i := range r {
		r[i] = 0
	}
	r[wordRound] = x.round.Load()
	r[wordState] = uint64(runUsed)
	x.runs++
	return addr
}

// putRun makes a run's line free at once.
func (x *Index) putRun(addr uint32) {
	r := x.run(addr)
	atomic.StoreUint64(&r[wordState], 0)
	atomic.StoreUint64(&r[wordHolder], uint64(x.freeRun))
	x.freeRun = addr
}

// grow appends hashes to a run until one comes that the index knows, and returns
// how many. full says that it ended because the run or the memory is full.
func (x *Index) grow(addr uint32, hashes []BlockHash) (n int, full bool) {
	r := x.run(addr)
	s := runState(r[wordState])
	length := s.length()
	v := x.view()
	for _, h := range hashes {
		if v.find(h) != 0 {
			break
		}
		if length == maxRun || length%chunkWords == 0 && !x.addChunk(addr, r, length>>chunkBits) {
			full = true
			break
		}
		a := v.chunk(r, length>>chunkBits) + length%chunkWords
		*x.arena.mem.word(a) = uint64(h)
		if !x.insert(h, a) {
			if length%chunkWords == 0 {
				x.arena.freeNow(a, chunkWords)
			}
			full = true
			break
		}
		length++
		n++
	}
	x.setState(r, s.with(length, s.end(), s.held()))
	return n, full
}

// addChunk gives a run its n-th chunk. A place in the list of chunks that is not
// in use may hold anything.
func (x *Index) addChunk(addr uint32, r *[8]uint64, n uint32) bool {
	c := x.arena.alloc(chunkWords)
	if c == 0 {
		return false
	}
	*x.arena.mem.origin(c) = uint64(addr)<<32 | uint64(n)
	if n < firstPart {
		setHalf(&r[wordFirst+n/2], n, c)
		return true
	}
	n -= firstPart
	list, size := chunkList(r[wordChunks])
	if n/2 == size {
		more := x.arena.alloc(blockWords(int(size) + 1))
		if more == 0 {
			x.arena.freeNow(c, chunkWords)
			return false
		}
		if size > 0 {
			copy(x.arena.mem.span(more, size), x.arena.mem.span(list, size))
			x.retire(list, size)
		}
		list, size = more, blockWords(int(size)+1)
		fork := r[wordChunks] & (field << 32)
		atomic.StoreUint64(&r[wordChunks], uint64(list)|fork|uint64(bits.TrailingZeros32(size))<<52)
	}
	setHalf(x.arena.mem.word(list+n/2), n, c)
	return true
}

// chunkList reads wordChunks: a list's address and words.
func chunkList(w uint64) (list, size uint32) {
	if uint32(w) == 0 {
		return 0, 0
	}
	return uint32(w), 1 << (w >> 52)
}

// setHalf puts 32 bits into a word's lower (i even) or upper half.
func setHalf(w *uint64, i, to uint32) {
	shift := 32 * (i & 1)
	atomic.StoreUint64(w, *w&^(0xffffffff<<shift)|uint64(to)<<shift)
}

// setFork remembers where a run branched off.
func (x *Index) setFork(p place) {
	w := &x.run(p.run)[wordChunks]
	if at := p.at + 1; uint32(*w>>32)&field != at && at <= field {
		atomic.StoreUint64(w, *w&^(field<<32)|uint64(at)<<32)
	}
}

// truncate forgets a run's blocks from a place on, which nobody holds. The run
// does not grow any more: a reader may look at what its chunk has there.
func (x *Index) truncate(addr, length uint32) {
	r := x.run(addr)
	s := runState(r[wordState])
	v := x.view()
	for at := length; at < s.length(); at++ {
		x.erase(v.hash(r, at), v.chunk(r, at>>chunkBits)+at%chunkWords)
	}
	x.setState(r, s.with(length, s.end(), s.held())|runSealed)
	for n := (length + chunkWords - 1) >> chunkBits; n < (s.length()+chunkWords-1)>>chunkBits; n++ {
		x.retire(v.chunk(r, n), chunkWords)
	}
}

// dropRun frees a run that nobody holds.
func (x *Index) dropRun(addr uint32) {
	x.truncate(addr, 0)
	r := x.run(addr)
	if list, size := chunkList(r[wordChunks]); size > 0 {
		x.retire(list, size)
	}
	if l := holderList(r[wordList]); l.addr != 0 {
		x.retire(l.addr, l.size)
	}
	atomic.StoreUint64(&r[wordState], 0)
	x.retire(addr, 0)
	x.runs--
}

// setState publishes a run's state and keeps the totals.
func (x *Index) setState(r *[8]uint64, s runState) {
	old := runState(r[wordState])
	x.blocks += int(s.held()) - int(old.held())
	x.idle += int(s.idle()) - int(old.idle())
	atomic.StoreUint64(&r[wordState], uint64(s))
}
