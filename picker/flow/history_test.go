package flow

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// history is a queue and its specification under the same random operations.
type history struct {
	t     *testing.T
	rng   *rand.Rand
	q     *Queue
	naive *naive
	now   time.Time
	next  int
	// fate counts how each request left; it may only do that once.
	fate map[string]string
}

func randomConfig(rng *rand.Rand) Config {
	pick := func(values ...int) int { return values[rng.IntN(len(values))] }
	return Config{
		MaxRequests: pick(1, 3, 20, 60), MaxBytes: int64(pick(1, 300, 5000)),
		BandRequests: pick(0, 0, 5, 15), BandBytes: int64(pick(0, 0, 500)),
		Quantum: pick(9, 50, 100, 1000), MaxTenants: pick(1, 2, 3, 100),
		Burst: time.Duration(pick(0, 0, 30, 200, 5000)) * time.Millisecond,
		TTL:   time.Duration(pick(0, 50, 500)) * time.Millisecond, ShedHopeless: rng.IntN(2) == 0,
	}
}

func (h *history) item() Item {
	h.next++
	rng := h.rng
	it := Item{
		ID:     fmt.Sprint(h.next),
		Tenant: string(rune('a' + min(rng.IntN(5), rng.IntN(5)))),
		Lane:   []string{"x", "y", "z"}[min(rng.IntN(3), rng.IntN(3))], Priority: rng.IntN(4) - 1,
		Arrived: h.now.Add(-time.Duration(rng.IntN(20)) * time.Millisecond), Cost: rng.IntN(50) * rng.IntN(50), Bytes: int64(rng.IntN(60)),
	}
	if rng.IntN(3) == 0 {
		it.Deadline = h.now.Add(time.Duration(rng.IntN(200)-10) * time.Millisecond)
	}
	if rng.IntN(10) == 0 {
		it.Expires = h.now.Add(time.Duration(rng.IntN(100)-5) * time.Millisecond)
	}
	if rng.IntN(20) == 0 {
		it.Bytes = int64(rng.IntN(1000))
	}
	if rng.IntN(50) == 0 && h.next > 1 {
		h.next--
		it.ID = fmt.Sprint(1 + rng.IntN(h.next))
	}
	return it
}

func (h *history) gone(id, how string) {
	if before, ok := h.fate[id]; ok {
		h.t.Fatalf("%s left by %s after %s", id, how, before)
	}
	h.fate[id] = how
}

func (h *history) push() {
	it := h.item()
	if h.fate[it.ID] != "" {
		return // an ID that left is not used again here
	}
	got, out := h.q.Push(it, h.now)
	it.Cost = max(1, it.Cost)
	want, wantOut := h.naive.push(it, h.now)
	if want == "full" && (got == ReasonFull || got == ReasonBytes) {
		got = want
	}
	if got != want {
		h.t.Fatalf("push %+v: got %q, want %q", it, got, want)
	}
	h.same("pushed out", out, wantOut)
	if got != "" && got != ReasonDuplicate {
		h.gone(it.ID, string(got))
	}
}

func (h *history) same(what string, got, want []Shed) {
	slices.SortFunc(got, byID)
	slices.SortFunc(want, byID)
	for _, s := range got {
		h.gone(s.ID, string(s.Reason))
	}
	for i := range got {
		got[i].Cost = max(1, got[i].Cost)
	}
	if !slices.Equal(got, want) {
		h.t.Fatalf("%s:\ngot  %v\nwant %v", what, got, want)
	}
}

func byID(a, b Shed) int {
	if a.ID < b.ID {
		return -1
	}
	return 1
}

// passed is a request that need not wait.
func (h *history) passed() {
	it := h.item()
	h.next--
	h.naive.age(it.Lane, h.now)
	if got, want := h.q.Over(&Item{Tenant: it.Tenant, Lane: it.Lane}, h.now), h.naive.over(it.Lane, it.Tenant); got != want {
		h.t.Fatalf("tenant %s is over its share in lane %s: %t, want %t", it.Tenant, it.Lane, got, want)
	}
	h.q.Passed(&it, h.now)
	h.naive.use(it.Lane, it.Tenant, max(1, it.Cost))
}

