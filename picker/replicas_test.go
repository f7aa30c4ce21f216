package picker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// TestReplicas runs testdata/replicas: the commands of TestPool on several pools,
// all of them or those in on=(...). send takes what a pool announces and numbers
// it; deliver gives numbers to a pool, in the order written.
func TestReplicas(t *testing.T) {
	datadriven.Walk(t, "testdata/replicas", func(t *testing.T, path string) {
		s := replicaScript{pools: map[string]*poolScript{}}
		datadriven.RunTest(t, path, s.run)
	})
}

type replicaScript struct {
	pools map[string]*poolScript
	sent  []kvindex.Record
}

func (s *replicaScript) run(t *testing.T, d *datadriven.TestData) string {
	if d.Cmd == "replicas" {
		for _, arg := range d.CmdArgs {
			c := testConfig()
			c.Replica = arg.Key
			s.pools[arg.Key] = &poolScript{pool: NewPool(c, testTable()), now: epochStart()}
		}
		return "ok"
	}
	at := 0
	if d.MaybeScanArgs(t, "at", &at) {
		for _, p := range s.pools {
			p.now = epochStart().Add(time.Duration(at) * time.Millisecond)
		}
	}
	on := sortedKeys(s.pools)
	if arg, ok := d.Arg("on"); ok {
		on = arg.Vals
	}
	var out strings.Builder
	for _, name := range on {
		p := s.pools[name]
		var text string
		switch d.Cmd {
		case "send":
			text = s.send(p)
		case "deliver":
			for _, arg := range d.CmdArgs {
				if n := atoi(arg.Key); n > len(s.sent) {
					d.Fatalf(t, "%d announcements were sent", len(s.sent))
				} else if n > 0 {
					p.pool.Apply(&s.sent[n-1], p.now)
				}
			}
			text = p.stats()
		default:
			text = p.run(t, d)
		}
		for line := range strings.Lines(text) {
			out.WriteString(name + ": " + line)
		}
	}
	return out.String()
}

func (s *replicaScript) send(p *poolScript) string {
	var out strings.Builder
	for _, r := range p.pool.Outbox(nil) {
		s.sent = append(s.sent, r)
		b := r.Booking
		fmt.Fprintf(&out, "%d: %s %s seq=%d", len(s.sent), [...]string{"open", "closed", "again"}[b.State], b.ID, b.Seq)
		if b.State != kvindex.BookingClosed {
			fmt.Fprintf(&out, " at %s cached=%d uncached=%d", name(Target{Worker: r.Owner.Worker, Rank: r.Owner.Rank}), b.Cached, b.Uncached)
			if b.Prefill {
				out.WriteString(" prefill")
			}
		}
		out.WriteByte('\n')
	}
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}

// TestOutgoing: one signal for what was made since the last look.
func TestOutgoing(t *testing.T) {
	c := testConfig()
	c.Replica = "a"
	p := NewPool(c, testTable())
	introduce(p, 0, kvindex.RoleAggregated, 1, epochStart())
	select {
	case <-p.Outgoing():
		t.Error("a signal for nothing")
	default:
	}
	for i := range 3 {
		p.Pick(&Request{ID: fmt.Sprintf("r%d", i), Model: "m", ISL: 10}, epochStart())
	}
	<-p.Outgoing()
	if got := p.Outbox(nil); len(got) != 3 {
		t.Errorf("%d announcements, want 3", len(got))
	}
	p.Close("r0", epochStart())
	<-p.Outgoing()
	if got := p.Outbox(make([]kvindex.Record, 0, 4)); len(got) != 1 || got[0].Booking.State != kvindex.BookingClosed {
		t.Errorf("announcements %+v, want a close", got)
	}
	select {
	case <-p.Outgoing():
		t.Error("a second signal")
	default:
	}
}

