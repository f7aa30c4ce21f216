package enginewire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvlane/kvlane/kvindex"
)

// TestDecode runs testdata/*.txt: a batch written as JSON, encoded with
// another msgpack library, decoded and printed. {"bin": "0a0b"} stands for a
// byte string.
func TestDecode(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var polled TRT
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "trtllm":
				return showPolled(t, d, &polled)
			case "decode":
			default:
				t.Fatalf("unknown command %s", d.Cmd)
			}
			var v any
			dec := json.NewDecoder(strings.NewReader(d.Input))
			dec.UseNumber()
			if err := dec.Decode(&v); err != nil {
				t.Fatalf("%s: %v", d.Pos, err)
			}
			payload, err := msgpack.Marshal(value(t, v))
			if err != nil {
				t.Fatal(err)
			}
			b, err := Decode(payload)
			if err != nil {
				return "error: " + err.Error()
			}
			return show(b)
		})
	})
}

// value turns JSON into what the msgpack library encodes.
func value(t *testing.T, v any) any {
	switch x := v.(type) {
	case json.Number:
		var u uint64
		if _, err := fmt.Sscanf(x.String(), "%d", &u); err == nil && fmt.Sprint(u) == x.String() {
			return u
		}
		if i, err := x.Int64(); err == nil {
			return i
		}
		f, err := x.Float64()
		if err != nil {
			t.Fatal(err)
		}
		return f
	case []any:
		out := make([]any, len(x))
		for i := range x {
			out[i] = value(t, x[i])
		}
		return out
	case map[string]any:
		if s, ok := x["bin"].(string); ok && len(x) == 1 {
			b, err := hex.DecodeString(s)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		out := make(map[string]any, len(x))
		for k := range x {
			out[k] = value(t, x[k])
		}
		return out
	}
	return v
}

func show(b Batch) string {
	var sb strings.Builder
	fmt.Fprintf(&sb, "time %v", b.Time)
	if b.Rank != nil {
		fmt.Fprintf(&sb, " rank %d", *b.Rank)
	}
	for _, e := range b.Events {
		fmt.Fprintf(&sb, "\n%s %v tier=%s group=%d", e.Kind, e.Hashes, e.Tier, e.Group)
		if e.Kind == Stored {
			parent := "start"
			if e.Parent != nil {
				parent = e.Parent.String()
			}
			fmt.Fprintf(&sb, " parent=%s tokens=%v size=%d", parent, e.Tokens, e.BlockSize)
		}
		for _, f := range []struct{ name, v string }{{"lora", e.LoRA}, {"salt", e.Salt}, {"kind", e.GroupKind}} {
			if f.v != "" {
				fmt.Fprintf(&sb, " %s=%s", f.name, f.v)
			}
		}
		if e.Window > 0 {
			fmt.Fprintf(&sb, " window=%d", e.Window)
		}
		if e.Extra != nil {
			fmt.Fprintf(&sb, " extra=%q", e.Extra)
		}
		if e.Eagle {
			sb.WriteString(" eagle")
		}
	}
	for _, s := range b.Skipped {
		fmt.Fprintf(&sb, "\nskipped %s for its %s %q, group %d", s.Kind, s.Reason, s.Detail, s.Group)
	}
	for _, err := range b.Bad {
		fmt.Fprintf(&sb, "\nbad: %v", err)
	}
	return sb.String()
}

// randomBatch is a batch that Encode can express in both forms.
func randomBatch(r *rand.Rand) Batch {
	b := Batch{Time: float64(r.IntN(1 << 30))}
	if r.IntN(4) > 0 {
		rank := r.IntN(9)
		b.Rank = &rank
	}
	for range r.IntN(5) {
		b.Events = append(b.Events, randomEvent(r))
	}
	return b
}

func randomHash(r *rand.Rand) Hash {
	if r.IntN(2) == 0 {
		return IntHash(r.Uint64() >> r.IntN(64))
	}
	h := make([]byte, 32)
	for i := range h {
		h[i] = byte(r.Uint32())
	}
	return Hash(h)
}

func randomEvent(r *rand.Rand) Event {
	e := Event{Kind: Kind(1 + r.IntN(3))}
	if e.Kind == Cleared {
		return e
	}
	e.Tier, e.Group = kvindex.Tier(r.IntN(4)), r.IntN(3)
	seen := map[Hash]bool{}
	for range 1 + r.IntN(40) {
		if h := randomHash(r); !seen[h] {
			seen[h] = true
			e.Hashes = append(e.Hashes, h)
		}
	}
	if e.Kind == Removed {
		return e
	}
	e.GroupKind = []string{"full_attention", "mla_attention", "sink_full_attention", "mamba", "sliding_window"}[r.IntN(5)]
	if e.GroupKind == "sliding_window" {
		e.Window = r.IntN(1 << r.IntN(20))
	}
	if h := randomHash(r); r.IntN(2) == 0 && !seen[h] {
		e.Parent = &h
	}
	e.BlockSize = 1 + r.IntN(20)
	for range e.BlockSize * len(e.Hashes) {
		e.Tokens = append(e.Tokens, r.Uint32()>>r.IntN(32))
	}
	e.Eagle = r.IntN(5) == 0
	e.LoRA = []string{"", "", "adapter", "lora_id:7"}[r.IntN(4)]
	if e.Parent == nil && r.IntN(3) == 0 {
		e.Salt = "salt"
	}
	if r.IntN(3) == 0 {
		e.Extra = make([][]string, len(e.Hashes))
		e.Extra[r.IntN(len(e.Extra))] = []string{"image@-11", "key", "a@b@7", "x@07"}
	}
	return e
}

// TestRoundTrip checks that both forms carry everything.
func TestRoundTrip(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		want := randomBatch(r)
		for _, form := range []Form{Map, Array} {
			got, err := Decode(Encode(want, form))
			if err != nil {
				t.Fatalf("%s: %v", form, err)
			}
			if len(got.Bad)+len(got.Skipped) > 0 || got.Time != want.Time || !reflect.DeepEqual(got.Rank, want.Rank) || !reflect.DeepEqual(got.Events, want.Events) {
				t.Fatalf("%s: got\n%s\nwant\n%s", form, show(got), show(want))
			}
		}
	}
}

