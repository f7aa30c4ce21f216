package flow

// heap is a binary heap whose members know their places, so that one can be
// moved or taken out wherever it is.
type heap[T any] struct {
	list   []*T
	before func(a, b *T) bool
	place  func(*T) *int
}

// top is the first; nil if there is none.
func (h *heap[T]) top() *T {
	if len(h.list) == 0 {
		return nil
	}
	return h.list[0]
}

func (h *heap[T]) push(x *T) {
	*h.place(x) = len(h.list)
	h.list = append(h.list, x)
	h.up(len(h.list) - 1)
}

func (h *heap[T]) remove(x *T) {
	i, last := *h.place(x), len(h.list)-1
	h.swap(i, last)
	h.list[last] = nil
	h.list = h.list[:last]
	if i < last {
		h.settle(i)
	}
}

// fix puts a member in its place after its order changed.
func (h *heap[T]) fix(x *T) { h.settle(*h.place(x)) }

func (h *heap[T]) settle(i int) {
	if !h.down(i) {
		h.up(i)
	}
}

func (h *heap[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.before(h.list[i], h.list[parent]) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

// down reports whether it moved anything.
func (h *heap[T]) down(i int) bool {
	moved := false
	for {
		child := 2*i + 1
		if child >= len(h.list) {
			return moved
		}
		if right := child + 1; right < len(h.list) && h.before(h.list[right], h.list[child]) {
			child = right
		}
		if !h.before(h.list[child], h.list[i]) {
			return moved
		}
		h.swap(i, child)
		i, moved = child, true
	}
}

func (h *heap[T]) swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	*h.place(h.list[i]), *h.place(h.list[j]) = i, j
}

// spares are things to use again.
type spares[T any] []*T

// take is a spare one, or nil.
func (s *spares[T]) take() *T {
	last := len(*s) - 1
	if last < 0 {
		return nil
	}
	x := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return x
}

// maxSpares bounds what is kept of each kind.
const maxSpares = 256

func (s *spares[T]) give(x *T) {
	if len(*s) < maxSpares {
		*s = append(*s, x)
	}
}
