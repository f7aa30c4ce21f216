//go:build !linux || race

package kvindex

type region struct{}

// newPage is zeroed memory for a page. The race detector sees Go's heap only.
func (*arena) newPage(words, origins int) page {
	return page{words: make([]uint64, words), origins: make([]uint64, origins)}
}
