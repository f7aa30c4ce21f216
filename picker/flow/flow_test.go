package flow

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestShares: of tenants that wait all the time, none gets more than another by a
// quantum and one request, whatever their requests cost and however many they have,
// at any moment.
func TestShares(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		c := DefaultConfig()
		c.MaxRequests, c.MaxBytes, c.TTL, c.Quantum = 1<<20, 1<<40, 0, 1+rng.IntN(2000)
		q, now := New(c), time.Unix(0, 0)
		tenants, most := 2+rng.IntN(6), 1+rng.IntN(5000)
		sizes := make([]int, tenants)
		for i := range sizes {
			sizes[i] = 1 + rng.IntN(most) // one tenant's requests may be far larger than another's
		}
		n := 0
		push := func(tenant int) {
			n++
			r, out := q.Push(Item{ID: fmt.Sprint(n), Tenant: fmt.Sprint(tenant), Cost: 1 + rng.IntN(sizes[tenant])}, now)
			if r != "" || len(out) > 0 {
				t.Fatalf("refused: %s, %d pushed out", r, len(out))
			}
		}
		for i := range tenants {
			for range 2 + rng.IntN(3) {
				push(i)
			}
		}
		got := make([]int, tenants)
		for range 3000 {
			served := -1
			q.Pump(now, func(it *Item) bool {
				if served >= 0 {
					return false
				}
				_, _ = fmt.Sscan(it.Tenant, &served)
				got[served] += it.Cost
				return true
			})
			push(served) // so that it never runs out
			for i := range got {
				for j := range got {
					if d := got[i] - got[j]; d >= c.Quantum+most {
						t.Fatalf("tenant %d is %d tokens ahead of %d; quantum %d, largest request %d", i, d, j, c.Quantum, most)
					}
				}
			}
		}
	}
}

// TestStrict: nothing is released while something of a higher band and the same
// lane waits, and what no lane holds up is released.
func TestStrict(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	q, now := New(DefaultConfig()), time.Unix(0, 0)
	waiting := map[string]Item{}
	for i := range 20_000 {
		it := Item{ID: fmt.Sprint(i), Tenant: fmt.Sprint(rng.IntN(4)), Lane: fmt.Sprint(rng.IntN(3)), Priority: rng.IntN(5), Arrived: now, Cost: rng.IntN(20_000)}
		if r, _ := q.Push(it, now); r == "" {
			waiting[it.ID] = it
		}
		if rng.IntN(5) > 0 {
			continue
		}
		room := rng.IntN(10)
		held := map[string]bool{}
		q.Pump(now, func(it *Item) bool {
			if held[it.Lane] {
				t.Fatalf("%s is offered although its lane is held up", it.ID)
			}
			for _, w := range waiting {
				if w.Lane == it.Lane && w.Priority > it.Priority {
					t.Fatalf("%s of band %d is offered while %s of band %d waits", it.ID, it.Priority, w.ID, w.Priority)
				}
			}
			if room == 0 {
				held[it.Lane] = true
				return false
			}
			room--
			delete(waiting, it.ID)
			return true
		})
		if room > 0 && q.Len() > 0 {
			t.Fatalf("%d wait although there is room for %d more", q.Len(), room)
		}
	}
}

// TestNewcomers: a tenant whose requests come one by one, each after the last one
// left, does not keep out those that wait.
func TestNewcomers(t *testing.T) {
	q, now := New(DefaultConfig()), time.Unix(0, 0)
	push := func(id, tenant string, cost int) { q.Push(Item{ID: id, Tenant: tenant, Cost: cost}, now) }
	for i := range 3 {
		push(fmt.Sprint("big", i), "big", 100_000)
	}
	push("small0", "small", 10)
	small := 0
	for q.Has("big2") {
		one := true
		q.Pump(now, func(*Item) bool {
			defer func() { one = false }()
			return one
		})
		if !q.Has(fmt.Sprint("small", small)) {
			small++
			push(fmt.Sprint("small", small), "small", 10)
		}
		if small > 1000 {
			t.Fatal("the other tenant is kept out")
		}
	}
}

