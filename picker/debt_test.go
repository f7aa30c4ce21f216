package picker

import (
	"testing"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// TestDebt: a worker that is given prefills faster than its decode steps leave time
// for is ruled out until the time has passed, and one that never gets a prefill does
// not owe it.
func TestDebt(t *testing.T) {
	c := testConfig()
	c.MaxQueueMs, c.SLOTPOTMs = 1000, 50
	p, now := NewPool(c, testTable()), epochStart()
	owner := kvindex.Owner{Worker: "w"}
	apply := func(r kvindex.Record) {
		r.Owner, r.Epoch, r.Term = owner, 1, 1
		p.Apply(&r, now)
	}
	apply(kvindex.Record{Kind: kvindex.KindHello, Hello: &kvindex.Hello{
		Address: "10.0.0.1:8000", Ready: true, Model: "m", Served: []string{"m"}, BlockSize: 16, LeaseMs: 1 << 30,
	}})
	apply(kvindex.Record{Kind: kvindex.KindLoad, Load: &kvindex.Load{Running: 10, ContextTokens: 50000}})
	pick := func(id string) Plan { return p.Pick(&Request{ID: id, Model: "m", ISL: 40000}, now) }
	owed := func() float64 { return p.Fleet(now).Endpoints[0].OwedMs }

	if plan := pick("a"); !plan.OK() || owed() < 1000 {
		t.Fatalf("plan %+v, owes %v ms", plan, owed())
	}
	p.Close("a", now)
	if owed() != 0 {
		t.Fatalf("owes %v ms of a prefill that it never got", owed())
	}
	pick("a")
	apply(kvindex.Record{Kind: kvindex.KindLoad, Load: &kvindex.Load{Running: 11, ContextTokens: 90000, FirstToken: []kvindex.Sample{{Booking: "a"}}}})
	all := owed()
	plan := pick("b")
	if plan.Reason != ReasonOverloaded || plan.RetryAfterMs < all-1 || plan.Costs[0].Excluded != outShare.String() {
		t.Fatalf("plan %+v, want it refused for the %v ms that the worker owes", plan, all)
	}
	now = now.Add(time.Duration(all) * time.Millisecond)
	if owed() < all/10 || owed() > 0.9*all { // it works it off in a part of the time
		t.Errorf("owes %v ms of %v after as long a time", owed(), all)
	}
	now = now.Add(time.Duration(all) * 20 * time.Millisecond)
	apply(kvindex.Record{Kind: kvindex.KindLoad, Load: &kvindex.Load{Running: 11, ContextTokens: 90000}})
	if plan := pick("c"); !plan.OK() {
		t.Errorf("plan %+v, want the worker", plan)
	}
}
