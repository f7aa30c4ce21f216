package redislog

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/redistest"
	"github.com/kvlane/kvlane/kvindex"
)

// sameShard are n workers whose records lie in one stream.
func sameShard(n int) []kvindex.WorkerID {
	var list []kvindex.WorkerID
	for i := 0; len(list) < n; i++ {
		if w := kvindex.WorkerID(fmt.Sprint("w", i)); shardOf(w) == 0 {
			list = append(list, w)
		}
	}
	return list
}

// TestGoneBeforeReading: what is left in a stream of a worker that went is no news
// for a reader that begins behind the worker's beginning.
func TestGoneBeforeReading(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	l := open(t, s.URL(), nil)
	names := sameShard(3)
	stays, goes, expires := device(names[0]), device(names[1]), device(names[2])
	mustAppend(t, l, hello(goes.Worker, time.Minute), stored(goes, 1, 20))
	mustAppend(t, l, hello(expires.Worker, time.Minute), stored(expires, 1, 30))
	mustAppend(t, l, hello(stays.Worker, time.Minute), stored(stays, 1, 10))
	if err := l.Checkpoint(t.Context(), []kvindex.Record{cleared1(stays, 1), stored(stays, 0, 10)}); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, stored(goes, 2, 21), kvindex.Record{Owner: goes, Epoch: 1, Term: 1, Kind: kvindex.KindBye})
	mustAppend(t, l, stored(expires, 2, 31))
	if err := l.Drop(t.Context(), expires.Worker); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, stored(stays, 2, 11))

	r := follow(t, open(t, s.URL(), nil))
	r.until("the present state", func() bool { return r.complete == 1 })
	r.until("what the other one holds", func() bool {
		return slices.Equal(r.index.Blocks(stays), []kvindex.BlockHash{10, 11})
	})
	mustAppend(t, l, hello(goes.Worker, time.Minute), stored(goes, 1, 22)) // it comes back
	r.until("the one that came back", func() bool { return slices.Equal(r.index.Blocks(goes), []kvindex.BlockHash{22}) })
	r.stop()
	if len(r.refused) > 0 {
		t.Errorf("refused: %v", r.refused)
	}
}

// TestForeignEntries: what others wrote into a stream stops nobody.
func TestForeignEntries(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	l := open(t, s.URL(), nil)
	w := device(sameShard(1)[0])
	live := follow(t, open(t, s.URL(), nil))
	live.until("an empty log", func() bool { return live.complete == 1 })
	mustAppend(t, l, hello(w.Worker, time.Minute), stored(w, 1, 10))
	for _, key := range []string{l.keys.events(0), l.keys.now()} {
		s.Do("xadd", key, "*", "no", "entry")
		s.Do("xadd", key, "*", "p", "first", "d", "\x01\xff\xff")
		s.Do("xadd", key, "*", "p", "", "d", "")
	}
	live.until("the look after them", func() bool { return live.log.Status().Skipped >= 6 })
	fresh := follow(t, open(t, s.URL(), nil))
	fresh.until("the present state", func() bool { return fresh.complete == 1 })
	mustAppend(t, l, stored(w, 2, 11))
	for _, r := range []*reader{live, fresh} {
		r.until("the record behind them", func() bool { return slices.Equal(r.index.Blocks(w), []kvindex.BlockHash{10, 11}) })
		if got := r.log.Status(); got.Reloads > 1 || got.Broken > 0 {
			t.Errorf("it began anew: %+v", got)
		}
	}
}

// TestBookingsByRedisClock: a picker whose clock is ahead takes away nothing that
// others have not read yet.
func TestBookingsByRedisClock(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	mustAppend(t, open(t, s.URL(), nil), hello("w", time.Minute))
	ahead := open(t, s.URL(), func(o *Options) { o.Recent = -time.Hour }) // as if it were an hour later
	const n = 300                                                         // more than a stream's node holds
	for i := range n {
		mustAppend(t, ahead, kvindex.Record{
			Owner: device("w"), Kind: kvindex.KindBooking, Booking: &kvindex.Booking{ID: fmt.Sprint(i), Replica: "a", Seq: uint64(i + 1)},
		})
	}
	if got := s.Do("xlen", ahead.keys.now()); got != fmt.Sprint(n) {
		t.Errorf("%s bookings are left, want %d", got, n)
	}
}

// TestWritableAgain: a writer that has nothing to write learns from its reader that
// the server takes writes again.
func TestWritableAgain(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	l := open(t, s.URL(), nil)
	r := follow(t, l)
	r.until("an empty log", func() bool { return r.complete == 1 })
	s.Do("replicaof", "127.0.0.1", "1")
	if err := l.Append(t.Context(), []kvindex.Record{hello("w", time.Minute)}); err == nil {
		t.Fatal("a replica took a record")
	}
	if got := l.Status(); got.Connected || got.Err == "" {
		t.Errorf("beside a replica: %+v", got)
	}
	s.Do("replicaof", "no", "one")
	r.until("the end of the error", func() bool { return l.Status().Connected })
}
