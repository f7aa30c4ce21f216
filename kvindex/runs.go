package kvindex

import (
	"math/bits"
	"sync/atomic"
)

// A run is a sequence of blocks, each the parent of the next. It grows at its end
// and is never split: what branches off, at any place, is a run of its own, and
// nothing but the hashes themselves leads from one run to the next. A block is
// named by the address of its hash.
//
// A run has 16 words, two cache lines, with its first nine hashes; the others lie
// in chunks of 32:
//
//	0  state: length, end, held, flags (see runState)
//	1  the list of holders: address, count (bits 32-51), version (52-58), size
//	   (59-63, log2); 0 while the one below is enough
//	2  holder
//	3  the chunks after the fourth: address of a list, two chunks a word, its size
//	   (52-56, log2); bits 32-51: where the last run branched off
//	4  first and second chunk
//	5  third and fourth chunk
//	6  the round in which a query last met the run
//	7  the first nine hashes
//
// Invariant: for every place below the length the hash is in its place, the
// chunk's origin names the run and the chunk's number, and the table has the
// block.
const (
	runWords   = 16
	slabRuns   = 64                     // runs are allocated in slabs of this many, so that all can be visited
	firstPart  = 4                      // chunks named in the run itself
	runHashes  = 9                      // in the run itself
	chunkShift = chunkWords - runHashes // the hash at place p is number p+chunkShift of chunks 0 (the run), 1, 2, ...

	wordState  = 0
	wordList   = 1
	wordHolder = 2
	wordChunks = 3
	wordFirst  = 4
	wordRound  = 6
	wordHash   = 7

	// slabOrigin is the origin of a slab's words.
	slabOrigin = 1<<64 - 1

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
	runHead   runState = 1 << 62 // it is in heads
	// runParent: a block of another run may follow one of this. Where it is not set
	// a query has come to the end. See awaited.
	runParent runState = 1 << 63
)

func (s runState) length() uint32 { return uint32(s) & field }
func (s runState) end() uint32    { return uint32(s>>fieldBits) & field }
func (s runState) held() uint32   { return uint32(s>>(2*fieldBits)) & field }
func (s runState) idle() uint32   { return s.length() - s.end() }

func (s runState) with(length, end, held uint32) runState {
	return s&(runUsed|runSealed|runHead|runParent) | runState(length) | runState(end)<<fieldBits | runState(held)<<(2*fieldBits)
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
	if addr&startFlag != 0 {
		return place{run: addr&^startFlag - wordHash}
	}
	_ = v.word(addr)
	o := *v.mem.origin(addr)
	if o == slabOrigin {
		return place{run: addr &^ (runWords - 1), at: addr&(runWords-1) - wordHash}
	}
	return place{run: uint32(o >> 32), at: uint32(o)<<chunkBits + addr&(chunkWords-1) - chunkShift}
}

// address is where the hash at a place of a run is.
func (v *view) address(run uint32, r *[8]uint64, at uint32) uint32 {
	if at < runHashes {
		return run + wordHash + at
	}
	at += chunkShift
	n := at>>chunkBits - 1
	if n < firstPart {
		return uint32(atomic.LoadUint64(&r[wordFirst+n/2])>>(32*(n&1))) + at&(chunkWords-1)
	}
	n -= firstPart
	list := uint32(atomic.LoadUint64(&r[wordChunks]))
	return uint32(atomic.LoadUint64(v.word(list+n/2))>>(32*(n&1))) + at&(chunkWords-1)
}

// hash is the block at a place below the run's length.
func (v *view) hash(run uint32, r *[8]uint64, at uint32) BlockHash {
	return BlockHash(*v.word(v.address(run, r, at)))
}

// span is how many blocks of the chain the run has from place at on, where it has
// chain[0]. A block's hash covers all before it, so one equal block vouches for
// those before.
func (v *view) span(run uint32, r *[8]uint64, length, at uint32, chain []BlockHash) uint32 {
	limit := min(uint32(len(chain)), length-at)
	low, high := uint32(0), limit // equal at low, not at high
	fork := uint32(atomic.LoadUint64(&r[wordChunks])>>32) & field
	if fork > at && fork-at < limit {
		if f := fork - at; v.hash(run, r, fork) != chain[f] {
			high = f
			if v.hash(run, r, fork-1) == chain[f-1] {
				return f
			}
		} else {
			low = f
		}
	}
	if high == limit && v.hash(run, r, at+limit-1) == chain[limit-1] {
		return limit
	}
	for step := uint32(1); low+1 < high; {
		mid := low + (high-low)/2
		if low+step < mid { // most chains part soon
			mid = low + step
			step *= 4
		}
		if v.hash(run, r, at+mid) == chain[mid] {
			low = mid
		} else {
			high = mid
		}
	}
	return low + 1
}

// run is the first line of the run at an address, for the writer.
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
			addr := slab + (slabRuns-1-i)*runWords
			*x.arena.mem.origin(addr) = slabOrigin
			x.putRun(addr)
		}
	}
	run := x.freeRun
	r := x.run(run)
	x.freeRun = uint32(r[wordHolder])
	clear(r[:wordHash])
	r[wordRound] = x.round.Load()
	r[wordState] = uint64(runUsed)
	x.runs++
	return run
}

// putRun makes a run's words free at once.
func (x *Index) putRun(run uint32) {
	r := x.run(run)
	r[wordState], r[wordHolder] = 0, uint64(x.freeRun)
	x.freeRun = run
}