// TestOutboxIsBounded: nobody fetches what is announced.
func TestOutboxIsBounded(t *testing.T) {
	c := testConfig()
	c.Replica = "a"
	p := NewPool(c, testTable())
	introduce(p, 0, kvindex.RoleAggregated, 1, epochStart())
	for i := range maxPending {
		id := fmt.Sprintf("r%d", i)
		p.Pick(&Request{ID: id, Model: "m", ISL: 10}, epochStart())
		p.Close(id, epochStart())
	}
	if st := p.Stats(epochStart()); st.Unsent != maxPending || st.Announced != maxPending {
		t.Errorf("unsent %d, announced %d, want %d of both", st.Unsent, st.Announced, maxPending)
	}
	if got := p.Outbox(nil); len(got) != maxPending {
		t.Errorf("%d announcements, want %d", len(got), maxPending)
	}
}

// TestSharedIsBounded: another replica announces without end, and closes half.
func TestSharedIsBounded(t *testing.T) {
	c := testConfig()
	c.Replica = "a"
	p := NewPool(c, testTable())
	introduce(p, 0, kvindex.RoleAggregated, 1, epochStart())
	tell := func(i int, state kvindex.BookingState) {
		p.Apply(&kvindex.Record{
			Owner: kvindex.Owner{Worker: workerID(0)}, Epoch: 1, Kind: kvindex.KindBooking,
			Booking: &kvindex.Booking{ID: fmt.Sprintf("r%d", i), Replica: "b", Seq: uint64(2*i) + uint64(state) + 1, State: state, LeaseMs: 9000},
		}, epochStart())
	}
	for i := range 3 * maxShared {
		tell(i, kvindex.BookingOpen)
		if i%2 == 0 {
			tell(i, kvindex.BookingClosed)
		}
	}
	st := p.Stats(epochStart())
	if len(p.bookings) > maxShared || st.Shared != maxShared || st.Overflow == 0 || st.PerWorker[0].Requests != maxShared {
		t.Errorf("%d bookings known: %+v", len(p.bookings), st)
	}
	later := epochStart().Add(time.Minute)
	if st := p.Stats(later); st.Shared != 0 || len(p.bookings) != 0 || st.PerWorker[0].Requests != 0 || st.PerWorker[0].QueueMs != 0 {
		t.Errorf("a minute later %d bookings known: %+v", len(p.bookings), st)
	}
}

// TestBurstOnTwoReplicas is TestBurstOfEquals with requests that come to one of
// two replicas, which hear of each other 5 ms later. However fast they come, no
// worker gets more than twice as many as another.
func TestBurstOnTwoReplicas(t *testing.T) {
	for _, every := range []time.Duration{0, 100 * time.Microsecond, time.Millisecond, 2 * time.Millisecond, 20 * time.Millisecond} {
		t.Run(every.String(), func(t *testing.T) {
			const workers, delay = 8, 5 * time.Millisecond
			var pools [2]*Pool
			for n := range pools {
				c := DefaultConfig()
				c.Replica = fmt.Sprintf("replica%d", n)
				pools[n] = NewPool(c, timing.Known())
				for i := range workers {
					introduce(pools[n], i, kvindex.RoleAggregated, 1, epochStart())
				}
			}
			var travelling []parcel
			var counts [workers]int
			r := rand.New(rand.NewPCG(3, 4))
			for i := range 800 {
				now := epochStart().Add(time.Duration(i) * every)
				for len(travelling) > 0 && now.Sub(travelling[0].sent) >= delay {
					for n := range pools { // to its maker too, which does not listen
						pools[n].Apply(&travelling[0].record, travelling[0].sent.Add(delay))
					}
					travelling = travelling[1:]
				}
				p := pools[r.IntN(2)]
				plan := p.Pick(&Request{ID: fmt.Sprintf("r%d", i), Model: "m", ISL: 200}, now)
				counts[plan.Decode.Worker[3]-'0']++
				for _, record := range p.Outbox(nil) {
					travelling = append(travelling, parcel{record, now})
				}
			}
			if most, least := slices.Max(counts[:]), slices.Min(counts[:]); most > 2*least {
				t.Errorf("shares %v, want them within 2", counts)
			} else {
				t.Logf("shares %v", counts)
			}
		})
	}
}
