package redislog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/redistest"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// TestLogsAgree writes the same random histories, right and wrong ones, to the
// embedded log, which has the rules from kvindex.Cursor, and to Redis through two
// clients: they must say the same to every batch, and give the same content.
func TestLogsAgree(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for round := range 6 {
		pool := func(o *Options) { o.Pool = fmt.Sprint("round", round) }
		h := &history{
			rng: rng, embedded: memlog.New(memlog.Options{}),
			clients: []*Log{open(t, s.URL(), pool), open(t, s.URL(), pool)},
		}
		live := follow(t, open(t, s.URL(), pool))
		for step := range 300 {
			if err := h.step(t.Context()); err != nil {
				t.Fatalf("seed %d, round %d, step %d: %v", seed, round, step, err)
			}
		}
		late := follow(t, open(t, s.URL(), pool))
		h.compare(t, live)
		h.compare(t, late)
	}
}

type history struct {
	rng      *rand.Rand
	embedded *memlog.Log
	clients  []*Log
	next     map[kvindex.Owner]*kvindex.Record // about where each owner is
}

var historyWorkers = []kvindex.WorkerID{"[2001:db8::10]:8000", "[2001:db8::10]:80", "llm-1", "llm-1-0"}

func (h *history) step(ctx context.Context) error {
	client := h.clients[h.rng.IntN(len(h.clients))]
	if h.rng.IntN(20) == 0 {
		w := historyWorkers[h.rng.IntN(len(historyWorkers))]
		_ = client.Checkpoint(ctx, contentOf(h.embedded.Snapshot(w))) // another client may have written last
		return nil
	}
	var batch []kvindex.Record
	for range 1 + h.rng.IntN(4) {
		batch = append(batch, h.record())
	}
	want := h.embedded.Append(ctx, batch)
	got := client.Append(ctx, batch)
	if !sameError(want, got) {
		return fmt.Errorf("%s: embedded log says %w, redis %w", describe(batch), want, got)
	}
	return nil
}

// contentOf leaves of a snapshot what a checkpoint is.
func contentOf(snapshot []kvindex.Record) []kvindex.Record {
	return slices.DeleteFunc(snapshot, func(r kvindex.Record) bool {
		return r.Kind != kvindex.KindCleared && r.Kind != kvindex.KindStored
	})
}

func describe(batch []kvindex.Record) string {
	out := ""
	for i := range batch {
		r := &batch[i]
		out += fmt.Sprintf("%s %s e%d t%d s%d; ", r.Kind, r.Owner, r.Epoch, r.Term, r.Seq)
	}
	return out
}

// record makes one that is mostly right: epoch, term and number are those of the
// last one and a little to either side.
func (h *history) record() kvindex.Record {
	o := kvindex.Owner{Worker: historyWorkers[h.rng.IntN(len(historyWorkers))], Rank: uint16(h.rng.IntN(2)) * 300, Tier: kvindex.Tier(h.rng.IntN(2))}
	if h.next == nil {
		h.next = map[kvindex.Owner]*kvindex.Record{}
	}
	last := h.next[o]
	if last == nil {
		last = &kvindex.Record{Owner: o, Epoch: 1, Term: 1}
		h.next[o] = last
	}
	odd := func(v uint64, one int) uint64 {
		switch h.rng.IntN(one) {
		case 0:
			return v + 1 + uint64(h.rng.IntN(2))
		case 1:
			return v - min(v, 1+uint64(h.rng.IntN(2)))
		}
		return v
	}
	r := kvindex.Record{Owner: o, Epoch: odd(last.Epoch, 60), Term: odd(last.Term, 60), Seq: odd(last.Seq+1, 20)}
	if r.Epoch > last.Epoch && h.rng.IntN(2) == 0 {
		r.Seq = 1
	}
	r.Kind = []kvindex.Kind{
		kvindex.KindStored, kvindex.KindStored, kvindex.KindStored, kvindex.KindStored, kvindex.KindRemoved, kvindex.KindCleared,
		kvindex.KindCleared, kvindex.KindLearned, kvindex.KindHello, kvindex.KindLoad, kvindex.KindBooking,
	}[h.rng.IntN(11)]
	if h.rng.IntN(60) == 0 {
		r.Kind = kvindex.KindBye
	}
	h.body(&r)
	if r.Kind.Sequenced() && r.Seq > 0 {
		last.Epoch, last.Term, last.Seq = r.Epoch, r.Term, r.Seq
	}
	return r
}

func (h *history) body(r *kvindex.Record) {
	var hashes []kvindex.BlockHash
	for range 1 + h.rng.IntN(3) {
		hashes = append(hashes, kvindex.BlockHash(1+h.rng.IntN(12)))
	}
	switch r.Kind {
	case kvindex.KindStored:
		r.Stored = &kvindex.Stored{Group: uint16(h.rng.IntN(2)), Parent: kvindex.BlockHash(h.rng.IntN(12)), Hashes: hashes}
	case kvindex.KindRemoved:
		r.Removed = &kvindex.Removed{Hashes: hashes[:h.rng.IntN(len(hashes)+1)]}
	case kvindex.KindLearned:
		r.Learned = &kvindex.Learned{Chunks: []kvindex.ChunkHash{kvindex.ChunkHash(h.rng.Uint64())}, Blocks: hashes}
	case kvindex.KindHello:
		r.Seq, r.Hello = 0, &kvindex.Hello{Address: "10.0.0.1:1", LeaseMs: 60000}
	case kvindex.KindLoad:
		r.Seq, r.Load = 0, &kvindex.Load{Running: h.rng.Uint32N(9)}
	case kvindex.KindBooking:
		r.Seq, r.Booking = 0, &kvindex.Booking{ID: fmt.Sprint(h.rng.Uint32())}
	case kvindex.KindBye:
		r.Seq = 0
	default:
	}
}

func sameError(a, b error) bool {
	var x, y *kvindex.GapError
	switch {
	case a == nil || b == nil:
		return a == nil && b == nil
	case errors.As(a, &x):
		return errors.As(b, &y) && *x == *y
	case errors.Is(a, kvindex.ErrFenced):
		return errors.Is(b, kvindex.ErrFenced)
	default:
		return errors.Is(a, kvindex.ErrMalformed) && errors.Is(b, kvindex.ErrMalformed)
	}
}

// compare waits until the reader has what the embedded log gives.
func (h *history) compare(t *testing.T, r *reader) {
	t.Helper()
	want := kvindex.NewIndex()
	for _, x := range h.embedded.Snapshot("") {
		if err := want.Apply(&x); err != nil {
			t.Fatalf("snapshot of the embedded log: %v", err)
		}
	}
	r.until("the present state", func() bool { return r.complete > 0 })
	for _, w := range historyWorkers {
		for rank := range uint16(2) {
			for tier := range kvindex.Tier(2) {
				o := kvindex.Owner{Worker: w, Rank: rank * 300, Tier: tier}
				r.until("the same blocks of "+o.String(), func() bool {
					return slices.Equal(r.index.Blocks(o), want.Blocks(o))
				})
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, err := range r.refused {
		// A Bye of one rank is older than another rank's newest term: the log takes
		// it, as the embedded one does.
		t.Errorf("a reader was given something to refuse: %v", err)
	}
}

// pauseFor is a bounded wait for something that has no event.
func pauseFor(t *testing.T, d time.Duration) {
	t.Helper()
	if !pause(t.Context(), d) {
		t.Fatal("the test ended")
	}
}