// TestCut checks that no prefix of a payload is taken for a batch.
func TestCut(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b := randomBatch(r)
	for len(b.Events) < 2 {
		b = randomBatch(r)
	}
	payload := Encode(b, Map)
	for n := range payload {
		if _, err := Decode(payload[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes are a batch", n, len(payload))
		}
	}
}

// TestClaims checks that a payload that claims to be large costs little: the
// counts in it are not believed.
func TestClaims(t *testing.T) {
	for _, s := range []string{
		"93cb0000000000000000ddffffffff", // events
		"ddffffffff", "dfffffffff", "c6ffffffff",
		"93cb000000000000000091" + "95ab426c6f636b53746f726564" + "ddffffffff", // hashes
	} {
		p, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		var before, after uint64
		before = allocated(func() { _, _ = Decode(nil) })
		after = allocated(func() {
			if _, err := Decode(p); err == nil {
				t.Errorf("%s is a batch", s)
			}
		})
		if after > before+4096 {
			t.Errorf("%s: %d bytes allocated", s, after-before)
		}
	}
}

func allocated(f func()) uint64 {
	return uint64(testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range min(b.N, 100) {
			f()
		}
	}).AllocedBytesPerOp())
}

// TestDeepNesting checks that nesting costs no stack.
func TestDeepNesting(t *testing.T) {
	deep := strings.Repeat("\x91", 1<<20) + "\xc0"
	payload := append([]byte{0x93, 0x00, 0x91}, deep...)
	payload = append(payload, 0xc0)
	b, err := Decode(payload)
	if err != nil || len(b.Bad) != 1 {
		t.Errorf("%v, bad %v", err, b.Bad)
	}
}

func TestFrames(t *testing.T) {
	id := []byte("identity")
	for _, form := range []Form{Map, Array} {
		for _, c := range []struct {
			frames [][]byte
			want   Message
		}{
			{ReplayAnswer(id, form, "kv@a@b", 7, []byte("p")), Message{Topic: "kv@a@b", Seq: 7, Payload: []byte("p")}},
			{ReplayEnd(id, form), Message{Seq: endSeq, End: true}},
		} {
			got, err := ParseReplay(c.frames[1:])
			if form == Array {
				c.want.Topic = ""
			}
			if err != nil || got.Topic != c.want.Topic || got.Seq != c.want.Seq || got.End != c.want.End || !bytes.Equal(got.Payload, c.want.Payload) {
				t.Errorf("%s: %+v, %v; want %+v", form, got, err, c.want)
			}
		}
	}
	gotID, start, err := ParseReplayRequest(append([][]byte{id}, ReplayRequest(900)...))
	if err != nil || !bytes.Equal(gotID, id) || start != 900 {
		t.Errorf("request: %q, %d, %v", gotID, start, err)
	}
	for _, bad := range [][][]byte{
		nil, {{}}, {{}, {}, {}, {}}, {[]byte("x"), Seq(1), {}}, {{}, []byte("short"), {}}, {{}, {}, Seq(1), {}, {}},
	} {
		if m, err := ParseReplay(bad); err == nil {
			t.Errorf("replay answer %q: %+v", bad, m)
		}
	}
	for _, bad := range [][][]byte{nil, {[]byte("t"), Seq(1)}, {[]byte("t"), {1}, {}}} {
		if m, err := ParseLive(bad); err == nil {
			t.Errorf("live message %q: %+v", bad, m)
		}
		if _, _, err := ParseReplayRequest(bad); err == nil {
			t.Errorf("replay request %q was taken", bad)
		}
	}
}

// FuzzDecode checks what must hold for any payload, and that what was decoded
// survives another round.
func FuzzDecode(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 4 {
		b := randomBatch(r)
		f.Add(Encode(b, Map))
		f.Add(Encode(b, Array))
	}
	f.Add([]byte{0x82, 0xa2, 't', 's', 0x01, 0xa6, 'e', 'v', 'e', 'n', 't', 's', 0x90})
	f.Fuzz(func(t *testing.T, payload []byte) {
		b, err := Decode(payload)
		if err != nil {
			return
		}
		if n := len(b.Events) + len(b.Skipped) + len(b.Bad); n > len(payload) {
			t.Fatalf("%d events in %d bytes", n, len(payload))
		}
		for _, e := range b.Events {
			if e.Kind != Cleared && len(e.Hashes) == 0 || e.Kind == Stored && len(e.Tokens) != e.BlockSize*len(e.Hashes) {
				t.Fatalf("event %+v", e)
			}
			if e.Tier >= kvindex.NumTiers || e.Extra != nil && len(e.Extra) != len(e.Hashes) {
				t.Fatalf("event %+v", e)
			}
		}
		again, err := Decode(Encode(b, Map))
		if err != nil || len(again.Bad) > 0 || len(again.Events) != len(b.Events) {
			t.Fatalf("second round: %v, bad %v", err, again.Bad)
		}
		for i := range b.Events {
			if !reflect.DeepEqual(again.Events[i].Hashes, b.Events[i].Hashes) || !reflect.DeepEqual(again.Events[i].Tokens, b.Events[i].Tokens) {
				t.Fatalf("event %d: %+v, then %+v", i, b.Events[i], again.Events[i])
			}
		}
	})
}