// TestScript runs testdata/*.txt. Times are ms, from 0. Commands:
//
//	config KEY=VALUE...                      settings; the queue starts empty
//	push ID [tenant=T] [lane=L] [priority=P] [cost=N] [bytes=N] [deadline=MS] [expires=MS]
//	pump [room=N] [held=LANE[,LANE]]         releases up to N, by default all
//	passed ID [...]                          as push: it was released without waiting
//	over ID [...]                            whether its tenant is over its share
//	cancel ID
//	at MS                                    moves the clock and expires
//	ahead [...]                              as push: what would be ahead of it, and the wait
//	state
func TestScript(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{q: New(DefaultConfig()), now: time.UnixMilli(0)}
		datadriven.RunTest(t, path, s.command)
	})
}

type script struct {
	q   *Queue
	now time.Time
}

func (s *script) command(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "config":
		return s.configure(t, d)
	case "push":
		it := s.item(t, d)
		r, out := s.q.Push(it, s.now)
		if r == "" {
			r = "queued"
		}
		return it.ID + " " + string(r) + "\n" + left(out)
	case "pump":
		return s.pump(t, d)
	case "passed":
		it := s.item(t, d)
		s.q.Passed(&it, s.now)
		return ""
	case "over":
		it := s.item(t, d)
		return fmt.Sprintln(s.q.Over(&it, s.now))
	case "cancel":
		return fmt.Sprintln(s.q.Cancel(d.CmdArgs[0].Key))
	case "at":
		var ms int64
		_, _ = fmt.Sscan(d.CmdArgs[0].Key, &ms)
		s.now = time.UnixMilli(ms)
		return left(s.q.Expire(s.now))
	case "ahead":
		it := s.item(t, d)
		wait, ok := s.q.Wait(&it, s.now)
		return fmt.Sprintf("ahead=%d wait=%v known=%t\n", s.q.Ahead(&it), wait.Round(time.Millisecond), ok)
	case "state":
		return s.state()
	}
	t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return ""
}

func (s *script) configure(t *testing.T, d *datadriven.TestData) string {
	c := DefaultConfig()
	for _, a := range d.CmdArgs {
		var n int
		_, _ = fmt.Sscan(a.Vals[0], &n)
		switch a.Key {
		case "requests":
			c.MaxRequests = n
		case "bytes":
			c.MaxBytes = int64(n)
		case "band-requests":
			c.BandRequests = n
		case "band-bytes":
			c.BandBytes = int64(n)
		case "quantum":
			c.Quantum = n
		case "tenants":
			c.MaxTenants = n
		case "burst":
			c.Burst = time.Duration(n) * time.Millisecond
		case "ttl":
			c.TTL = time.Duration(n) * time.Millisecond
		case "shed-hopeless":
			c.ShedHopeless = a.Vals[0] == "true"
		default:
			t.Fatalf("%s: unknown key %s", d.Pos, a.Key)
		}
	}
	if err := c.Validate(); err != nil {
		return err.Error() + "\n"
	}
	s.q, s.now = New(c), time.UnixMilli(0)
	return ""
}

func (s *script) item(t *testing.T, d *datadriven.TestData) Item {
	it := Item{ID: d.CmdArgs[0].Key, Arrived: s.now}
	for _, a := range d.CmdArgs[1:] {
		var n int
		_, _ = fmt.Sscan(a.Vals[0], &n)
		switch a.Key {
		case "tenant":
			it.Tenant = a.Vals[0]
		case "lane":
			it.Lane = a.Vals[0]
		case "priority":
			it.Priority = n
		case "cost":
			it.Cost = n
		case "bytes":
			it.Bytes = int64(n)
		case "deadline":
			it.Deadline = time.UnixMilli(int64(n))
		case "expires":
			it.Expires = time.UnixMilli(int64(n))
		default:
			t.Fatalf("%s: unknown key %s", d.Pos, a.Key)
		}
	}
	return it
}

func (s *script) pump(t *testing.T, d *datadriven.TestData) string {
	room := 1 << 30
	held := ""
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "room":
			_, _ = fmt.Sscan(a.Vals[0], &room)
		case "held":
			held = strings.Join(a.Vals, ",")
		default:
			t.Fatalf("%s: unknown key %s", d.Pos, a.Key)
		}
	}
	var out []string
	s.q.Pump(s.now, func(it *Item) bool {
		if room == 0 || held != "" && strings.Contains(held, it.Lane) {
			return false
		}
		room--
		out = append(out, it.ID)
		return true
	})
	return strings.Join(out, " ") + "\n"
}

