package extproc

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// budget bounds the memory of all bodies that are being read.
type budget struct {
	limit int64 // bytes
	used  atomic.Int64
	gauge prometheus.Gauge
}

// reserve takes n bytes, or nothing and false if they are not there.
func (b *budget) reserve(n int64) bool {
	used := b.used.Add(n)
	if used > b.limit {
		b.used.Add(-n)
		return false
	}
	b.gauge.Add(float64(n))
	return true
}

func (b *budget) release(n int64) {
	if n != 0 {
		b.used.Add(-n)
		b.gauge.Sub(float64(n))
	}
}

// keep adds a piece to the body, within the limits.
func (s *stream) keep(piece []byte) *Refusal {
	need := len(s.body) + len(piece)
	if need > s.srv.cfg.MaxBodyBytes {
		return s.srv.tooLarge()
	}
	if need <= cap(s.body) {
		s.body = append(s.body, piece...)
		return nil
	}
	size := len(piece)
	if s.body != nil {
		size = min(max(2*cap(s.body), need), s.srv.cfg.MaxBodyBytes)
	}
	// Both buffers are there while the bytes are copied.
	if !s.srv.buffers.reserve(int64(size)) {
		return &Refusal{Cause: CauseMemory, RetryAfter: time.Second}
	}
	old := s.reserved
	s.reserved += int64(size)
	if s.body == nil {
		s.body = slices.Clip(piece) // most bodies are one piece: no copy
	} else {
		s.body = append(append(make([]byte, 0, size), s.body...), piece...)
	}
	s.srv.buffers.release(old)
	s.reserved -= old
	return nil
}

// release gives back the body's memory once its pieces are sent or it is
// refused.
func (s *stream) release() {
	if s.phase == reading || s.phase == queued {
		return
	}
	s.body = nil
	s.srv.buffers.release(s.reserved)
	s.reserved = 0
}