func (h *history) cancel() {
	id := fmt.Sprint(max(1, h.next-h.rng.IntN(40)))
	got, want := h.q.Cancel(id), h.naive.cancel(id)
	if got != want {
		h.t.Fatalf("cancel %s: got %t, want %t", id, got, want)
	}
	if got {
		h.gone(id, "cancel")
	}
}

// pump lets each lane have room for some.
func (h *history) pump() {
	room := map[string]int{"x": h.rng.IntN(4), "y": h.rng.IntN(3), "z": h.rng.IntN(2)}
	trial := func(log *[]string) func(*Item) bool {
		left := map[string]int{}
		return func(it *Item) bool {
			ok := left[it.Lane] < room[it.Lane]
			left[it.Lane]++
			*log = append(*log, fmt.Sprint(it.ID, ok))
			return ok
		}
	}
	var got, want []string
	n, m := h.q.Pump(h.now, trial(&got)), h.naive.pump(h.now, trial(&want))
	if n != m || !slices.Equal(got, want) {
		h.t.Fatalf("pump: got %d %v\nwant %d %v", n, got, m, want)
	}
	for _, s := range got {
		var id string
		var ok bool
		if i := len(s) - len("true"); s[i:] == "true" {
			id, ok = s[:i], true
		}
		if ok {
			h.gone(id, "released")
		}
	}
}

// over compares whose tenants have had their share.
func (h *history) over() {
	for _, w := range h.naive.list {
		if a := h.naive.flows[w.flow()]; h.q.Over(&w.Item, h.now) != a.heavy {
			h.t.Fatalf("%s: over its share %t, want %t", w.ID, !a.heavy, a.heavy)
		}
	}
}

// check compares what both say of themselves.
func (h *history) check() {
	h.over()
	l, cost := h.naive.sum(func(*waiting) bool { return true })
	if h.q.Len() != l.n || h.q.Bytes() != l.bytes {
		h.t.Fatalf("%d requests of %d bytes, want %v", h.q.Len(), h.q.Bytes(), l)
	}
	c := h.q.config
	if l.n > c.MaxRequests || l.bytes > c.MaxBytes {
		h.t.Fatalf("over the limit: %v", l)
	}
	bands := h.q.Bands(nil)
	for i, b := range bands {
		want, bandCost := h.naive.sum(func(w *waiting) bool { return w.Priority == b.Priority })
		if b.Requests != want.n || b.Bytes != want.bytes || b.Cost != bandCost || i > 0 && b.Priority >= bands[i-1].Priority {
			h.t.Fatalf("band %+v, want %v of %d tokens", b, want, bandCost)
		}
		if c.BandRequests > 0 && b.Requests > c.BandRequests || c.BandBytes > 0 && b.Bytes > c.BandBytes {
			h.t.Fatalf("band over its limit: %+v", b)
		}
		cost -= bandCost
	}
	if cost != 0 {
		h.t.Fatalf("%d tokens are in no band", cost)
	}
}

// TestHistory: a queue does what its specification does, in 100,000 random
// operations of every kind. The limits hold after each, and every request leaves
// once.
func TestHistory(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const runs, operations = 100, 1000
	for range runs {
		c := randomConfig(rng)
		h := &history{t: t, rng: rng, q: New(c), naive: newNaive(c), now: time.Unix(1000, 0), fate: map[string]string{}}
		for range operations {
			h.now = h.now.Add(time.Duration(rng.IntN(3)) * time.Millisecond)
			switch n := rng.IntN(20); {
			case n < 1:
				h.passed()
			case n < 14:
				h.push()
			case n < 16:
				h.cancel()
			case n < 17:
				h.same("expired", h.q.Expire(h.now), h.naive.expire(h.now))
			default:
				h.pump()
			}
			h.check()
		}
		h.end()
	}
}

// end empties the queue; nothing may be left of anybody.
func (h *history) end() {
	for h.q.Len() > 0 {
		h.pump()
	}
	h.check()
	for i := range h.next {
		if id := fmt.Sprint(i + 1); h.fate[id] == "" {
			h.t.Fatalf("%s never left", id)
		}
	}
	if q := h.q; len(q.byID)+len(q.bands)+len(q.expiry.list) != 0 {
		h.t.Fatalf("left in an empty queue: %d, %d, %d", len(q.byID), len(q.bands), len(q.expiry.list))
	}
}
