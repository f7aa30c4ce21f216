package epp

import (
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/config"
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
			learned: func(*kvindex.Learned) {},
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

// TestReleaseBefore: a picker of today follows agents and pickers of the release
// before, whose records are in a file as they wrote them: all is understood, and what
// came since is absent. The other way round an old reader keeps what is new as it is:
// TestNeighbours of kvindex.
func TestReleaseBefore(t *testing.T) {
	text, err := os.ReadFile("../../kvindex/testdata/release.golden")
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	p, err := build(c, Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	f, now := p.follower, time.Now()
	chain := []kvindex.BlockHash{101, 102, 103}
	for line := range strings.Lines(string(text)) {
		digits, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		if digits == "#" {
			continue
		}
		encoded, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		r, err := kvindex.DecodeRecord(encoded)
		if err != nil || r.Kind.String() != kind || len(r.Rest) > 0 {
			t.Fatalf("%s: %+v, %v", kind, r, err)
		}
		if r.Kind == kvindex.KindBye {
			m := f.index.Overlap(chain, nil)
			if len(m) != 1 || m[0].Depth != [kvindex.NumTiers]uint32{2, 3, 3, 3} {
				t.Errorf("before the bye: %+v", m)
			}
			if e := f.pool.Fleet(now).Endpoints; len(e) != 1 || !e[0].Ready || e[0].Requests != 2 || e[0].KVFree != 49997*16 {
				t.Errorf("before the bye: %+v", e)
			}
		}
		f.one(&r, now)
	}
	if gaps, faults := f.gaps.Load(), f.fault.Load(); gaps+faults+f.fenced.Load() > 0 {
		t.Errorf("%d gaps, %d faults, %d fenced", gaps, faults, f.fenced.Load())
	}
	if f.index.Stats().Blocks > 0 || len(f.pool.Fleet(now).Endpoints) > 0 || f.prefixes.Stats().Chunks != 2 {
		t.Errorf("after the bye: %+v, %+v, %+v", f.index.Stats(), f.pool.Fleet(now).Endpoints, f.prefixes.Stats())
	}
}
