package picker

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// naiveSessions is every note ever made, in order.
type naiveSessions struct {
	max   int
	ttl   time.Duration
	notes []session
}

// find looks for the key among the max most recently noted ones.
func (n *naiveSessions) find(key sessionKey, now time.Time) (kvindex.WorkerID, uint16, bool) {
	seen := map[sessionKey]bool{}
	for i := len(n.notes) - 1; i >= 0 && len(seen) < n.max; i-- {
		e := &n.notes[i]
		if e.key == key && !seen[key] {
			return e.worker, e.rank, now.Sub(e.used) < n.ttl
		}
		seen[e.key] = true
	}
	return "", 0, false
}

func (n *naiveSessions) live(now time.Time) int {
	live := 0
	for k := range uint64(20) {
		if _, _, ok := n.find(sessionKey{1, k}, now); ok {
			live++
		}
	}
	return live
}

func TestSessionsAgainstNaive(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for history := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, history))
		limit, ttl := 1+r.IntN(12), time.Duration(1+r.IntN(60))*time.Second
		s, n, now := newSessions(limit, ttl), naiveSessions{max: limit, ttl: ttl}, epochStart()
		for step := range 200 {
			now = now.Add(time.Duration(r.IntN(8)) * time.Second)
			key := sessionKey{1, r.Uint64N(20)}
			if r.IntN(2) == 0 {
				worker, rank := kvindex.WorkerID(fmt.Sprintf("w%d", r.IntN(5))), uint16(r.IntN(2))
				s.note(key, worker, rank, now)
				n.notes = append(n.notes, session{key: key, worker: worker, rank: rank, used: now})
			}
			w, rank, ok := s.find(key, now)
			nw, nrank, nok := n.find(key, now)
			if ok != nok || ok && (w != nw || rank != nrank) {
				t.Fatalf("seed %d history %d step %d: got %v/%d %v, want %v/%d %v", seed, history, step, w, rank, ok, nw, nrank, nok)
			}
			if len(s.byID) > limit {
				t.Fatalf("seed %d history %d step %d: %d sessions, limit %d", seed, history, step, len(s.byID), limit)
			}
			if got, want := s.live(now), n.live(now); got != want {
				t.Fatalf("seed %d history %d step %d: %d live, want %d", seed, history, step, got, want)
			}
		}
	}
}

// A session is known by its model, too, and none has no key.
func TestSessionKeys(t *testing.T) {
	a := keyOf(&Request{Model: "m", Session: "s"})
	if a == (sessionKey{}) || a != keyOf(&Request{Model: "m", Session: "s", ID: "x"}) {
		t.Errorf("key %v", a)
	}
	if a == keyOf(&Request{Model: "n", Session: "s"}) || a == keyOf(&Request{Model: "m", Session: "t"}) {
		t.Error("two sessions have one key")
	}
	if k := keyOf(&Request{Model: "m"}); k != (sessionKey{}) {
		t.Errorf("no session has key %v", k)
	}
}

// A request of a known session, and the shadow of an ejected worker, cost no memory.
func TestSessionAllocatesNothing(t *testing.T) {
	p := busyPool(20)
	req := &Request{ID: "r", Model: "m", ISL: 1000, Session: "s"}
	p.Pick(req, epochStart())
	for i := range 5 {
		p.Failed(fmt.Sprintf("f%d", i), p.workers[3].hello.Address, epochStart())
	}
	if len(p.shaky) != 1 {
		t.Fatalf("%d workers are ejected", len(p.shaky))
	}
	if n := testing.AllocsPerRun(100, func() { p.decide(req, epochStart()) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := len(p.picking.req.Adjust); n != 2 {
		t.Errorf("%d adjustments", n)
	}
}
