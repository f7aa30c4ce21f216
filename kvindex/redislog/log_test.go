package redislog

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/redistest"
	"github.com/kvlane/kvlane/kvindex"
)

// patience bounds every wait of a test. It decides nothing.
const patience = 60 * time.Second

func open(t testing.TB, url string, change func(*Options)) *Log {
	t.Helper()
	opts := Options{URL: url, Pool: "test"}
	if change != nil {
		change(&opts)
	}
	l, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// reader follows a log into an index.
type reader struct {
	t     testing.TB
	log   *Log
	index *kvindex.Index
	stop  context.CancelFunc
	done  chan struct{}

	mu       sync.Mutex
	news     chan struct{} // closed and replaced at each batch
	refused  []error
	complete int
	hellos   map[kvindex.WorkerID]int
	loads    []kvindex.Record
	bookings []kvindex.Record
	learned  []kvindex.Record
	byes     []kvindex.WorkerID
	lapsed   []kvindex.WorkerID // those of the byes that nobody said
}

func follow(t testing.TB, l *Log) *reader {
	r := &reader{
		t: t, log: l, index: kvindex.NewIndex(), done: make(chan struct{}), news: make(chan struct{}),
		hellos: map[kvindex.WorkerID]int{},
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = func() { cancel(); <-r.done }
	go func() {
		defer close(r.done)
		_ = l.Tail(ctx, r.apply) // ends with the test
	}()
	t.Cleanup(r.stop)
	return r
}

func (r *reader) apply(records []kvindex.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(records) == 0 {
		r.complete++
	}
	for i := range records {
		x := &records[i]
		if err := r.index.Apply(x); err != nil {
			r.refused = append(r.refused, err)
		}
		switch x.Kind {
		case kvindex.KindHello:
			r.hellos[x.Owner.Worker]++
		case kvindex.KindLoad:
			r.loads = append(r.loads, *x)
		case kvindex.KindBooking:
			r.bookings = append(r.bookings, *x)
		case kvindex.KindLearned:
			r.learned = append(r.learned, *x)
		case kvindex.KindBye:
			r.byes = append(r.byes, x.Owner.Worker)
			if x.Lapsed {
				r.lapsed = append(r.lapsed, x.Owner.Worker)
			}
			delete(r.hellos, x.Owner.Worker)
		default:
		}
	}
	close(r.news)
	r.news = make(chan struct{})
	return nil
}

// until waits until the condition holds, looking at each batch and now and then.
func (r *reader) until(what string, cond func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		ok, news := r.look(cond)
		if ok {
			return
		}
		select {
		case <-news:
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("waited %v for %s; status %+v, refused %v", patience, what, r.log.Status(), r.refused)
		}
	}
}

func (r *reader) look(cond func() bool) (bool, chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return cond(), r.news
}

// heard is how often a worker said Hello.
func (r *reader) heard(w kvindex.WorkerID) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hellos[w]
}

func device(w kvindex.WorkerID) kvindex.Owner { return kvindex.Owner{Worker: w} }

func stored(o kvindex.Owner, seq uint64, hashes ...kvindex.BlockHash) kvindex.Record {
	return kvindex.Record{Owner: o, Epoch: 1, Term: 1, Seq: seq, Kind: kvindex.KindStored, Stored: &kvindex.Stored{Parent: 7, Hashes: hashes}}
}

func hello(w kvindex.WorkerID, lease time.Duration) kvindex.Record {
	return kvindex.Record{Owner: device(w), Epoch: 1, Term: 1, Kind: kvindex.KindHello, Hello: &kvindex.Hello{
		Address: "127.0.0.1:1", Ready: true, Model: "m", LeaseMs: uint32(lease.Milliseconds()),
	}}
}

func cleared1(o kvindex.Owner, seq uint64) kvindex.Record {
	return kvindex.Record{Owner: o, Epoch: 1, Term: 1, Seq: seq, Kind: kvindex.KindCleared}
}

func mustAppend(t testing.TB, l *Log, records ...kvindex.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := l.Append(ctx, records); err != nil {
		t.Fatalf("append: %v", err)
	}
}

