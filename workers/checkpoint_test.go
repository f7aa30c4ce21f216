package workers

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// askingLog is an embedded log that asks for checkpoints, and keeps the last one
// and what was appended behind it.
type askingLog struct {
	*memlog.Log

	mu      sync.Mutex
	asks    bool
	refuses bool
	taken   int
	content []kvindex.Record
}

func (l *askingLog) Append(ctx context.Context, records []kvindex.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.content = append(l.content, records...)
	return l.Log.Append(ctx, records)
}

func (l *askingLog) CheckpointDue(w kvindex.WorkerID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asks && w == "w"
}

func (l *askingLog) Checkpoint(_ context.Context, records []kvindex.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asks = false
	if l.refuses {
		return errors.New("no room")
	}
	l.taken++
	l.content = slices.Clone(records)
	return nil
}

func (l *askingLog) ask(refuses bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asks, l.refuses = true, refuses
}

// index applies records to a new one.
func (l *askingLog) index(t *testing.T, records []kvindex.Record) *kvindex.Index {
	t.Helper()
	x := kvindex.NewIndex()
	for i := range records {
		if err := x.Apply(&records[i]); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

// TestCheckpoint: the content that the writer gives when the log asks, followed by
// what it appends later, is what it holds. A log that refuses the content is no
// reason to begin anew.
func TestCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &askingLog{Log: memlog.New(memlog.Options{})}
		w := startWriter(t.Context(), l, 3)
		w.put(t.Context(), update{epoch: 7})
		w.put(t.Context(), update{rank: 1, epoch: 8})
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 1))
		owners := []kvindex.Owner{device(), {Worker: "w", Rank: 1}, {Worker: "w", Tier: kvindex.Host}}
		held := map[kvindex.Owner]map[kvindex.BlockHash]bool{}
		for round := range 40 {
			for range 1 + rng.IntN(30) {
				o := owners[rng.IntN(len(owners))]
				if held[o] == nil {
					held[o] = map[kvindex.BlockHash]bool{}
				}
				h := kvindex.BlockHash(1 + rng.IntN(100))
				r := kvindex.Record{Owner: o, Kind: kvindex.KindStored, Stored: &kvindex.Stored{Parent: h - 1, Hashes: []kvindex.BlockHash{h}}}
				if held[o][h] {
					r = kvindex.Record{Owner: o, Kind: kvindex.KindRemoved, Removed: &kvindex.Removed{Hashes: []kvindex.BlockHash{h}}}
				}
				held[o][h] = !held[o][h]
				w.put(t.Context(), update{rank: o.Rank, records: []kvindex.Record{r}})
				if rng.IntN(8) == 0 {
					l.ask(round%5 == 4)
				}
			}
			l.ask(round%5 == 4)
			sleep(2 * time.Second)
			synctest.Wait()
			x, live := l.index(t, l.content), l.index(t, l.Snapshot("w"))
			for _, o := range owners {
				if got, want := x.Blocks(o), live.Blocks(o); !slices.Equal(got, want) {
					t.Errorf("seed %d, round %d, %s: the checkpoint gives %v, want %v", seed, round, o, got, want)
				}
			}
		}
		if l.taken < 32 {
			t.Errorf("%d checkpoints, want 32 and more", l.taken)
		}
		if s := l.Stats(); s.Gaps+s.Fenced+s.Malformed > 0 {
			t.Errorf("the writer was refused: %+v", s)
		}
		w.stop()
		if err := <-w.ended; err != nil {
			t.Error(err)
		}
	})
}
