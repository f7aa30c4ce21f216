package picker

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// TestOddRecords gives a pool records that no agent or picker would write, between
// picks of its own. Every booking has to be in a list that ends it, no count may
// fall below 0, every plan names a worker that is there or says why not, and in the
// end nothing is left.
func TestOddRecords(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range 40 {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		c := testConfig()
		c.Replica = "a"
		p, now := NewPool(c, testTable()), epochStart()
		for step := range 1500 {
			now = now.Add(time.Duration(r.IntN(400)) * time.Millisecond)
			id := fmt.Sprintf("r%d", r.IntN(20))
			switch r.IntN(8) {
			case 0:
				plan := p.Pick(&Request{ID: id, Model: []string{"m", "", "n"}[r.IntN(3)], ISL: int(odd(r, 1<<20))}, now)
				if plan.OK() && (math.IsNaN(plan.TTFTMs) || plan.TTFTMs < 0) {
					t.Fatalf("seed %d, round %d, step %d: plan %+v", seed, round, step, plan)
				}
			case 1:
				p.Close(id, now)
			case 2:
				p.Served(id, fmt.Sprintf("10.0.0.%d:8000", r.IntN(3)), now)
			default:
				p.Apply(oddRecord(r, id), now)
			}
			p.Outbox(nil)
			if fault := p.fault(now); fault != "" {
				t.Fatalf("seed %d, round %d, step %d: %s", seed, round, step, fault)
			}
		}
		for range 3 { // what expires may be announced, and lists are in the order of their entry
			now = now.Add(time.Hour)
			p.Stats(now)
		}
		if st := p.Stats(now); len(p.bookings) > 0 || p.shared != 0 {
			t.Fatalf("seed %d, round %d: in the end %d bookings, %d shared: %+v", seed, round, len(p.bookings), p.shared, st)
		}
	}
}

// fault is what is wrong with a pool.
func (p *Pool) fault(now time.Time) string {
	st := p.Stats(now)
	n := 0
	for _, l := range [...]*list{&p.unreported, &p.reported, &p.ended, &p.heard, &p.past} {
		n += l.n
	}
	if n != len(p.bookings) {
		return fmt.Sprintf("%d bookings, %d in lists", len(p.bookings), n)
	}
	for _, w := range p.workers {
		if w.open < 0 || w.shared < 0 || w.accepted < 0 || w.sharedAccepted < 0 || w.requests() < 0 || w.queue.tokens < 0 {
			return fmt.Sprintf("worker %+v", w)
		}
	}
	for _, w := range st.PerWorker {
		if math.IsNaN(w.QueueMs) || math.IsInf(w.QueueMs, 0) || w.QueueMs < 0 {
			return fmt.Sprintf("queue of %+v", w)
		}
	}
	return ""
}

// odd is a number that is mostly small, or at an end of what it may be.
func odd(r *rand.Rand, most uint64) uint64 {
	switch r.IntN(8) {
	case 0:
		return most
	case 1:
		return 0
	default:
		return r.Uint64N(min(most, 100))
	}
}

func oddRecord(r *rand.Rand, id string) *kvindex.Record {
	rec := &kvindex.Record{
		Owner: kvindex.Owner{
			Worker: kvindex.WorkerID([]string{"w0", "w1", "\x00\xff", ""}[r.IntN(4)]), Rank: uint16(r.IntN(8) / 7 * math.MaxUint16),
			Tier: kvindex.Tier(r.IntN(8) / 7),
		},
		Epoch: uint64(1 + r.IntN(20)/19), Term: uint64(1 + r.IntN(20)/19),
	}
	switch r.IntN(7) {
	case 0, 1:
		rec.Kind, rec.Hello = kvindex.KindHello, &kvindex.Hello{
			Address: fmt.Sprintf("10.0.0.%d:8000", r.IntN(3)), Role: kvindex.Role(odd(r, 255)), Ready: r.IntN(8) > 0, Model: "m",
			Served: []string{"m"}, BlockSize: uint32(odd(r, math.MaxUint32)), LeaseMs: uint32(odd(r, math.MaxUint32)),
		}
	case 2:
		rec.Kind, rec.Load = kvindex.KindLoad, &kvindex.Load{
			Running: uint32(odd(r, math.MaxUint32)), Waiting: uint32(odd(r, math.MaxUint32)), QueuedTokens: odd(r, math.MaxUint64),
			ContextTokens: odd(r, math.MaxUint64), KVUsed: uint32(odd(r, math.MaxUint32)), KVTotal: uint32(odd(r, math.MaxUint32)),
		}
		for range r.IntN(3) {
			rec.Load.Accepted = append(rec.Load.Accepted, id)
			rec.Load.FirstToken = append(rec.Load.FirstToken, kvindex.Sample{Booking: fmt.Sprintf("r%d", r.IntN(20))})
			rec.Load.Done = append(rec.Load.Done, kvindex.Sample{Booking: fmt.Sprintf("r%d", r.IntN(20))})
		}
	case 3:
		rec.Kind = kvindex.Kind(odd(r, 255))
	default:
		rec.Kind, rec.Booking = kvindex.KindBooking, &kvindex.Booking{
			ID: id, Replica: []string{"a", "b", "c", ""}[r.IntN(4)], Seq: odd(r, math.MaxUint64), State: kvindex.BookingState(odd(r, 255)),
			Cached: uint32(odd(r, math.MaxUint32)), Uncached: uint32(odd(r, math.MaxUint32)), LeaseMs: uint32(odd(r, math.MaxUint32)),
			Prefill: r.IntN(3) == 0,
		}
	}
	return rec
}
