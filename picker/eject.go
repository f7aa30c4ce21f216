package picker

import (
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/kvindex"
)

// ejected is the word in a plan for a worker that failed too often.
const ejected = "ejected"

// Bounds of what ejection looks at. A rate says something from minOutcomes on, over
// the present window and the one before it.
const (
	minOutcomes = 20
	rateWindow  = 10 * time.Second
)

// Blame is why a request's failure is held against an endpoint.
type Blame uint8

// The blames. A client that leaves and statuses below 500 are none.
const (
	// BlameStatus: it answered, or the gateway answered for it, with status 500, 502,
	// 503 or 504.
	BlameStatus Blame = iota
	// BlameConnect: another endpoint served what was meant for it.
	BlameConnect
	// BlameEngine: its agent reports that the engine failed.
	BlameEngine
	// NumBlames is how many there are.
	NumBlames
)

// String is the blame's name in metrics.
func (b Blame) String() string { return [NumBlames]string{"status", "connect", "engine"}[b] }

// rules are what [Config] says of ejection.
type rules struct {
	after             int
	rate              float64
	first, most, ramp time.Duration
	penaltyMs         float64
}

// health is what a worker's answers say of it. A worker that fails too often is
// out until back; then it is let in with a price that falls to nothing over the
// ramp, so that its empty queue does not draw everything at once. Until it has
// served a request, one more failure sends it out again.
//
// It is pure: the times are given.
type health struct {
	row    int   // failures since the last success
	tally  tally // of the window that began at since
	before tally // of the window before
	since  time.Time
	times  int       // ejections that are not forgotten
	back   time.Time // zero if it was never out
	served bool      // since back
}

type tally struct{ failed, all int }

// out reports whether it is ejected at a time.
func (h *health) out(now time.Time) bool { return now.Before(h.back) }

// penaltyMs is what coming back costs it, ms.
func (h *health) penaltyMs(r *rules, now time.Time) float64 {
	since := now.Sub(h.back)
	if h.back.IsZero() || since < 0 || since >= r.ramp {
		return 0
	}
	return r.penaltyMs * (1 - float64(since)/float64(r.ramp))
}

// serve notes a request that was served. Late ones from before an ejection say
// nothing.
func (h *health) serve(now time.Time) {
	if h.out(now) {
		return
	}
	h.roll(now)
	h.tally.all++
	h.row, h.served = 0, true
}

// fail notes a failure, and reports whether it is one too many.
func (h *health) fail(r *rules, now time.Time) bool {
	if h.out(now) || r.after == 0 {
		return false
	}
	h.roll(now)
	h.tally.failed++
	h.tally.all++
	h.row++
	all, failed := h.tally.all+h.before.all, h.tally.failed+h.before.failed
	return h.row >= r.after || !h.back.IsZero() && !h.served ||
		r.rate > 0 && all >= minOutcomes && float64(failed) >= r.rate*float64(all)
}

// roll moves the windows on.
func (h *health) roll(now time.Time) {
	switch d := now.Sub(h.since); {
	case d < rateWindow && !h.since.IsZero():
		return
	case d < 2*rateWindow && !h.since.IsZero():
		h.before, h.since = h.tally, h.since.Add(rateWindow)
	default:
		h.before, h.since = tally{}, now
	}
	h.tally = tally{}
}

// eject sends it out: for first, and twice as long each time until most. An
// ejection is forgotten after as long a time in service.
func (h *health) eject(r *rules, now time.Time) {
	if !h.back.IsZero() {
		for good := now.Sub(h.back); h.times > 0 && good >= r.length(h.times); h.times-- {
			good -= r.length(h.times)
		}
	}
	h.times++
	h.back, h.served = now.Add(r.length(h.times)), false
	h.row, h.tally, h.before, h.since = 0, tally{}, tally{}, time.Time{}
}

// length is how long the n-th ejection takes.
func (r *rules) length(n int) time.Duration {
	d := r.first
	for ; n > 1 && d < r.most; n-- {
		d *= 2
	}
	return min(d, r.most)
}

// reborn ends an ejection: another life of the engine may be better. Failures in a
// row still count, so that one which dies again and again goes out.
func (h *health) reborn(now time.Time) {
	if h.out(now) {
		h.back = now
	}
}

// Answered notes that a request of this name was served well by an address: the
// whole answer was seen, with a status below 400. Workers whose agents report the
// ends of requests are not judged by it.
func (p *Pool) Answered(id, address string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.atFault(id, address); w != nil && !w.tells {
		w.health.serve(now)
	}
}

// Failed notes that an address answered a request of this name with one of the
// statuses of [BlameStatus]. An address that is not in the pool is ignored.
func (p *Pool) Failed(id, address string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.atFault(id, address); w != nil {
		p.blame(w, id, BlameStatus, now)
	}
}

