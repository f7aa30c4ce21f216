package main

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// threadCPU and processCPU are CPU seconds used so far.
func threadCPU() float64  { return clockSeconds(unix.CLOCK_THREAD_CPUTIME_ID) }
func processCPU() float64 { return clockSeconds(unix.CLOCK_PROCESS_CPUTIME_ID) }

func clockSeconds(id int32) float64 {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		panic(fmt.Sprintf("read a CPU clock: %v", err)) // both exist on every Linux
	}
	return float64(t.Sec) + float64(t.Nsec)*1e-9
}

// preemptions is how often another thread was given this one's core.
func preemptions() int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		panic(fmt.Sprintf("read the thread's usage: %v", err)) // cannot fail on Linux
	}
	return u.Nivcsw
}

// samples are call times, without those taken while the thread was off its core.
type samples struct {
	ns               []uint32
	batches, dropped int
	// spare is the last batch that was dropped, for the case that all are.
	spare []uint32
}

const maxSamples = 1 << 20

// newSamples has room whose pages are all touched.
func newSamples() *samples {
	s := &samples{ns: make([]uint32, maxSamples)}
	for i := range s.ns {
		s.ns[i] = 1
	}
	s.ns = s.ns[:0]
	return s
}

func (s *samples) full() bool { return len(s.ns)+64 > cap(s.ns) }

// batch times n calls; all are forgotten if the thread lost its core meanwhile.
// The caller has locked its thread.
func (s *samples) batch(n int, call func()) {
	before, kept := preemptions(), len(s.ns)
	start := time.Now()
	for range n {
		from := time.Since(start)
		call()
		s.ns = append(s.ns, uint32(min(time.Since(start)-from, math.MaxUint32)))
	}
	s.batches++
	if preemptions() != before {
		s.spare = append(s.spare[:0], s.ns[kept:]...)
		s.ns = s.ns[:kept]
		s.dropped++
	}
}

// timing is what is said of a set of call times, ns.
type timing struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Mean float64 `json:"mean"`
	Kept float64 `json:"kept"` // share of batches that were not preempted
}

func (s *samples) timing() timing {
	if len(s.ns) == 0 {
		s.ns = s.spare
	}
	slices.Sort(s.ns)
	at := func(share float64) float64 { return float64(s.ns[int(float64(len(s.ns)-1)*share)]) }
	sum := 0.0
	for _, ns := range s.ns {
		sum += float64(ns)
	}
	return timing{
		P50: at(0.5), P99: at(0.99), Mean: sum / float64(len(s.ns)),
		Kept: 1 - float64(s.dropped)/float64(s.batches),
	}
}

// times calls call(0), call(1), … call(n-1), call(0), … for so much CPU time,
// after each once without a clock. A batch lasts about 50 µs, so that few of
// them are preempted.
func times(n int, cpu time.Duration, call func(i int)) timing {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := time.Now()
	for i := range n {
		call(i)
	}
	each := max(1, time.Since(start)/time.Duration(n))
	batch := min(16, max(1, int(50*time.Microsecond/each)))
	s := newSamples()
	i := 0
	for begin := threadCPU(); threadCPU()-begin < cpu.Seconds() && !s.full(); {
		s.batch(batch, func() {
			call(i)
			i++
			if i == n {
				i = 0
			}
		})
	}
	return s.timing()
}

// locked are samples whose thread is locked until unlock.
type locked struct{ *samples }

func lockedSamples() locked {
	runtime.LockOSThread()
	return locked{newSamples()}
}

func (locked) unlock() { runtime.UnlockOSThread() }

// collectAsUsual lets the garbage collector run by itself until its result is called.
func collectAsUsual() (stop func()) {
	before := debug.SetGCPercent(100)
	return func() { debug.SetGCPercent(before) }
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// collectCPU is the CPU time of a garbage collection now, s.
func collectCPU() float64 {
	before := processCPU()
	runtime.GC()
	return processCPU() - before
}
