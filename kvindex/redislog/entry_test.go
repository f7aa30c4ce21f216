package redislog

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/kvlane/kvlane/kvindex"
)

// TestPack packs random records and reads them again.
func TestPack(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	small := func() uint64 { // also the ends of the range
		return []uint64{0, 1, 2, 3, 1 << 62, ^uint64(0) - 1, ^uint64(0)}[rng.IntN(7)]
	}
	for range 2000 {
		var records []*kvindex.Record
		for range 1 + rng.IntN(5) {
			r := &kvindex.Record{
				Owner: kvindex.Owner{Worker: historyWorkers[rng.IntN(2)], Rank: uint16(rng.IntN(2)), Tier: kvindex.Tier(rng.IntN(2))},
				Epoch: small(), Term: small(), Seq: small(), EngineSeq: small(), Kind: kvindex.KindCleared,
			}
			if rng.IntN(2) == 0 {
				r.Kind = kvindex.KindStored
				r.Stored = &kvindex.Stored{Parent: 7, Hashes: make([]kvindex.BlockHash, 1+rng.IntN(5000))}
			}
			records = append(records, r)
		}
		var got []kvindex.Record
		for _, e := range pack(records) {
			if len(e) > maxEntryBytes+100 {
				t.Fatalf("an entry of %d bytes", len(e))
			}
			var skipped int
			var err error
			if got, skipped, err = decodeEntry(got, e); err != nil || skipped > 0 {
				t.Fatalf("seed %d: %d skipped, %v", seed, skipped, err)
			}
		}
		if len(got) != len(records) {
			t.Fatalf("seed %d: %d records of %d", seed, len(got), len(records))
		}
		for i := range got {
			if !reflect.DeepEqual(got[i], *records[i]) {
				t.Fatalf("seed %d: record %d is %+v, was %+v", seed, i, got[i], *records[i])
			}
		}
	}
}

// TestNewerRecords: a record that cannot be read is skipped, a kind that this
// version does not know is passed on, and what stands around them is read.
func TestNewerRecords(t *testing.T) {
	a := stored(device("w"), 5, 1)
	newer := kvindex.Record{Owner: device("w"), Epoch: 1, Term: 1, Kind: 200, Rest: []byte("body")}
	whole := pack([]*kvindex.Record{&a, &newer})[0]
	whole = append(whole, 3, 99, 1, 1) // of another version of the codec
	records, skipped, err := decodeEntry(nil, whole)
	if err != nil || skipped != 1 || !reflect.DeepEqual(records, []kvindex.Record{a, newer}) {
		t.Errorf("got %+v, %d skipped, %v", records, skipped, err)
	}
}

// TestSingleBlockBytes holds the cost of the smallest event in a stream.
func TestSingleBlockBytes(t *testing.T) {
	var records []*kvindex.Record
	for i := range uint64(100) {
		r := stored(device("10.0.0.1:8000"), 1_796_000_000_000*1024+i, kvindex.BlockHash(i))
		r.Epoch, r.Term, r.EngineSeq = 1_796_000_000_000_000, 1_796_000_000_000, i
		records = append(records, &r)
	}
	if got := len(pack(records)[0]) / len(records); got > 30 {
		t.Errorf("a block of its own takes %d bytes, want at most 30", got)
	}
}

func FuzzDecodeEntry(f *testing.F) {
	a, b := stored(device("w"), 5, 1, 2, 3), hello("w", 0)
	for _, e := range pack([]*kvindex.Record{&a, &b}) {
		f.Add(e)
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		records, _, err := decodeEntry(nil, b)
		if err == nil && len(records) > len(b) {
			panic("more records than bytes")
		}
	})
}

func FuzzParsePosition(f *testing.F) {
	f.Add("1796000000000-3")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parsePosition(s)
		if err != nil {
			return
		}
		if q, err := parsePosition(p.String()); err != nil || q != p {
			t.Errorf("%q is %v, then %v, %v", s, p, q, err)
		}
	})
}
