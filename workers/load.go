package workers

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/workers/engine"
)

// maxSamples bounds each list of a load report that is waiting for the log.
const maxSamples = 4096

// load counts what the worker has to do. It is safe for concurrent use.
//
// Invariant: every request that began is in order until it ends, once; with no
// request in flight all sums are 0.
type load struct {
	changed chan struct{} // one signal is kept

	mu      sync.Mutex
	order   []*request // by arrival, oldest first
	report  kvindex.Load
	dropped uint64
	queued  uint64 // sum of the uncached tokens of requests before their first token
	context uint64 // sum of the tokens of requests after their first token
	waiting int
	// page is what the engine's metrics page said, in place of what is counted here;
	// bare is set where nothing is.
	bare bool
	page *reading
}

// reading is a bare engine's load.
type reading struct {
	at               time.Time // when it was asked for
	running, waiting uint32
	context          uint64 // tokens of KV in use
}

// request is one request in flight. Its methods are for one goroutine.
type request struct {
	load    *load
	arrived time.Time
	booking string
	// blind requests show no first token of their own (answers without streaming).
	blind bool

	// guarded by load.mu
	uncached  uint64
	tokens    uint64 // context tokens, counted once started
	started   bool
	firstMs   float64
	announced bool // its first token was reported
	failed    bool // the engine's fault
	over      bool
}

func newLoad() *load { return &load{changed: make(chan struct{}, 1)} }

func (l *load) signal() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// begin counts a request. booking is the picker's id, empty for none; uncached is
// the predicted number of prompt tokens that the engine must compute.
func (l *load) begin(now time.Time, booking string, uncached uint64, blind bool) *request {
	r := &request{load: l, arrived: now, booking: booking, blind: blind, uncached: uncached}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.order = append(l.order, r)
	l.queued += uncached
	l.waiting++
	if booking != "" {
		l.report.Accepted = appendBounded(l.report.Accepted, booking, &l.dropped)
	}
	l.signal()
	return r
}

// firstToken notes that prefill is done. sample's counts may be -1 for unknown;
// its times and booking are filled in. Earlier requests that cannot show their
// first token are taken as prefilled too: engines prefill in order of arrival.
func (r *request) firstToken(now time.Time, sample kvindex.Sample) {
	l := r.load
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.announced || r.over {
		return
	}
	for _, earlier := range l.order {
		if earlier == r {
			break
		}
		if earlier.blind {
			earlier.start()
		}
	}
	r.start()
	r.tokens = uint64(max(sample.PromptTokens, 0))
	l.context += r.tokens
	r.announce(now, sample)
	l.signal()
}

// announce adds a FirstToken sample. The caller holds the lock.
func (r *request) announce(now time.Time, sample kvindex.Sample) {
	r.announced = true
	r.firstMs = milliseconds(now.Sub(r.arrived))
	sample.Booking, sample.FirstTokenMs, sample.TotalMs = r.booking, r.firstMs, 0
	r.load.report.FirstToken = appendBounded(r.load.report.FirstToken, sample, &r.load.dropped)
}

// start moves the request from queued to running. The caller holds the lock.
func (r *request) start() {
	if r.started {
		return
	}
	r.started = true
	r.load.queued -= r.uncached
	r.load.waiting--
}

// grow adds generated tokens to a started request's context.
func (r *request) grow(n int) {
	l := r.load
	l.mu.Lock()
	defer l.mu.Unlock()
	if !r.started || r.over || n <= 0 {
		return
	}
	r.tokens += uint64(n)
	l.context += uint64(n)
}

// end takes the request out of all sums. sample carries the engine's counts; the
// times and the booking are filled in. A second call does nothing.
func (r *request) end(now time.Time, sample kvindex.Sample) {
	l := r.load
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.over {
		return
	}
	r.start()
	r.over = true
	l.context -= r.tokens
	l.order = slices.DeleteFunc(l.order, func(other *request) bool { return other == r })
	if r.blind && !r.announced && !sample.Aborted && sample.OutputTokens == 1 {
		// One token: its time is the answer's.
		r.announce(now, sample)
	}
	sample.Booking, sample.FirstTokenMs = r.booking, r.firstMs
	sample.TotalMs = milliseconds(now.Sub(r.arrived))
	l.report.Done = appendBounded(l.report.Done, sample, &l.dropped)
	if r.failed {
		l.report.Failed = appendBounded(l.report.Failed, r.booking, &l.dropped)
	}
	l.signal()
}

