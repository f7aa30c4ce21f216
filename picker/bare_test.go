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

// bareHistory is a bare engine, what is on the way to it, and its page on the way back.
type bareHistory struct {
	t      *testing.T
	r      *rand.Rand
	pool   *Pool
	now    time.Time
	ours   []bareRequest // open
	direct int           // requests of other clients
	ended  int           // ours that were closed and still run
	n      int
}

type bareRequest struct {
	id             string
	booked, arrive time.Time
	included       bool // in a report's page, by its age
}

// TestBareAgainstNaive runs random histories of a bare engine with clients of its own.
// At each report the pool's count is the page's, and what was booked too late to be on
// it; a request that both have counts once.
func TestBareAgainstNaive(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for history := range uint64(50) {
		h := &bareHistory{t: t, r: rand.New(rand.NewPCG(seed, history)), pool: NewPool(testConfig(), testTable()), now: epochStart()}
		h.apply(&kvindex.Record{Kind: kvindex.KindHello, Hello: &kvindex.Hello{
			Address: "10.0.0.1:8000", Ready: true, Model: "m", Served: []string{"m"}, BlockSize: 16, LeaseMs: 60000, Bare: true,
		}})
		for range 400 {
			h.step()
			if t.Failed() {
				t.Fatalf("seed %d history %d", seed, history)
			}
		}
		h.finish()
	}
}

func (h *bareHistory) apply(r *kvindex.Record) {
	r.Owner, r.Epoch, r.Term = kvindex.Owner{Worker: "w0"}, 1, 1
	h.pool.Apply(r, h.now)
}

func (h *bareHistory) step() {
	h.now = h.now.Add(time.Duration(h.r.IntN(15)) * time.Millisecond)
	switch n := h.r.IntN(100); {
	case n < 35:
		h.n++
		id := fmt.Sprint("r", h.n)
		h.pool.Pick(&Request{ID: id, Model: "m", ISL: 1 + h.r.IntN(4000)}, h.now)
		way := time.Duration(h.r.IntN(int(onTheWay/time.Millisecond))) * time.Millisecond
		h.ours = append(h.ours, bareRequest{id: id, booked: h.now, arrive: h.now.Add(way)})
	case n < 65 && len(h.ours) > 0:
		h.end(h.r.IntN(len(h.ours)))
	case n < 75:
		h.direct += h.r.IntN(3)
	case n < 80:
		h.direct = 0
	case n < 85:
		h.ended = 0
	default:
		h.report()
	}
	h.check()
}

// end closes one of ours; now and then the engine goes on with it for a while.
func (h *bareHistory) end(i int) {
	h.pool.Close(h.ours[i].id, h.now)
	if h.r.IntN(4) == 0 && h.ours[i].arrive.Before(h.now) {
		h.ended++
	}
	h.ours = slices.Delete(h.ours, i, i+1)
}

// report reads the page, lets some time pass, and applies it.
func (h *bareHistory) report() {
	read, page := h.now, h.direct+h.ended
	for _, q := range h.ours {
		if !q.arrive.After(read) {
			page++
		}
	}
	waiting := h.r.IntN(page + 1)
	age := h.r.IntN(30)
	h.now = h.now.Add(time.Duration(age) * time.Millisecond)
	h.apply(&kvindex.Record{Kind: kvindex.KindLoad, Load: &kvindex.Load{
		Running: uint32(page - waiting), Waiting: uint32(waiting), ContextTokens: 100, AgeMs: uint32(age),
	}})
	included := 0
	for i := range h.ours {
		q := &h.ours[i]
		if q.included = q.included || q.booked.Before(read.Add(-onTheWay)); q.included {
			included++
		}
	}
	want := max(0, page-included) + len(h.ours)
	if got := h.count(); got != want || got < page {
		h.t.Errorf("a page of %d, %d of our %d in it: counted %d, want %d", page, included, len(h.ours), got, want)
	}
}

func (h *bareHistory) count() int { return h.pool.Stats(h.now).PerWorker[0].Requests }

func (h *bareHistory) check() {
	w := h.pool.workers[0]
	if w.open != len(h.ours) || w.requests() < w.open {
		h.t.Errorf("%d legs of %d bookings, %d requests", w.open, len(h.ours), w.requests())
	}
	if w.queue.tokens < 0 || w.queue.area < 0 || len(w.queue.legs) > w.open {
		h.t.Errorf("queue of %d legs with %d tokens", len(w.queue.legs), w.queue.tokens)
	}
}

func (h *bareHistory) finish() {
	for len(h.ours) > 0 {
		h.pool.Close(h.ours[0].id, h.now)
		h.ours = h.ours[1:]
	}
	h.direct, h.ended = 0, 0
	h.report()
	w := h.pool.workers[0]
	if h.count() != 0 || len(w.queue.legs) != 0 || w.queue.tokens != 0 || w.queue.area != 0 || w.queue.others != 0 {
		h.t.Errorf("at the end: %d requests, queue %+v", h.count(), w.queue)
	}
}

// TestBareReplicas: what another replica booked on a bare engine counts once too.
func TestBareReplicas(t *testing.T) {
	now := epochStart()
	pools := [2]*Pool{}
	for i := range pools {
		c := DefaultConfig()
		c.Replica = fmt.Sprint("p", i)
		pools[i] = NewPool(c, timing.Known())
	}
	all := func(r kvindex.Record) {
		r.Owner, r.Epoch, r.Term = kvindex.Owner{Worker: "w0"}, 1, 1
		for _, p := range pools {
			p.Apply(&r, now)
		}
	}
	hello := &kvindex.Hello{Address: "10.0.0.1:8000", Ready: true, Model: "m", Served: []string{"m"}, BlockSize: 16, LeaseMs: 60000, Bare: true}
	all(kvindex.Record{Kind: kvindex.KindHello, Hello: hello})
	carry := func() {
		for _, r := range pools[0].Outbox(nil) {
			pools[1].Apply(&r, now)
		}
	}
	want := func(what string, n int) {
		t.Helper()
		for i, p := range pools {
			if got := p.Stats(now).PerWorker[0].Requests; got != n {
				t.Errorf("%s: replica %d counts %d, want %d", what, i, got, n)
			}
		}
	}
	pools[0].Pick(&Request{ID: "a", Model: "m", ISL: 1000}, now)
	carry()
	want("booked", 1)
	now = now.Add(100 * time.Millisecond)
	all(kvindex.Record{Kind: kvindex.KindLoad, Load: &kvindex.Load{Running: 1, AgeMs: 5}})
	want("on the page", 1)
	now = now.Add(time.Minute)
	all(kvindex.Record{Kind: kvindex.KindLoad, Load: &kvindex.Load{Running: 1, AgeMs: 5}})
	carry()
	want("a minute later", 1)
	if !pools[0].Booked("a") || pools[0].Reports("a") {
		t.Error("nobody but its stream ends it")
	}
	pools[0].Close("a", now)
	carry()
	all(kvindex.Record{Kind: kvindex.KindLoad, Load: &kvindex.Load{AgeMs: 5}})
	want("closed", 0)
}
