package extproc

import (
	"sync/atomic"

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
