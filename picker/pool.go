package picker

import (
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// Pool is what one picker knows of its workers, and its own bookings there. It
// is safe for concurrent use. It has no clock: the times given to it should not
// go back by more than calls overlap.
type Pool struct {
	config Config
	table  timing.Table

	outgoing chan struct{} // see Outgoing

	mu      sync.Mutex
	workers []*worker // sorted by id, then rank
	fleet   Fleet     // the last snapshot; its memory is used again
	turn    uint64
	swept   time.Time
	counts  counts

	bookings map[string]*booking
	// Each booking is in one of these, ordered by when it is due.
	unreported list // our own, until the workers have reported every leg
	reported   list // our own and others', from then on
	ended      list // our own that wait for their close
	heard      list // of other replicas, until the workers have reported every leg
	past       list // of other replicas, over; and foretold ones
	shared     int  // bookings that are not our own
	spare      *booking
	pending    []announcement
	seq        uint64 // of the last announcement
}

// counts only grow.
type counts struct {
	picked, refused, expired, unknownCloses, replaced, fenced uint64
	announced, unsent, heard, late, clashes, overflow, lapsed uint64
}

// sweepEvery is how often leases are looked at, endedGrace how long a booking
// whose end was reported waits for its close.
const (
	sweepEvery = time.Second
	endedGrace = time.Minute
)

// NewPool is an empty pool. The config must be valid ([Config.Validate]); a
// default deployment that the table lacks stands for the table's first.
func NewPool(config Config, table timing.Table) *Pool {
	return &Pool{
		config: config, table: table, bookings: make(map[string]*booking), outgoing: make(chan struct{}, 1),
		fleet: Fleet{
			Policy: config.Policy, Alpha: config.Alpha, ChunkTokens: config.ChunkTokens,
			Transfer: table.Transfer.Scaled(1 / config.TimeScale), AdapterMs: config.AdapterMs / config.TimeScale,
			Fallbacks: config.Fallbacks, MaxRequests: config.MaxRequests, MaxQueueMs: config.MaxQueueMs / config.TimeScale,
		},
	}
}

// Pick chooses an endpoint for the request and books it there under the plan's
// Request. It sets no field of req: Turn is the pool's own. A booking of the
// same name that is still open is closed first. The caller closes the booking
// when the request ends, however it ends ([Pool.Close]).
func (p *Pool) Pick(req *Request, now time.Time) Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	plan := p.pick(req, now)
	if !plan.OK() {
		p.counts.refused++
		return plan
	}
	p.turn++
	p.counts.picked++
	p.book(req, &plan, now)
	return plan
}

// Explain is the plan that [Pool.Pick] would make now; nothing is booked.
func (p *Pool) Explain(req *Request, now time.Time) Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pick(req, now)
}

func (p *Pool) pick(req *Request, now time.Time) Plan {
	p.sweep(now)
	p.snapshot(now)
	r := *req
	r.Turn = p.turn
	return Pick(&r, &p.fleet)
}

func (p *Pool) book(req *Request, plan *Plan, now time.Time) {
	if old := p.bookings[plan.Request]; old != nil {
		if !old.shared() {
			p.counts.replaced++
			p.announceEnd(old)
		}
		old.lift(now)
		p.drop(old)
	}
	b := p.enter(plan.Request)
	b.isl, b.until = plan.ISL, now.Add(p.config.BookingLease)
	prefill := &b.decode
	if plan.Prefill != nil {
		prefill = &b.prefill
	}
	if req.Model != "" {
		prefill.uncached, prefill.cached = max(1, plan.ISL-plan.Cached), plan.Cached
	}
	b.decode.place(p.worker(plan.Decode.Worker, plan.Decode.Rank), now)
	if plan.Prefill != nil {
		b.prefill.place(p.worker(plan.Prefill.Worker, plan.Prefill.Rank), now)
	}
	p.announce(b, kvindex.BookingOpen)
	p.schedule(b, now)
}

