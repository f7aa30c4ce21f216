package picker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// sharing is what really happens to the requests of several replicas, and what
// each replica has been told of it. Announcements come late and in any order,
// each worker's reports late and in order.
type sharing struct {
	t        *testing.T
	r        *rand.Rand
	now      time.Time
	replicas []*teller
	workers  []*reporter
	requests []*sharedRequest
}

// teller is a replica.
type teller struct {
	pool *Pool
	// news are announcements on their way here, reports those of each worker.
	news    []parcel
	reports [][]parcel
	// heard are the announcements that came, by request and leg; closed the requests
	// that are closed as far as is known here.
	heard  map[legName]kvindex.Record
	closed map[string]bool
	// accepted and done are what the reports that came said.
	accepted, done map[legName]bool
}

type parcel struct {
	record kvindex.Record
	sent   time.Time
}

type legName struct {
	id      string
	prefill bool
}

// reporter is a worker.
type reporter struct {
	role    kvindex.Role
	there   map[string]bool // requests, whether prefilled
	pending kvindex.Load
}

// sharedRequest is one request; at is where its legs are sent, -1 for none.
type sharedRequest struct {
	id      string
	by      int
	at      [2]int // decode, prefill
	arrived [2]bool
	over    bool
}

func newSharing(t *testing.T, r *rand.Rand) *sharing {
	s := &sharing{t: t, r: r, now: epochStart()}
	for _, role := range []kvindex.Role{kvindex.RoleDecode, kvindex.RoleDecode, kvindex.RoleAggregated, kvindex.RolePrefill} {
		s.workers = append(s.workers, &reporter{role: role, there: map[string]bool{}})
	}
	for n := range 3 {
		c := DefaultConfig()
		c.Replica = fmt.Sprintf("replica%d", n)
		p := &teller{
			pool: NewPool(c, timing.Known()), reports: make([][]parcel, len(s.workers)),
			heard: map[legName]kvindex.Record{}, closed: map[string]bool{}, accepted: map[legName]bool{}, done: map[legName]bool{},
		}
		for i, w := range s.workers {
			introduce(p.pool, i, w.role, 1, s.now)
		}
		s.replicas = append(s.replicas, p)
	}
	return s
}

// TestSharingAgainstNaive runs random histories of three replicas and compares,
// at each report that comes, a replica's count with the definition: the figures,
// and the legs that it knows to be on their way and that no report has named.
func TestSharingAgainstNaive(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for history := range uint64(20) {
		s := newSharing(t, rand.New(rand.NewPCG(seed, history)))
		for range 1500 {
			s.step()
			if t.Failed() {
				t.Fatalf("seed %d history %d", seed, history)
			}
		}
		s.finish()
		if t.Failed() {
			t.Fatalf("seed %d history %d", seed, history)
		}
	}
}

func (s *sharing) step() {
	s.now = s.now.Add(time.Duration(s.r.IntN(12)) * time.Millisecond)
	for i, p := range s.replicas {
		s.carry(i, p.pool.Outbox(nil))
	}
	i := s.r.IntN(len(s.workers))
	switch n := s.r.IntN(100); {
	case n < 20:
		s.pick(s.r.IntN(len(s.replicas)))
	case n < 35:
		s.arrive()
	case n < 42:
		s.prefill(i)
	case n < 50:
		s.end(i)
	case n < 58:
		s.close()
	case n < 70:
		s.report(i)
	default:
		s.deliver(s.r.IntN(len(s.replicas)))
	}
}

// carry sends a replica's announcements to the others.
func (s *sharing) carry(from int, records []kvindex.Record) {
	for _, r := range records {
		for to, p := range s.replicas {
			if to != from {
				p.news = append(p.news, parcel{r, s.now})
			}
		}
	}
}

func (s *sharing) pick(by int) {
	req := &sharedRequest{id: fmt.Sprintf("r%d", len(s.requests)), by: by, at: [2]int{-1, -1}}
	plan := s.replicas[by].pool.Pick(&Request{ID: req.id, Model: "m", ISL: 1 + s.r.IntN(9000)}, s.now)
	place := func(id kvindex.WorkerID) int { return int(id[3] - '0') }
	req.at[0] = place(plan.Decode.Worker)
	if plan.Prefill != nil {
		req.at[1] = place(plan.Prefill.Worker)
	}
	s.requests = append(s.requests, req)
}

