package memlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/kvindex"
)

// Who asks for the members gets Hellos and Byes, of the present state and later,
// and nothing of what there is besides; on both ends of the wire.
func TestMembers(t *testing.T) {
	for _, name := range []string{"log", "client"} {
		t.Run(name, func(t *testing.T) {
			l := New(Options{})
			var log kvindex.Log = l
			if name == "client" {
				log = serve(t, l)
			}
			write := func(worker kvindex.WorkerID, seq uint64) {
				owner := kvindex.Owner{Worker: worker}
				err := l.Append(t.Context(), []kvindex.Record{
					{Owner: owner, Epoch: 1, Term: 1, Kind: kvindex.KindHello, Hello: &kvindex.Hello{Address: string(worker) + ":80"}},
					{Owner: owner, Epoch: 1, Term: 1, Kind: kvindex.KindLoad, Load: &kvindex.Load{Running: 1}},
					{Owner: owner, Epoch: 1, Term: 1, Seq: seq, Kind: kvindex.KindStored, Stored: &kvindex.Stored{Hashes: []kvindex.BlockHash{1}}},
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			write("a", 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			seen := make(chan string, 100)
			done := make(chan error, 1)
			go func() {
				done <- log.Members(ctx, func(records []kvindex.Record) error {
					if len(records) == 0 {
						seen <- "complete"
					}
					for _, r := range records {
						seen <- fmt.Sprintf("%s %s", r.Kind, r.Owner.Worker)
					}
					return nil
				})
			}()
			want := func(list ...string) {
				t.Helper()
				var got []string
				for range list {
					got = append(got, <-seen)
				}
				if !slices.Equal(got, list) {
					t.Fatalf("got %v, want %v", got, list)
				}
			}
			want("hello a", "complete")
			write("b", 1)
			write("a", 2)
			l.Drop("b")
			want("hello b", "hello a", "bye b")
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if len(seen) > 0 {
				t.Errorf("and %s", <-seen)
			}
		})
	}
}