// Served says which address the gateway really used. If that is another than
// the target, as after a fallback, the booking moves there. An address that is
// not in the pool leaves the booking on no worker. Unknown bookings are ignored.
func (p *Pool) Served(id, address string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.bookings[id]
	if !b.own() || b.decode.on != nil && b.decode.on.hello.Address == address {
		return
	}
	i := slices.IndexFunc(p.workers, func(w *worker) bool { return w.hello.Address == address })
	if i < 0 {
		b.decode.lift(now)
		p.announceEnd(b)
		return
	}
	b.decode.move(p.workers[i], b.isl, now)
	p.announce(b, kvindex.BookingAgain)
	p.schedule(b, now)
}

// Close ends a booking: the request was answered, refused, aborted or never
// sent. Closing twice does no harm; a name that is not booked is counted.
func (p *Pool) Close(id string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.bookings[id]
	if b == nil || b.shared() {
		p.counts.unknownCloses++
		return
	}
	p.announceEnd(b)
	b.lift(now)
	p.drop(b)
}

// Booked reports whether a booking of that name is open, here or at another
// replica that announced it.
func (p *Pool) Booked(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.bookings[id]
	return b != nil && b.phase == open
}

// Fleet is a snapshot of the pool. The caller may keep it; it must not change
// the lists of names in it.
func (p *Pool) Fleet(now time.Time) *Fleet {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweep(now)
	p.snapshot(now)
	f := p.fleet
	f.Endpoints = slices.Clone(f.Endpoints)
	return &f
}

func (p *Pool) snapshot(now time.Time) {
	p.fleet.Endpoints = p.fleet.Endpoints[:0]
	for _, w := range p.workers {
		p.fleet.Endpoints = append(p.fleet.Endpoints, w.endpoint(now))
	}
}

// ModelInfo is what a model name of a request stands for.
type ModelInfo struct {
	// Base is the base model and LoRA the adapter, empty for none: the namespace of
	// its blocks.
	Base, LoRA string
	// BlockSize is in tokens.
	BlockSize int
}

// Model says what a name stands for: the first worker that has it as an adapter
// decides, else the first that serves it. False if no worker has it.
func (p *Pool) Model(name string) (ModelInfo, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found *worker
	for _, w := range p.workers {
		if slices.Contains(w.hello.Adapters, name) {
			return ModelInfo{Base: w.hello.Model, LoRA: name, BlockSize: int(w.hello.BlockSize)}, true
		}
		if found == nil && w.hello.Role != kvindex.RoleRelay && slices.Contains(w.hello.Served, name) {
			found = w
		}
	}
	if found == nil {
		return ModelInfo{}, false
	}
	return ModelInfo{Base: found.hello.Model, BlockSize: int(found.hello.BlockSize)}, true
}

// sweep removes workers and bookings whose time is over, and announces anew
// those that no worker has reported.
func (p *Pool) sweep(now time.Time) {
	if since := now.Sub(p.swept); since >= 0 && since < sweepEvery {
		return
	}
	p.swept = now
	for i := 0; i < len(p.workers); {
		if w := p.workers[i]; now.Sub(w.heard) > w.lease+p.config.LeaseGrace {
			p.remove(i, now)
			continue
		}
		i++
	}
	for b := p.unreported.first; b != nil && !now.Before(b.due()); b = p.unreported.first {
		if now.Before(b.until) {
			p.announce(b, kvindex.BookingAgain)
			p.schedule(b, now)
			continue
		}
		p.expire(b, now)
	}
	for _, l := range [...]*list{&p.reported, &p.heard, &p.ended, &p.past} {
		for b := l.first; b != nil && !now.Before(b.until); b = l.first {
			p.expire(b, now)
		}
	}
}

func (p *Pool) expire(b *booking, now time.Time) {
	switch {
	case b.own():
		p.counts.expired++
		p.announceEnd(b)
	case b.phase == open:
		p.counts.lapsed++
	}
	b.lift(now)
	p.drop(b)
}
