package kvindex

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"reflect"
	"strings"
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
				Ranks: 8, Eagle: true, NoEvents: true, Groups: []GroupSpec{{Kind: GroupFull}, {Kind: GroupWindow, Window: 128, BlockSize: 64}},
				Loading: []string{"b"}, Zone: "z1", Rack: "r7", Domain: "n3", Lockstep: true,
				Tiers: []TierSpec{{Tier: Host, BytesPerSecond: 5e10}, {Tier: Disk}}, Bare: true,
			}
		}),
		with(KindLoad, func(r *Record) {
			r.Load = &Load{
				Running: 1, Waiting: 2, QueuedTokens: 3, ContextTokens: 4, KVUsed: 5, KVTotal: 6,
				Accepted: []string{"b1", "b2"}, FirstToken: samples, Done: samples[:1], Failed: []string{"b1", ""}, AgeMs: 150,
			}
		}),
		with(KindBooking, func(r *Record) {
			r.Booking = &Booking{ID: "b1", Replica: "p0", Cached: 64, Uncached: 3, State: BookingAgain, LeaseMs: 60000, Seq: 1 << 40, Prefill: true}
		}),
		with(KindBye, func(r *Record) { r.Lapsed = true }),
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

// newFields is where the fields begin that came after version 1's first form: a
// record that ends there or between two of them is whole.
func newFields(r Record) map[int]bool {
	ends := map[int]bool{}
	mark := func() { ends[len(AppendRecord(nil, &r))] = true }
	switch r.Kind {
	case KindHello:
		h := *r.Hello
		r.Hello = &h
		h.Bare = false
		mark()
		h.Loading, h.Zone, h.Rack, h.Domain, h.Lockstep, h.Tiers = nil, "", "", "", false, nil
		mark()
		h.Groups = nil
		mark()
		h.Eagle, h.NoEvents = false, false
		mark()
		h.Ranks = 0
		mark()
		h.Admin = ""
		mark()
	case KindLoad:
		l := *r.Load
		r.Load = &l
		l.AgeMs = 0
		mark()
		l.Failed = nil
		mark()
	case KindBooking:
		b := *r.Booking
		r.Booking = &b
		b.Prefill = false
		mark()
		b.Seq = 0
		mark()
	case KindBye:
		r.Lapsed = false
		mark()
	default:
	}
	return ends
}

// TestNeighbours: up to each point where new fields begin, a record is byte by byte
// what the version before them writes. So an older reader finds its own record and
// keeps the rest, and a record of an older writer has zeros for what came later.
func TestNeighbours(t *testing.T) {
	for _, r := range someRecords() {
		whole := AppendRecord(nil, &r)
		for n := range newFields(r) {
			old, err := DecodeRecord(whole[:n])
			if err != nil || len(old.Rest) > 0 {
				t.Fatalf("%s, %d of %d bytes: %+v, %v", r.Kind, n, len(whole), old, err)
			}
			if again := AppendRecord(nil, &old); !bytes.Equal(again, whole[:n]) {
				t.Errorf("%s, %d of %d bytes: an older writer makes %x of it, this one begins with %x", r.Kind, n, len(whole), again, whole[:n])
			}
		}
	}
}

func TestDecodeRefusesDamage(t *testing.T) {
	for _, r := range someRecords() {
		whole := AppendRecord(nil, &r)
		ends := newFields(r)
		for n := range whole {
			if _, err := DecodeRecord(whole[:n]); !errors.Is(err, ErrBadRecord) && !ends[n] {
				t.Fatalf("%s cut to %d of %d bytes: got %v, want %v", r.Kind, n, len(whole), err, ErrBadRecord)
			}
		}
		whole[0]++
		if _, err := DecodeRecord(whole); !errors.Is(err, ErrBadRecord) {
			t.Errorf("%s of another version: got %v, want %v", r.Kind, err, ErrBadRecord)
		}
	}
}

// TestDecodeSkipsTheNew: what a later version writes is passed over by this one
// and passed on whole: fields behind the known ones, kinds that are not known.
func TestDecodeSkipsTheNew(t *testing.T) {
	later := []byte("fields of a later version")
	for _, want := range someRecords() {
		want.Rest = later
		b := AppendRecord(nil, &want)
		got, err := DecodeRecord(b)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%s with more fields: got %+v, %v; want %+v", want.Kind, got, err, want)
		}
		if again := AppendRecord(nil, &got); !bytes.Equal(again, b) {
			t.Errorf("%s passed on: got %x, want %x", want.Kind, again, b)
		}
	}
	// New fields that are zero are written when something comes after them.
	for _, want := range []Record{
		{Kind: KindHello, Hello: &Hello{}, Rest: later},
		{Kind: KindLoad, Load: &Load{}, Rest: later},
		{Kind: KindBooking, Booking: &Booking{}, Rest: later},
	} {
		if got, err := DecodeRecord(AppendRecord(nil, &want)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}

	x := NewIndex()
	owner := Owner{Worker: "w"}
	history := []Record{
		{Kind: KindCleared, Seq: 1},
		{Kind: KindStored, Seq: 2, Stored: &Stored{Parent: 1, Hashes: []BlockHash{2, 3}}},
		{Kind: kindUnsequenced - 1, Seq: 3, Rest: later},
		{Kind: kindUnsequenced, Rest: later},
		{Kind: KindBye + 1, Rest: later},
		{Kind: KindRemoved, Seq: 4, Removed: &Removed{Hashes: []BlockHash{3}}},
	}
	for _, r := range history {
		r.Owner, r.Epoch, r.Term = owner, 1, 1
		got, err := DecodeRecord(AppendRecord(nil, &r))
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Fatalf("got %+v, %v; want %+v", got, err, r)
		}
		if err := x.Apply(&got); err != nil {
			t.Fatalf("%s, seq %d: %v", r.Kind, r.Seq, err)
		}
	}
	if got := x.Blocks(owner); len(got) != 1 || got[0] != 2 {
		t.Errorf("blocks %v, want [2]", got)
	}
}

// TestGolden: every record that was ever written can be read. The file holds what
// each version wrote, with the record as JSON; lines are added, never changed.
func TestGolden(t *testing.T) {
	b, err := os.ReadFile("testdata/records.golden")
	if err != nil {
		t.Fatal(err)
	}
	for n, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		digits, text, _ := strings.Cut(line, " ")
		encoded, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		var want Record
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		if got, err := DecodeRecord(encoded); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("line %d: got %+v, %v; want %+v", n+1, got, err, want)
		}
		if again := AppendRecord(nil, &want); !bytes.Equal(again, encoded) && want.Kind != KindHello {
			t.Errorf("line %d is written %x now, was %x", n+1, again, encoded)
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
		again, err := DecodeRecord(AppendRecord(nil, &r))
		if err != nil {
			t.Fatalf("encoded again: %v", err)
		}
		if a, b := AppendRecord(nil, &again), AppendRecord(nil, &r); !bytes.Equal(a, b) {
			t.Fatalf("encoded again: got %x, want %x", a, b)
		}
	})
}