// atFault is the worker that served a booking from an address; nil if several
// ranks share the address and the booking does not tell which it was.
func (p *Pool) atFault(id, address string) *worker {
	if b := p.bookings[id]; b.own() && b.decode.on != nil && b.decode.on.hello.Address == address {
		return b.decode.on
	}
	p.settle()
	if places := p.at(address); len(places) == 1 {
		return p.workers[places[0]]
	}
	return nil
}

// passedOver blames the worker that a booking is on: another one has the request.
func (p *Pool) passedOver(b *booking, now time.Time) {
	if b.own() && b.decode.on != nil {
		p.blame(b.decode.on, b.id, BlameConnect, now)
	}
}

// judge takes over what a worker's report says of ended requests.
func (p *Pool) judge(w *worker, l *kvindex.Load, now time.Time) {
	if len(l.Done) == 0 {
		return
	}
	w.tells = true
	for i := range l.Done {
		if !l.Done[i].Aborted {
			w.health.serve(now)
		}
	}
	for _, id := range l.Failed {
		p.blame(w, id, BlameEngine, now)
	}
}

// blame counts a failure of w, once for each request, and ejects w if that is too
// much and enough others are left.
func (p *Pool) blame(w *worker, id string, why Blame, now time.Time) {
	if id != "" && !p.blamed.add(xxh3.HashString(id)^tieKey(&Target{Worker: w.id, Rank: w.rank})) {
		return
	}
	p.counts.blamed[why]++
	w.failures++
	if !w.health.fail(&p.rules, now) {
		return
	}
	if !p.spares(w, now) {
		p.counts.kept++
		return
	}
	w.health.eject(&p.rules, now)
	p.counts.ejections++
	if !slices.Contains(p.shaky, w) {
		p.shaky = append(p.shaky, w)
	}
}

// spares reports whether w may go: of the workers of its role that are ready no
// more than the share are out then, and at least one is left.
func (p *Pool) spares(w *worker, now time.Time) bool {
	all, out := 1, 1
	for _, o := range p.workers {
		if o == w || o.hello.Role != w.hello.Role || !o.ready(now) {
			continue
		}
		all++
		if o.health.out(now) {
			out++
		}
	}
	return out < all && float64(out) <= p.config.EjectShare*float64(all)
}

// judged appends what ejection does to the prices at a time: a worker that is out is
// ruled out, or if nothing else is left has the last price of all.
func (p *Pool) judged(dst []Adjust, lastResort bool, now time.Time) []Adjust {
	p.shaky = slices.DeleteFunc(p.shaky, func(w *worker) bool {
		return w.gone || !now.Before(w.health.back.Add(p.rules.ramp))
	})
	for _, w := range p.shaky {
		a := Adjust{Worker: w.id, Rank: w.rank}
		switch {
		case !w.health.out(now):
			a.Ms = w.health.penaltyMs(&p.rules, now)
		case lastResort:
			a.Ms = MaxAdjustMs
		default:
			a.Exclude = ejected
		}
		dst = append(dst, a)
	}
	return dst
}

// recent remembers the last numbers that were added.
type recent struct {
	known map[uint64]struct{}
	ring  []uint64
	next  int
}

// maxRecent bounds what is remembered: the failures of one request come within
// seconds, by different ways.
const maxRecent = 1024

// add reports whether n is new, and remembers it.
func (r *recent) add(n uint64) bool {
	if _, ok := r.known[n]; ok {
		return false
	}
	if r.known == nil {
		r.known = make(map[uint64]struct{})
	}
	if len(r.ring) < maxRecent {
		r.ring = append(r.ring, n)
	} else {
		delete(r.known, r.ring[r.next])
		r.ring[r.next] = n
		r.next = (r.next + 1) % maxRecent
	}
	r.known[n] = struct{}{}
	return true
}

func (c Config) validateEjection(fault func(format string, args ...any)) {
	if c.EjectAfter < 0 || c.EjectAfter > 1000 {
		fault("ejectAfter: %d is not within 0 to 1000", c.EjectAfter)
	}
	if !(c.EjectRate >= 0 && c.EjectRate <= 1) {
		fault("ejectRate: %v is not within 0 to 1", c.EjectRate)
	}
	if c.EjectTime < time.Millisecond {
		fault("ejectTime: %v is less than 1ms", c.EjectTime)
	}
	if c.MaxEjectTime < c.EjectTime {
		fault("maxEjectTime: %v is less than ejectTime %v", c.MaxEjectTime, c.EjectTime)
	}
	if !(c.EjectShare >= 0 && c.EjectShare <= 1) {
		fault("ejectShare: %v is not within 0 to 1", c.EjectShare)
	}
	if !(c.ReturnMs >= 0 && c.ReturnMs <= maxPreferenceMs) {
		fault("returnMs: %v is not within 0 to %d", c.ReturnMs, maxPreferenceMs)
	}
	if c.ReturnTime < 0 {
		fault("returnTime: %v is negative", c.ReturnTime)
	}
}
