package memlog

import (
	"context"
	"testing"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// TestTailComplete: exactly one empty batch, behind the present state and before
// what is live, also over the wire, where the server's signs of life are empty too.
func TestTailComplete(t *testing.T) {
	l := New(Options{Beat: time.Millisecond})
	for name, log := range map[string]kvindex.Log{"log": l, "client": serve(t, l)} {
		t.Run(name, func(t *testing.T) {
			w := kvindex.WorkerID(name)
			seq := uint64(0)
			more := func(hash kvindex.BlockHash) {
				seq++
				r := kvindex.Record{
					Owner: kvindex.Owner{Worker: w}, Epoch: 1, Term: 1, Seq: seq, Kind: kvindex.KindStored,
					Stored: &kvindex.Stored{Hashes: []kvindex.BlockHash{hash}},
				}
				if err := log.Append(t.Context(), []kvindex.Record{r}); err != nil {
					t.Fatal(err)
				}
			}
			more(1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			x := kvindex.NewIndex()
			complete, arrived := 0, make(chan int, 100) // blocks in the index
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = log.Tail(ctx, func(records []kvindex.Record) error {
					if len(records) == 0 {
						complete++
					}
					for i := range records {
						if err := x.Apply(&records[i]); err != nil {
							return err
						}
					}
					arrived <- len(x.Blocks(kvindex.Owner{Worker: w}))
					return nil
				}) // ends with the test
			}()
			for _, what := range []string{"the present state", "its end"} {
				if n := <-arrived; n != 1 {
					t.Errorf("%s came with %d blocks, want 1", what, n)
				}
			}
			for i := range 20 {
				more(kvindex.BlockHash(2 + i))
				for n := 0; n < 2+i; n = <-arrived {
				}
			}
			cancel()
			<-done
			if complete != 1 {
				t.Errorf("%d empty batches, want 1", complete)
			}
		})
	}
}

// TestNoCheckpoints: the embedded log has the present state and asks for nothing.
func TestNoCheckpoints(t *testing.T) {
	l := New(Options{})
	for _, log := range []kvindex.Log{l, serve(t, l)} {
		if log.CheckpointDue("w") {
			t.Error("a checkpoint is due")
		}
		if err := log.Checkpoint(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
}