func left(out []Shed) string {
	var b strings.Builder
	for _, s := range out {
		fmt.Fprintf(&b, "%s %s\n", s.ID, s.Reason)
	}
	return b.String()
}

func (s *script) state() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d requests, %d bytes", s.q.Len(), s.q.Bytes())
	if next, ok := s.q.NextExpiry(); ok {
		fmt.Fprintf(&b, ", next expiry at %d", next.UnixMilli())
	}
	b.WriteByte('\n')
	for _, w := range s.q.Bands(nil) {
		fmt.Fprintf(&b, "band %d: %d requests, %d bytes, %d tokens\n", w.Priority, w.Requests, w.Bytes, w.Cost)
	}
	return b.String()
}

func TestValidate(t *testing.T) {
	c := Config{MaxBytes: -1, BandRequests: -1, BandBytes: -1, Quantum: -1, Burst: -1, TTL: -1}
	err := c.Validate()
	for _, key := range []string{"maxRequests", "maxBytes", "bandRequests", "bandBytes", "quantum", "maxTenants", "burst", "ttl"} {
		if err == nil || !strings.Contains(err.Error(), key+":") {
			t.Errorf("want %s among the faults: %v", key, err)
		}
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the default is faulty: %v", err)
	}
}

// TestAllocations: a queue that has seen as much before takes and gives without
// allocating.
func TestAllocations(t *testing.T) {
	q, now := New(DefaultConfig()), time.Unix(0, 0)
	items := make([]Item, 64)
	for i := range items {
		items[i] = Item{ID: fmt.Sprint(i), Tenant: fmt.Sprint(i % 7), Lane: fmt.Sprint(i % 2), Priority: i % 3, Arrived: now, Cost: i * 1000, Bytes: 10}
	}
	all := func(*Item) bool { return true }
	cycle := func() {
		for i := range items {
			if r, _ := q.Push(items[i], now); r != "" {
				t.Fatal(r)
			}
		}
		q.Cancel("3")
		q.Pump(now, all)
	}
	cycle()
	if n := testing.AllocsPerRun(100, cycle); n > 0 {
		t.Errorf("%v allocations a cycle of %d requests", n, len(items))
	}
}

func BenchmarkPushPump(b *testing.B) {
	tenants := make([]string, 50)
	for i := range tenants {
		tenants[i] = fmt.Sprint(i)
	}
	for _, waiting := range []int{10, 1000, 4000} {
		b.Run(fmt.Sprint(waiting), func(b *testing.B) {
			q, now := New(DefaultConfig()), time.Unix(0, 0)
			push := func(id string, i int) {
				q.Push(Item{ID: id, Tenant: tenants[i%len(tenants)], Arrived: now, Cost: 1000 + i%7000, Bytes: 100}, now)
			}
			for i := range waiting {
				push(fmt.Sprint(i), i)
			}
			room, id := 0, ""
			try := func(it *Item) bool {
				room--
				if room >= 0 {
					id = it.ID
				}
				return room >= 0
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				room = 1
				q.Pump(now, try)
				push(id, i)
			}
		})
	}
}

// TestWaitStandstill: where nothing is released for long, the predicted wait grows to
// its bound and stays there.
func TestWaitStandstill(t *testing.T) {
	c := DefaultConfig()
	c.TTL = 0
	q, now := New(c), time.Unix(1000, 0)
	for i := range 100 {
		q.Push(Item{ID: fmt.Sprint(i), Arrived: now, Cost: 1000}, now)
	}
	q.Pump(now, func(*Item) bool { return false })
	now = now.Add(time.Second)
	first := true
	q.Pump(now, func(*Item) bool { defer func() { first = false }(); return first })
	last := time.Duration(0)
	for range 200 {
		now = now.Add(time.Minute)
		q.Pump(now, func(*Item) bool { return false })
		wait, ok := q.Wait(&Item{ID: "new", Cost: 10}, now)
		if !ok {
			break // forgotten
		}
		if wait < last || wait > maxWait {
			t.Fatalf("%v after %v", wait, last)
		}
		last = wait
	}
	if last != maxWait {
		t.Errorf("%v at last, want %v", last, maxWait)
	}
}
