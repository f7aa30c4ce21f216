package kvindex

import (
	"math/bits"
	"sync/atomic"
)

// The index lives in words of 64 bits outside the garbage collector's sight: an
// address is the number of a word, 0 is none. Words come in pages, whose
// list only grows; a page never moves.
const (
	pageBits  = 16 // half a MiB of words
	pageWords = 1 << pageBits

	chunkBits  = 5
	chunkWords = 1 << chunkBits // hashes in a chunk, and words for one entry of a page's origins

	// startFlag marks the address of a run's first block, so that the run is found
	// from it at once. Addresses stay below: the arena has 16 GiB at most.
	startFlag = 1 << 31
)

// page is a piece of the arena. A page may be shorter than pageWords: the first
// ones are, so that a small index is small, and the last one of a budget.
type page struct {
	words []uint64
	// origins has for each chunk the run it belongs to (upper half) and its place
	// in the run (lower half).
	origins []uint64
}

// pages is a list of pages as somebody knows it. Addresses published after it
// was loaded may lie beyond.
type pages []page

// arena hands out blocks of words. Its writer is the index's; readers use pages.
//
// Invariant: a block is in exactly one hand: with its user, in limbo, or free. A
// block that a reader may still look at is in limbo.
type arena struct {
	list atomic.Pointer[pages]
	mem  pages // the same, for the writer

	next, end uint32 // the rest of the newest page
	// free are heads of lists of free blocks, by class; a free block's first word
	// is the next one's address.
	free [classes]uint32
	used int // words in blocks with their users or in limbo

	limit    int // of reserved, 0 for none
	reserved int // bytes

	region region // of the newest pages
	mapped int    // bytes of reserved that are outside Go's heap
	owner  *Index

	limbo []retired
	first int // the oldest in limbo
}

// retired is a block that was taken out of use in an epoch.
type retired struct {
	epoch uint64
	addr  uint32
	words uint32
}

// Blocks have a power of two of words, from 8 to a page, or are segments of the
// table's two full sizes.
const (
	minBlockBits = 3
	maxBlockBits = 16
	smallClass   = maxBlockBits + 1
	largeClass   = maxBlockBits + 2
	classes      = maxBlockBits + 3
)

func class(words uint32) int {
	switch words {
	case smallSegment:
		return smallClass
	case largeSegment:
		return largeClass
	}
	return bits.TrailingZeros32(words)
}

// blockWords is the size of the smallest block that has n words.
func blockWords(n int) uint32 {
	return 1 << max(minBlockBits, bits.Len32(uint32(n-1)))
}

// word is the place of an address that lies in these pages.
func (p pages) word(addr uint32) *uint64 { return &p[addr>>pageBits].words[addr&(pageWords-1)] }

// span is n words from addr; a block lies in one page.
func (p pages) span(addr, n uint32) []uint64 {
	at := addr & (pageWords - 1)
	return p[addr>>pageBits].words[at : at+n : at+n]
}

func (p pages) line(addr uint32) *[8]uint64 {
	return (*[8]uint64)(p[addr>>pageBits].words[addr&(pageWords-1):])
}

func (p pages) origin(addr uint32) *uint64 {
	return &p[addr>>pageBits].origins[addr&(pageWords-1)>>chunkBits]
}

// alloc gives a block, or 0 if the budget is used up. Its words have any content.
func (a *arena) alloc(words uint32) uint32 {
	c := class(words)
	if b := a.free[c]; b != 0 {
		a.free[c] = uint32(*a.mem.word(b))
		a.used += int(words)
		return b
	}
	if words < chunkWords { // part of a chunk
		b := a.alloc(chunkWords)
		if b == 0 {
			return 0
		}
		for size := uint32(chunkWords); size > words; {
			size /= 2
			a.put(b+size, size)
		}
		a.used -= int(chunkWords - words)
		return b
	}
	if b := a.split(words); b != 0 {
		return b
	}
	if a.end-a.next < words && !a.grow(words) {
		return a.cut(words)
	}
	b := a.next
	a.next += words
	a.used += int(words)
	return b
}

// split takes a block from a larger free one, but not from a segment: others
// of its size will be wanted.
func (a *arena) split(words uint32) uint32 {
	if words > 1<<maxBlockBits || words&(words-1) != 0 {
		return 0
	}
	for c := class(words) + 1; c <= maxBlockBits; c++ {
		b := a.free[c]
		if b == 0 {
			continue
		}
		a.free[c] = uint32(*a.mem.word(b))
		for size := uint32(1) << c; size > words; {
			size /= 2
			a.put(b+size, size)
		}
		a.used += int(words)
		return b
	}
	return 0
}

// cut takes a chunk, or less, from a free segment: there is nothing else.
func (a *arena) cut(words uint32) uint32 {
	for _, size := range []uint32{smallSegment, largeSegment} {
		c := class(size)
		if b := a.free[c]; b != 0 && words <= chunkWords {
			a.free[c] = uint32(*a.mem.word(b))
			for i := uint32(0); i < size; i += chunkWords {
				a.put(b+i, chunkWords)
			}
			return a.alloc(words)
		}
	}
	return 0
}

// grow opens a new page.
func (a *arena) grow(words uint32) bool {
	n := len(a.mem)
	if n == startFlag>>pageBits {
		return false
	}
	size := uint32(min(pageWords, 1<<min(11+2*n, pageBits)))
	if size < words {
		size = pageWords
	}
	if a.limit > 0 {
		const perChunk = 8 * (chunkWords + 1)
		room := (a.limit - a.reserved) / perChunk * chunkWords
		if room < int(words) {
			return false
		}
		size = min(size, uint32(room))
	}
	for a.next < a.end { // what is left of the page before
		a.put(a.next, chunkWords)
		a.next += chunkWords
	}
	list := append(make(pages, 0, n+1), a.mem...)
	list = append(list, a.newPage(int(size), int(size/chunkWords)))
	a.mem = list
	a.list.Store(&list)
	a.reserved += int(size) * 8 / chunkWords * (chunkWords + 1)
	a.next = uint32(n) << pageBits
	a.end = a.next + size
	if n == 0 {
		a.next = chunkWords // address 0 is none
	}
	return true
}

// put makes a block free at once.
func (a *arena) put(addr, words uint32) {
	c := class(words)
	*a.mem.word(addr) = uint64(a.free[c])
	a.free[c] = addr
}

// freeNow gives back a block that no reader has seen.
func (a *arena) freeNow(addr, words uint32) {
	a.used -= int(words)
	a.put(addr, words)
}
