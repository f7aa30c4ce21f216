package picker

import (
	"math"
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
	fleet   Fleet     // what holds for all of them; its Endpoints are not used
	turn    uint64
	swept   time.Time
	counts  counts

	// board is what a pick reads, lines and clocks say what of it changes with the
	// time; all have the workers' order. moved says that this is out of date, touched
	// which workers' figures are.
	board   board
	lines   []line
	clocks  []clock
	moved   bool
	touched []*worker
	// addresses are the places of each address; nil until it is asked for.
	addresses map[string][]int32
	picking   picking
	base      time.Time // of the clocks

	// learned is what was learned of each kind of workers, at learnedAt.
	learned   []ClassStats
	learnedAt time.Time

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
	seq        uint64  // of the last announcement
	typical    float64 // uncached tokens of a prompt

	sessions sessions
	rules    rules
	shaky    []*worker // ejected or coming back
	blamed   recent    // failures that were counted
	// adjusted is the request as it was decided, if the pool added something to it;
	// resorted says that only ejected workers were left.
	adjusted Request
	resorted bool
}

// counts only grow.
type counts struct {
	picked, refused, expired, unknownCloses, replaced, fenced uint64
	announced, unsent, heard, late, clashes, overflow, lapsed uint64
	handOffs                                                  [NumHandOffs]uint64
	ejections, kept, resorted                                 uint64
	blamed                                                    [NumBlames]uint64
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
	p := &Pool{
		config: config, table: table, typical: typicalTokens, bookings: make(map[string]*booking), outgoing: make(chan struct{}, 1),
		board: board{seats: []int32{}},
		fleet: Fleet{
			Policy: config.Policy, Alpha: config.Alpha, ChunkTokens: config.ChunkTokens,
			Transfer: table.Transfer.Scaled(1 / config.TimeScale), AdapterMs: config.AdapterMs / config.TimeScale,
			Fallbacks: config.Fallbacks, MaxRequests: config.MaxRequests, MaxQueueMs: config.MaxQueueMs / config.TimeScale, MaxKV: config.MaxKV,
			MaxDelay: config.MaxDelay, Links: Links{Domain: config.DomainBandwidth, Rack: config.RackBandwidth, Far: config.FarBandwidth},
			SLO:    SLO{TTFTMs: config.SLOTTFTMs / config.TimeScale, TPOTMs: config.SLOTPOTMs / config.TimeScale},
			MissMs: config.MissMs / config.TimeScale,
		},
	}
	p.picking.board = &p.board
	p.sessions = newSessions(config.MaxSessions, config.SessionTTL)
	if config.SessionMs == 0 {
		p.sessions.max = 0
	}
	p.rules = rules{
		after: config.EjectAfter, rate: config.EjectRate, first: config.EjectTime, most: config.MaxEjectTime,
		ramp: config.ReturnTime, penaltyMs: config.ReturnMs / config.TimeScale,
	}
	return p
}

// keptCosts is how many candidates the plan of a pick lists at most.
const keptCosts = 16

// Pick chooses an endpoint for the request and books it there under the plan's
// Request. It sets no field of req: Turn is the pool's own. A booking of the
// same name that is still open is closed first. The caller closes the booking
// when the request ends, however it ends ([Pool.Close]).
//
// The plan is that of the function [Pick] for [Pool.Fleet], but for the Costs that
// it leaves out, and for what the pool adjusts by itself: it prefers the worker of
// the request's session, and avoids workers that fail.
func (p *Pool) Pick(req *Request, now time.Time) Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide(req, now)
	plan := p.picking.plan(keptCosts)
	if !plan.OK() {
		p.counts.refused++
		return plan
	}
	p.turn++
	p.counts.picked++
	p.counts.handOffs[p.picking.choice.handOff]++
	if p.resorted {
		p.counts.resorted++
	}
	p.book(req, &plan, now)
	return plan
}

// Explain is the plan that [Pool.Pick] would make now, with all candidates;
// nothing is booked.
func (p *Pool) Explain(req *Request, now time.Time) Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide(req, now)
	return p.picking.plan(math.MaxInt)
}

func (p *Pool) decide(req *Request, now time.Time) {
	p.sweep(now)
	p.refresh(now)
	p.resorted = false
	if req.Session == "" && len(p.shaky) == 0 {
		p.decideFor(req)
		return
	}
	p.decideFor(p.adjust(req, false, now))
	if p.picking.choice.target >= 0 || len(p.shaky) == 0 {
		return
	}
	switch p.picking.choice.reason {
	case ReasonNoEndpoint, ReasonSubset:
		p.decideFor(p.adjust(req, true, now)) // rather one that fails than none
		p.resorted = p.picking.choice.target >= 0
	default: // nothing that an ejection has to do with
	}
}

// adjust is the request with what the pool adds to the prices: its session, the
// workers that failed. The caller's request stays as it is.
func (p *Pool) adjust(req *Request, lastResort bool, now time.Time) *Request {
	list := p.adjusted.Adjust[:0]
	list = append(list, req.Adjust...)
	if req.Session != "" {
		if w, rank, ok := p.sessions.find(keyOf(req), now); ok {
			list = append(list, Adjust{Worker: w, Rank: rank, Ms: -p.config.SessionMs / p.config.TimeScale})
		}
	}
	p.adjusted = *req
	p.adjusted.Adjust = p.judged(list, lastResort, now)
	return &p.adjusted
}

