package epp

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// A gap asks for the state anew, unless what was lost does not matter any more: its
// owner has begun anew, or is gone. What another owner of the worker says changes
// nothing, nor does a Cleared that is older than the gap.
func TestRegain(t *testing.T) {
	record := func(rank uint16, seq uint64, k kvindex.Kind) kvindex.Record {
		r := kvindex.Record{Owner: kvindex.Owner{Worker: "w", Rank: rank}, Epoch: 1, Term: 1, Seq: seq, Kind: k}
		if k == kvindex.KindStored {
			r.Stored = &kvindex.Stored{Parent: 1, Hashes: []kvindex.BlockHash{kvindex.BlockHash(seq + 10)}}
		}
		return r
	}
	newer := record(0, 5, kvindex.KindCleared)
	newer.Term = 2
	for _, tc := range []struct {
		name string
		next kvindex.Record
		want bool
	}{
		{"nothing new", record(1, 2, kvindex.KindStored), true},
		{"a Cleared", record(0, 9, kvindex.KindCleared), false},
		{"a Cleared of another rank", record(1, 2, kvindex.KindCleared), true},
		{"a Cleared from before the gap", record(0, 1, kvindex.KindCleared), true},
		{"a Cleared of a newer writer", newer, false},
		{"a Bye", record(0, 0, kvindex.KindBye), false},
	} {
		f := &follower{
			log: &source{}, index: kvindex.NewIndex(), prefixes: kvindex.NewPrefixMap(1 << 20),
			pool: picker.NewPool(picker.DefaultConfig(), timing.Known()), logger: slog.New(slog.DiscardHandler),
			members: newMembers(), ready: newReadiness(), lost: map[kvindex.Owner]loss{}, reported: func() {},
		}
		batch := []kvindex.Record{
			record(0, 1, kvindex.KindCleared), record(0, 2, kvindex.KindStored), record(1, 1, kvindex.KindStored),
			record(0, 4, kvindex.KindStored), tc.next,
		}
		if err := f.apply(batch); errors.Is(err, errRegain) != tc.want {
			t.Errorf("%s: got %v, want the state anew: %t", tc.name, err, tc.want)
		}
	}
}