// some is a random request for which ok is true; nil if there is none.
func (s *sharing) some(ok func(*sharedRequest) bool) *sharedRequest {
	var fit []*sharedRequest
	for _, q := range s.requests {
		if !q.over && ok(q) {
			fit = append(fit, q)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	return fit[s.r.IntN(len(fit))]
}

// arrive lets a leg reach its worker, or lets the gateway fall back first.
func (s *sharing) arrive() {
	leg := s.r.IntN(2)
	q := s.some(func(q *sharedRequest) bool { return q.at[leg] >= 0 && !q.arrived[leg] })
	if q == nil {
		return
	}
	if leg == 0 && s.r.IntN(4) == 0 {
		q.at[0] = s.r.IntN(3)
		s.replicas[q.by].pool.Served(q.id, fmt.Sprintf("10.0.0.%d:8000", q.at[0]), s.now)
		return
	}
	q.arrived[leg] = true
	w := s.workers[q.at[leg]]
	w.there[q.id] = false
	w.pending.Accepted = append(w.pending.Accepted, q.id)
}

func (s *sharing) prefill(i int) {
	w := s.workers[i]
	for _, id := range sortedKeys(w.there) {
		if !w.there[id] && s.r.IntN(2) == 0 {
			w.there[id] = true
			w.pending.FirstToken = append(w.pending.FirstToken, kvindex.Sample{Booking: id})
			return
		}
	}
}

func (s *sharing) end(i int) {
	w := s.workers[i]
	if ids := sortedKeys(w.there); len(ids) > 0 {
		id := ids[s.r.IntN(len(ids))]
		delete(w.there, id)
		w.pending.Done = append(w.pending.Done, kvindex.Sample{Booking: id})
	}
}

// close ends a request for its replica, wherever it is.
func (s *sharing) close() {
	q := s.some(func(*sharedRequest) bool { return true })
	if q == nil {
		return
	}
	q.over = true
	s.replicas[q.by].pool.Close(q.id, s.now)
	s.replicas[q.by].closed[q.id] = true
}

func (s *sharing) report(i int) {
	w := s.workers[i]
	l := w.pending
	w.pending = kvindex.Load{}
	for _, prefilled := range w.there {
		if prefilled {
			l.Running++
			l.ContextTokens += 100
			continue
		}
		l.Waiting++
		l.QueuedTokens += 1000
	}
	for _, p := range s.replicas {
		record := kvindex.Record{Owner: kvindex.Owner{Worker: workerID(i)}, Epoch: 1, Term: 1, Kind: kvindex.KindLoad, Load: &l}
		p.reports[i] = append(p.reports[i], parcel{record, s.now})
	}
}

// deliver gives a replica some of what is on its way, and what is older than two
// seconds.
func (s *sharing) deliver(to int) {
	p := s.replicas[to]
	for range 1 + s.r.IntN(6) {
		if n := len(p.news); n > 0 {
			s.hear(to, s.r.IntN(n))
		}
	}
	for len(p.news) > 0 && s.now.Sub(p.news[0].sent) > 2*time.Second {
		s.hear(to, 0)
	}
	for i := range p.reports {
		for len(p.reports[i]) > 0 && (s.r.IntN(3) == 0 || s.now.Sub(p.reports[i][0].sent) > 2*time.Second) {
			r := p.reports[i][0].record
			p.reports[i] = p.reports[i][1:]
			p.pool.Apply(&r, s.now)
			s.told(p, i, r.Load)
			s.compare(to, i, r.Load)
		}
	}
}

func (s *sharing) hear(to, i int) {
	p := s.replicas[to]
	r := p.news[i].record
	p.news = slices.Delete(p.news, i, i+1)
	p.pool.Apply(&r, s.now)
	b := r.Booking
	if b.State == kvindex.BookingClosed {
		p.closed[b.ID] = true
		return
	}
	leg := legName{b.ID, b.Prefill}
	if old, ok := p.heard[leg]; !ok || old.Booking.Seq < b.Seq {
		p.heard[leg] = r
	}
}

func (s *sharing) told(p *teller, worker int, l *kvindex.Load) {
	prefill := s.workers[worker].role == kvindex.RolePrefill
	for _, id := range l.Accepted {
		p.accepted[legName{id, prefill}] = true
	}
	for _, f := range l.FirstToken {
		if !prefill {
			p.done[legName{f.Booking, true}] = true // the answer has begun: the prefill is over
		}
	}
	for _, d := range l.Done {
		p.done[legName{d.Booking, prefill}] = true
		if !prefill {
			p.done[legName{d.Booking, true}] = true
		}
	}
}

// compare counts worker i as the definition says, right after its report came.
func (s *sharing) compare(to, i int, l *kvindex.Load) {
	p := s.replicas[to]
	want := int(l.Running + l.Waiting)
	for _, q := range s.requests {
		if p.closed[q.id] {
			continue
		}
		for leg, prefill := range []bool{false, true} {
			name := legName{q.id, prefill}
			if p.accepted[name] || p.done[name] {
				continue
			}
			at := -1
			if q.by == to {
				at = q.at[leg]
			} else if r, ok := p.heard[name]; ok {
				at = int(r.Owner.Worker[3] - '0')
			}
			if at == i {
				want++
			}
		}
	}
	if got := p.pool.Fleet(s.now).Endpoints[i].Requests; got != want {
		s.t.Errorf("replica %d counts %d requests on worker %d, want %d", to, got, i, want)
	}
}

// finish: the first two replicas die; what they had booked is over on the third
// when its workers and its leases say so.
func (s *sharing) finish() {
	last := s.replicas[2]
	for i := range s.workers {
		for len(s.workers[i].there) > 0 {
			s.end(i)
		}
		s.report(i)
	}
	for _, q := range s.requests {
		if q.by == 2 && !q.over {
			last.pool.Close(q.id, s.now)
		}
	}
	s.now = s.now.Add(3 * time.Second)
	for i := range last.reports {
		for _, r := range last.reports[i] {
			last.pool.Apply(&r.record, s.now)
		}
	}
	for range 12 {
		s.now = s.now.Add(time.Second)
		last.pool.Stats(s.now)
	}
	st := last.pool.Stats(s.now)
	for _, w := range st.PerWorker {
		if w.Requests != 0 || w.QueueMs != 0 || w.QueuedTokens != 0 {
			s.t.Errorf("left over: %+v", w)
		}
	}
	if st.Clashes != 0 || st.Overflow != 0 {
		s.t.Errorf("at the end: %+v", st)
	}
}