// grow appends hashes to a run until one comes that the index knows, and returns
// how many. It ends before that when the run or the memory is full.
func (x *Index) grow(run uint32, hashes []aim) (n uint32) {
	r := x.run(run)
	s := runState(r[wordState])
	length := s.length()
	var words []uint64 // what is left of the chunk
	var addr uint32
	for i := range hashes {
		h := &hashes[i]
		if i > 0 && x.known(h) != 0 { // who calls knows that the first is not
			break
		}
		if len(words) == 0 {
			if addr, words = x.room(run, r, length); addr == 0 {
				break
			}
		}
		if x.awaited.may(h.hash) {
			s |= runParent
		}
		words[0] = uint64(h.hash)
		a := addr
		if length == 0 {
			a |= startFlag
		}
		if !x.insert(h, a) {
			x.trim(run, r, length)
			break
		}
		words = words[1:]
		addr++
		length++
		n++
	}
	x.setState(r, s.with(length, s.end(), s.held()))
	return n
}

// room is where a run's hash at place length comes, with the words up to the end
// of the chunk, which is made if need be; 0 if there is no more room.
func (x *Index) room(run uint32, r *[8]uint64, length uint32) (addr uint32, words []uint64) {
	if length < runHashes {
		addr = run + wordHash + length
		return addr, x.arena.mem.span(addr, runHashes-length)
	}
	n := length + chunkShift
	if length == maxRun || n%chunkWords == 0 && !x.addChunk(run, r, n>>chunkBits) {
		return 0, nil
	}
	v := x.view()
	addr = v.address(run, r, length)
	return addr, x.arena.mem.span(addr, chunkWords-n%chunkWords)
}

// trim gives back a chunk that has just been made and is not needed.
func (x *Index) trim(run uint32, r *[8]uint64, length uint32) {
	if n := length + chunkShift; length >= runHashes && n%chunkWords == 0 {
		v := x.view()
		x.arena.freeNow(v.address(run, r, length), chunkWords)
	}
}

// addChunk gives a run its n-th chunk, from 1. A place in the list of chunks that
// is not in use may hold anything.
func (x *Index) addChunk(run uint32, r *[8]uint64, n uint32) bool {
	c := x.arena.alloc(chunkWords)
	if c == 0 {
		return false
	}
	*x.arena.mem.origin(c) = uint64(run)<<32 | uint64(n)
	n--
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

// chunksOf is how many chunks a run of a length has.
func chunksOf(length uint32) uint32 {
	if length <= runHashes {
		return 0
	}
	return (length - runHashes + chunkWords - 1) >> chunkBits
}

// setHalf puts 32 bits into a word's lower (i even) or upper half.
func setHalf(w *uint64, i, to uint32) {
	shift := 32 * (i & 1)
	atomic.StoreUint64(w, *w&^(0xffffffff<<shift)|uint64(to)<<shift)
}

// awaited are blocks that may come into some run and have blocks of another run
// behind them already: unknown parents, and what was cut off runs that were
// parents. It is a filter, so it may have others too.
type awaited [1024]uint64

func (f *awaited) bit(h BlockHash) (*uint64, uint64) {
	x := spread(h)
	return &f[x>>6%uint64(len(f))], 1 << (x & 63)
}

func (f *awaited) add(h BlockHash) {
	w, b := f.bit(h)
	*w |= b
}

func (f *awaited) may(h BlockHash) bool {
	w, b := f.bit(h)
	return *w&b != 0
}

// setFork remembers where a run branched off.
func (x *Index) setFork(p place) {
	r := x.run(p.run)
	if s := r[wordState]; runState(s)&runParent == 0 {
		atomic.StoreUint64(&r[wordState], s|uint64(runParent))
	}
	w := &r[wordChunks]
	if at := p.at + 1; uint32(*w>>32)&field != at && at <= field {
		atomic.StoreUint64(w, *w&^(field<<32)|uint64(at)<<32)
	}
}

// truncate forgets a run's blocks from a place on, which nobody holds. The run
// does not grow any more: a reader may look at what its chunk has there.
func (x *Index) truncate(run, length uint32) {
	r := x.run(run)
	s := runState(r[wordState])
	v := x.view()
	list := make([]BlockHash, 0, aims-1)
	for from := length; from < s.length(); from += uint32(len(list)) {
		list = list[:0]
		for at := from; at < min(from+aims-1, s.length()); at++ {
			list = append(list, v.hash(run, r, at))
			if s&runParent != 0 {
				x.awaited.add(list[len(list)-1])
			}
		}
		x.aim(list, 0)
		for i := range list {
			at := from + uint32(i)
			a := v.address(run, r, at)
			if at == 0 {
				a |= startFlag
			}
			x.erase(&x.aims[i], a)
		}
	}
	x.setState(r, s.with(length, s.end(), s.held())|runSealed)
	for n := chunksOf(length); n < chunksOf(s.length()); n++ {
		x.retire(v.address(run, r, runHashes+n<<chunkBits), chunkWords)
	}
}

// dropRun frees a run that nobody holds.
func (x *Index) dropRun(run uint32) {
	r := x.run(run)
	if runState(r[wordState])&runHead != 0 {
		x.removeHead(run)
	}
	x.truncate(run, 0)
	if list, size := chunkList(r[wordChunks]); size > 0 {
		x.retire(list, size)
	}
	if l := holderList(r[wordList]); l.addr != 0 {
		x.retire(l.addr, l.size)
	}
	atomic.StoreUint64(&r[wordState], 0)
	x.retire(run, retiredRun)
	x.runs--
}

// setState publishes a run's state and keeps the totals.
func (x *Index) setState(r *[8]uint64, s runState) {
	old := runState(r[wordState])
	x.blocks += int(s.held()) - int(old.held())
	x.idle += int(s.idle()) - int(old.idle())
	atomic.StoreUint64(&r[wordState], uint64(s))
}
