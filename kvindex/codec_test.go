package kvindex

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"testing"
)

// someRecords is one record of every kind with every field set.
func someRecords() []Record {
	head := Record{Owner: Owner{"10.0.0.1:8000", 3, Disk}, Epoch: 7, Term: 1 << 40, Seq: 300, EngineSeq: 12}
	with := func(k Kind, set func(*Record)) Record {
		r := head
		r.Kind = k
		if !k.Sequenced() {
			r.Seq = 0
		}
		set(&r)
		return r
	}
	samples := []Sample{
		{Booking: "b1", PromptTokens: 4000, CachedTokens: -1, OutputTokens: 1, FirstTokenMs: 12.5, TotalMs: 99.25, Aborted: true},
		{CachedTokens: math.MaxInt32, OutputTokens: math.MinInt32},
	}
	return []Record{
		with(KindStored, func(r *Record) { r.Stored = &Stored{Group: 2, Parent: 9, Hashes: []BlockHash{1, 1 << 63}} }),
		with(KindRemoved, func(r *Record) { r.Removed = &Removed{Group: 1, Hashes: []BlockHash{5}} }),
		with(KindCleared, func(*Record) {}),
		with(KindLearned, func(r *Record) {
			r.Learned = &Learned{Seed: 4, Chunks: []ChunkHash{8, 9}, Bytes: 140, Tokens: 33, BlockSize: 16, Blocks: []BlockHash{6, 7}}
		}),
		with(KindHello, func(r *Record) {
			r.Hello = &Hello{
				Address: "10.0.0.1:8000", Role: RolePrefill, Ready: true, Model: "m", Served: []string{"m", "alias"},
				Adapters: []string{"a"}, BlockSize: 16, KVBlocks: 50000, Deployment: "d", LeaseMs: 3000, Admin: "10.0.0.1:8100",
			}
		}),
		with(KindLoad, func(r *Record) {
			r.Load = &Load{
				Running: 1, Waiting: 2, QueuedTokens: 3, ContextTokens: 4, KVUsed: 5, KVTotal: 6,
				Accepted: []string{"b1", "b2"}, FirstToken: samples, Done: samples[:1],
			}
		}),
		with(KindBooking, func(r *Record) {
			r.Booking = &Booking{ID: "b1", Replica: "p0", Cached: 64, Uncached: 3, State: BookingAgain, LeaseMs: 60000, Seq: 1 << 40, Prefill: true}
		}),
		with(KindBye, func(*Record) {}),
	}
}

func TestRecordRoundTrip(t *testing.T) {
	for _, want := range someRecords() {
		b := AppendRecord([]byte("before"), &want)
		got, err := DecodeRecord(b[len("before"):])
		if err != nil {
			t.Fatalf("%s: %v", want.Kind, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", want.Kind, got, want)
		}
	}
}

func TestDecodeRefusesDamage(t *testing.T) {
	for _, r := range someRecords() {
		whole := AppendRecord(nil, &r)
		for n := range whole {
			if _, err := DecodeRecord(whole[:n]); !errors.Is(err, ErrBadRecord) {
				t.Fatalf("%s cut to %d of %d bytes: got %v, want %v", r.Kind, n, len(whole), err, ErrBadRecord)
			}
		}
		if _, err := DecodeRecord(append(bytes.Clone(whole), 0)); !errors.Is(err, ErrBadRecord) {
			t.Errorf("%s with a byte too many: got %v, want %v", r.Kind, err, ErrBadRecord)
		}
		whole[0]++
		if _, err := DecodeRecord(whole); !errors.Is(err, ErrBadRecord) {
			t.Errorf("%s of another version: got %v, want %v", r.Kind, err, ErrBadRecord)
		}
	}
}

// A length that the bytes do not back must not be believed.
func TestDecodeHostileLength(t *testing.T) {
	r := Record{Kind: KindRemoved, Seq: 1, Removed: &Removed{}}
	b := AppendRecord(nil, &r)
	b = append(b[:len(b)-1], 0xff, 0xff, 0xff, 0xff, 0x7f) // 2^35 hashes
	allocs := testing.AllocsPerRun(10, func() {
		if _, err := DecodeRecord(b); err == nil {
			t.Fatal("accepted")
		}
	})
	if allocs > 8 {
		t.Errorf("got %.0f allocations, want at most 8", allocs)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	for _, r := range someRecords() {
		f.Add(AppendRecord(nil, &r))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRecord(b)
		if err != nil {
			return
		}
		if again := AppendRecord(nil, &r); !bytes.Equal(again, b) {
			t.Fatalf("encoded again: got %x, want %x", again, b)
		}
	})
}