// noneWaiting says that the engine reported an empty waiting queue at a time:
// blind requests that arrived before it have left the queue.
func (l *load) noneWaiting(since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.order {
		if r.blind && r.arrived.Before(since) {
			r.start()
		}
	}
}

// setKV notes the engine's cache use in blocks.
func (l *load) setKV(used, total uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.report.KVUsed != used || l.report.KVTotal != total {
		l.report.KVUsed, l.report.KVTotal = used, total
		l.signal()
	}
}

// take returns the present load and what happened since the last take.
func (l *load) take() kvindex.Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.snapshot()
	l.report.Accepted, l.report.FirstToken, l.report.Done, l.report.Failed = nil, nil, nil, nil
	return out
}

// now returns the present load without taking it.
func (l *load) now() kvindex.Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.snapshot()
}

func (l *load) snapshot() kvindex.Load {
	out := l.report
	out.Running = uint32(len(l.order) - l.waiting)
	out.Waiting = uint32(l.waiting)
	out.QueuedTokens = l.queued
	out.ContextTokens = l.context
	if l.page != nil {
		out.Running, out.Waiting, out.ContextTokens = l.page.running, l.page.waiting, l.page.context
		age := time.Since(l.page.at)
		out.AgeMs = uint32(min(max(1, (age+time.Millisecond-1)/time.Millisecond), math.MaxUint32))
	}
	return out
}

// read takes over what a bare engine's metrics page said of its load when it was
// asked at a time. A use of KV that it does not say stays as it was.
func (l *load) read(m *engine.Metrics, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	page := &reading{at: at, running: uint32(m.Running), waiting: uint32(m.Waiting)}
	if m.KVUsage >= 0 || l.report.KVTotal == 0 {
		l.report.KVUsed, l.report.KVTotal = usedBlocks(*m), uint32(m.KVBlocks)
	}
	if m.Running > 0 {
		page.context = uint64(l.report.KVUsed) * uint64(m.BlockSize)
	}
	same := l.page != nil && l.page.running == page.running && l.page.waiting == page.waiting
	l.page = page
	if !same || page.running+page.waiting > 0 { // what is booked since is in it
		l.signal()
	}
}

// unread forgets what a page said: the engine is gone.
func (l *load) unread() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.page = nil
}

// known reports whether there is a load to report.
func (l *load) known() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.bare || l.page != nil
}

// putBack returns what a report that did not reach the log had taken.
func (l *load) putBack(r *kvindex.Load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report.Accepted = joinBounded(r.Accepted, l.report.Accepted, &l.dropped)
	l.report.FirstToken = joinBounded(r.FirstToken, l.report.FirstToken, &l.dropped)
	l.report.Done = joinBounded(r.Done, l.report.Done, &l.dropped)
	l.report.Failed = joinBounded(r.Failed, l.report.Failed, &l.dropped)
}

// lost is how many entries were dropped because the log was away for long.
func (l *load) lost() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// appendBounded drops the oldest entry when the list is full.
func appendBounded[T any](list []T, v T, dropped *uint64) []T {
	if len(list) >= maxSamples {
		list = list[1:]
		*dropped++
	}
	return append(list, v)
}

func joinBounded[T any](older, newer []T, dropped *uint64) []T {
	all := append(append([]T(nil), older...), newer...)
	if cut := len(all) - maxSamples; cut > 0 {
		*dropped += uint64(cut)
		all = all[cut:]
	}
	return all
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// startedOnce reports whether the request has left the queue by its own first
// token.
func (r *request) startedOnce() bool {
	r.load.mu.Lock()
	defer r.load.mu.Unlock()
	return r.announced
}

// blame notes that the engine failed the request, for its end.
func (r *request) blame() {
	r.load.mu.Lock()
	defer r.load.mu.Unlock()
	r.failed = true
}

// requeue changes the predicted work of a request that has not started.
func (r *request) requeue(uncached uint64) {
	l := r.load
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.started || r.over {
		return
	}
	l.queued += uncached - r.uncached
	r.uncached = uncached
	l.signal()
}