func TestAppendAndTail(t *testing.T) {
	s := redistest.Start(t, redistest.Options{Password: "geheim"})
	l := open(t, s.URL(), nil)
	w := device("[2001:db8::10]:8000")
	live := follow(t, open(t, s.URL(), nil))
	live.until("an empty log", func() bool { return live.complete == 1 })
	mustAppend(t, l, hello(w.Worker, time.Minute), stored(w, 1, 10, 11), stored(w, 2, 12),
		kvindex.Record{Owner: w, Epoch: 1, Term: 1, Kind: kvindex.KindLoad, Load: &kvindex.Load{Running: 3, Accepted: []string{"a"}}},
		kvindex.Record{Owner: w, Kind: kvindex.KindBooking, Booking: &kvindex.Booking{ID: "b"}})
	want := []kvindex.BlockHash{10, 11, 12}
	holds := func(r *reader) func() bool { return func() bool { return slices.Equal(r.index.Blocks(w), want) } }
	live.until("three blocks", holds(live))
	live.until("load and booking", func() bool { return len(live.loads) == 1 && len(live.bookings) == 1 })

	late := follow(t, open(t, s.URL(), nil))
	late.until("the present state", func() bool { return late.complete == 1 })
	if got := late.index.Blocks(w); !slices.Equal(got, want) {
		t.Errorf("a late reader has %v, want %v", got, want)
	}
	if err := l.Checkpoint(t.Context(), []kvindex.Record{cleared1(w, 2), stored(w, 0, 10, 11, 12)}); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, stored(w, 3, 13))
	want = append(want, 13)
	live.until("four blocks", holds(live))
	later := follow(t, open(t, s.URL(), nil))
	later.until("the present state", func() bool { return later.complete == 1 })
	if got := later.index.Blocks(w); !slices.Equal(got, want) {
		t.Errorf("a reader after the checkpoint has %v, want %v", got, want)
	}
	var gap *kvindex.GapError
	if err := l.Append(t.Context(), []kvindex.Record{stored(w, 5, 14)}); !errors.As(err, &gap) || gap.Want != 4 {
		t.Errorf("append of seq 5: %v", err)
	}
	for _, r := range []*reader{live, late, later} {
		r.stop()
		if len(r.refused) > 0 {
			t.Errorf("refused: %v", r.refused)
		}
	}
}

// TestBump: a quiet worker's mark moves on without a new snapshot, and stays where it
// is when content changed, by whatever record.
func TestBump(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	o := device("w")
	learned := func(epoch, seq uint64) kvindex.Record {
		return kvindex.Record{Owner: o, Epoch: epoch, Term: 1, Seq: seq, Kind: kvindex.KindLearned, Learned: &kvindex.Learned{Chunks: []kvindex.ChunkHash{1}}}
	}
	anchor := kvindex.Record{Owner: o, Epoch: 1, Term: 1, Seq: 2, Kind: kvindex.KindRemoved, Removed: &kvindex.Removed{}}
	removed := anchor
	removed.Removed = &kvindex.Removed{Hashes: []kvindex.BlockHash{10}}
	for _, c := range []struct {
		name  string
		next  kvindex.Record
		moves bool
		want  []kvindex.BlockHash
	}{
		{"an empty Removed", anchor, true, []kvindex.BlockHash{10, 11}},
		{"a Learned", learned(1, 2), true, []kvindex.BlockHash{10, 11}},
		{"a Learned of a new life", learned(2, 1), false, nil},
		{"a Removed", removed, false, []kvindex.BlockHash{11}},
		{"a Cleared", cleared1(o, 2), false, nil},
	} {
		s.FlushAll()
		l := open(t, s.URL(), nil)
		mustAppend(t, l, hello("w", time.Hour), stored(o, 1, 10, 11))
		if err := l.Checkpoint(t.Context(), []kvindex.Record{cleared1(o, 1), stored(o, 0, 10, 11)}); err != nil {
			t.Fatal(err)
		}
		key := l.keys.cursor("w")
		before := s.Do("hget", key, "wm")
		l.writer("w").marks.bumped = time.Time{} // long ago
		mustAppend(t, l, c.next)
		if moved := s.Do("hget", key, "wm") != before; moved != c.moves {
			t.Errorf("%s: the mark moved: %t", c.name, moved)
		}
		r := follow(t, open(t, s.URL(), nil))
		r.until("the present state", func() bool { return r.complete == 1 })
		if got := r.index.Blocks(o); !slices.Equal(got, c.want) {
			t.Errorf("%s: a fresh reader has %v, want %v", c.name, got, c.want)
		}
		r.stop()
	}
}
