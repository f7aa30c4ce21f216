//go:build linux && !race

package kvindex

import (
	"runtime"
	"syscall"
	"unsafe"
)

// hugeBytes is the size of a huge page; regionBytes are mapped at a time. What is
// mapped costs memory only once it is used.
const (
	hugeBytes   = 2 << 20
	regionBytes = 64 << 20
)

// region is memory outside Go's heap, in huge pages if the kernel gives them: the
// index looks at lines all over its memory, and with small pages half the time of
// such a look goes into finding the page.
type region struct {
	words []uint64
}

// newPage is zeroed memory for a page. Small indexes stay in Go's heap.
func (a *arena) newPage(words, origins int) page {
	p := page{origins: make([]uint64, origins)}
	if words == pageWords {
		p.words = a.region.take(a.owner, words)
	}
	if p.words == nil {
		p.words = make([]uint64, words)
	} else {
		a.mapped += 8 * words
	}
	return p
}

// take cuts words off the region, and maps a new one if there are none left. It
// returns nil if the kernel refuses. What is mapped goes when owner does.
func (r *region) take(owner *Index, words int) []uint64 {
	if len(r.words) < words {
		b, err := syscall.Mmap(-1, 0, regionBytes+hugeBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			return nil
		}
		runtime.AddCleanup(owner, func(b []byte) { _ = syscall.Munmap(b) }, b)
		skip := -uintptr(unsafe.Pointer(&b[0])) % hugeBytes //nolint:gosec // only to align
		b = b[skip : skip+regionBytes]
		_ = syscall.Madvise(b, syscall.MADV_HUGEPAGE)                      // without it, pages are small
		r.words = unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8) //nolint:gosec // aligned, and as long
	}
	w := r.words[:words:words]
	r.words = r.words[words:]
	return w
}