func (p *Pool) decideFor(req *Request) {
	k := &p.picking
	k.begin(req, &p.fleet, p.turn)
	if req.HasSubset {
		for _, a := range req.Subset {
			for _, i := range p.at(a) {
				k.in[i] = true
			}
		}
	}
	k.decide()
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
	if req.Session != "" {
		b.session = keyOf(req)
		p.sessions.note(b.session, plan.Decode.Worker, plan.Decode.Rank, now)
	}
	prefill := &b.decode
	if plan.Prefill != nil {
		prefill = &b.prefill
	}
	if req.Model != "" {
		prefill.uncached, prefill.cached = max(1, plan.ISL-plan.Cached), plan.Cached
		p.note(prefill.uncached)
	}
	b.decode.place(p.workers[p.picking.choice.target], now)
	if plan.Prefill != nil {
		b.prefill.place(p.workers[p.picking.choice.from], now)
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
	p.refresh(now)
	p.passedOver(b, now)
	places := p.at(address)
	if len(places) == 0 {
		b.decode.lift(now)
		p.announceEnd(b)
		return
	}
	w := p.workers[places[0]]
	p.sessions.note(b.session, w.id, w.rank, now)
	b.decode.move(w, b.isl, now)
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
	f := p.fleet
	f.Endpoints = make([]Endpoint, 0, len(p.workers))
	p.refresh(now)
	for _, w := range p.workers {
		f.Endpoints = append(f.Endpoints, w.endpoint(now))
	}
	return &f
}

// refresh brings the board up to date.
func (p *Pool) refresh(now time.Time) {
	p.settle()
	for _, w := range p.touched {
		w.touched = false
		if w.slot < len(p.workers) && p.workers[w.slot] == w {
			w.post()
		}
	}
	clear(p.touched)
	p.touched = p.touched[:0]
	ms := p.ms(now)
	candidates := p.board.candidates[:len(p.lines)]
	for i := range p.lines {
		l := &p.lines[i]
		if ms < l.from || ms >= l.to {
			*l = p.clocks[i].line(ms)
			candidates[i].out = p.clocks[i].standing(ms)
		}
		candidates[i].queue = l.a - l.b*ms
	}
	p.postShares(now)
}

// settle makes the board anew if workers came, left or changed.
func (p *Pool) settle() {
	if !p.moved {
		return
	}
	p.moved, p.addresses = false, nil
	p.board.clear()
	p.lines = slices.Grow(p.lines[:0], len(p.workers))[:len(p.workers)]
	p.clocks = slices.Grow(p.clocks[:0], len(p.workers))[:len(p.workers)]
	for i, w := range p.workers {
		w.slot = i
		e := w.endpoint(p.base)
		p.board.add(&e, &p.fleet)
		w.post()
	}
}

// post writes the worker's figures on the board.
func (w *worker) post() {
	c := &w.pool.board.candidates[w.slot]
	c.figures(w.requests(), w.decoding(), int(w.load.ContextTokens), &w.pool.fleet, &w.timing)
	if w.pool.fleet.MaxKV > 0 {
		c.reserve(w.kvTokens(), w.pledged(), &w.pool.fleet)
	}
	w.pool.clocks[w.slot] = w.clock()
	w.pool.lines[w.slot] = line{} // on no stretch
}

// at are the places of an address.
func (p *Pool) at(address string) []int32 {
	if p.addresses == nil {
		p.addresses = make(map[string][]int32, len(p.workers))
		for i, w := range p.workers {
			p.addresses[w.hello.Address] = append(p.addresses[w.hello.Address], int32(i))
		}
	}
	return p.addresses[address]
}

// ms is a time on the scale of the clocks: milliseconds since the pool's first
// record.
func (p *Pool) ms(t time.Time) float64 { return float64(t.Sub(p.base)) * 1e-6 }

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
	p.settle()
	if w := p.offering(func(m *menu) bool {
		return slices.Contains(m.adapters, name) || slices.Contains(m.loading, name)
	}, notOut); w != nil {
		return ModelInfo{Base: w.hello.Model, LoRA: name, BlockSize: int(w.hello.BlockSize)}, true
	}
	if w := p.offering(func(m *menu) bool { return slices.Contains(m.served, name) }, outRelay); w != nil {
		return ModelInfo{Base: w.hello.Model, BlockSize: int(w.hello.BlockSize)}, true
	}
	return ModelInfo{}, false
}

// offering is the first worker that has a menu for which ok is true and is not
// ruled out as except; nil if there is none.
func (p *Pool) offering(ok func(*menu) bool, except exclusion) *worker {
	first := len(p.workers)
	for m := range p.board.menus {
		if !ok(&p.board.menus[m]) {
			continue
		}
		has := func(c candidate) bool { return c.menu == uint32(m) && (except == notOut || c.out != except) }
		if i := slices.IndexFunc(p.board.candidates[:first], has); i >= 0 {
			first = i
		}
	}
	if first == len(p.workers) {
		return nil
	}
	return p.workers[first]
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
