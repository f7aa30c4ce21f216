package bpe

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"
)

func load(tb testing.TB) *Tokenizer {
	tb.Helper()
	tok, err := Load()
	if err != nil {
		tb.Fatal(err)
	}
	return tok
}

// seeded is a random source whose seed is printed if the test fails.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestEmbeddedVocabulary(t *testing.T) {
	sum := sha256.Sum256([]byte(mergesText))
	const want = "d318e6d08dd4423413e3a1080b7e0a9caede355e1155f12fa02b988f537931db"
	if got := hex.EncodeToString(sum[:]); got != want {
		t.Errorf("merges.txt has sha256 %s, want %s", got, want)
	}
	tok := load(t)
	if got := tok.VocabSize(); got != 8192 {
		t.Errorf("vocabulary of %d tokens, want 8192", got)
	}
	if got := len(tok.Words()); got < 2000 {
		t.Errorf("%d word tokens, want at least 2000", got)
	}
	if tok.EndOfText() != 8189 || tok.ImStart() != 8190 || tok.ImEnd() != 8191 {
		t.Errorf("special ids %d %d %d, want 8189 8190 8191", tok.EndOfText(), tok.ImStart(), tok.ImEnd())
	}
	seen := make(map[string]int)
	for id, text := range tok.tokens {
		if before, dup := seen[text]; dup {
			t.Errorf("%q is token %d and %d", text, before, id)
		}
		seen[text] = id
	}
}

// TestScripts shows encodings: one command a case, Go-quoted text in.
//
//	encode, special   ids as the pieces of text they stand for
//	split             pre-tokens
//	stream            pieces of a Decoder, one an id, then the flush
func TestScripts(t *testing.T) {
	tok := load(t)
	datadriven.RunTest(t, "testdata/encode.txt", func(t *testing.T, d *datadriven.TestData) string {
		t.Helper()
		text, err := strconv.Unquote(d.Input)
		if err != nil {
			d.Fatalf(t, "input is not a quoted string: %v", err)
		}
		var pieces []string
		switch d.Cmd {
		case "encode":
			for _, id := range tok.Encode(text) {
				pieces = append(pieces, tok.Text(id))
			}
		case "special":
			for _, id := range tok.EncodeSpecial(text) {
				pieces = append(pieces, fmt.Sprint(id, ":", tok.Text(id)))
			}
		case "split":
			pieces = slices.Collect(Split(text))
		case "stream":
			dec := tok.NewDecoder()
			for _, id := range tok.Encode(text) {
				pieces = append(pieces, dec.Add(id))
			}
			pieces = append(pieces, dec.Flush())
		default:
			d.Fatalf(t, "unknown command")
		}
		var sb strings.Builder
		for _, p := range pieces {
			sb.WriteString(strconv.QuoteToASCII(p) + "\n")
		}
		return sb.String()
	})
}

func TestMergeHeapAgreesWithScan(t *testing.T) {
	tok, rng := load(t), seeded(t)
	for range 300 {
		ids := make([]uint32, 1+rng.IntN(300))
		alphabet := []string{"eta oinshrdl", "ab", "=-*/", "\xe2\x80\x94\xff\xc3"}[rng.IntN(4)]
		for i := range ids {
			ids[i] = uint32(alphabet[rng.IntN(len(alphabet))])
		}
		scan, byHeap := slices.Clone(ids), slices.Clone(ids)
		scan = scan[:tok.mergeScan(scan)]
		byHeap = byHeap[:tok.mergeHeap(byHeap)]
		if !slices.Equal(scan, byHeap) {
			t.Fatalf("bytes %v: scan gives %v, heap %v", ids, scan, byHeap)
		}
	}
}

func TestWordSequencesEncodeToThemselves(t *testing.T) {
	tok, rng := load(t), seeded(t)
	words := tok.Words()
	for range 200 {
		ids := make([]uint32, 1+rng.IntN(400))
		for i := range ids {
			ids[i] = words[rng.IntN(len(words))]
		}
		if got := tok.Encode(tok.Decode(ids)); !slices.Equal(got, ids) {
			t.Fatalf("%q encodes to %v, want %v", tok.Decode(ids), got, ids)
		}
	}
	for _, id := range words {
		if got := tok.Encode(tok.Text(id)); !slices.Equal(got, []uint32{id}) {
			t.Errorf("word %d %q encodes to %v", id, tok.Text(id), got)
		}
	}
}

// TestSharedTokenizer runs encoders at once over more words than the cache
// holds; the race detector watches.
func TestSharedTokenizer(t *testing.T) {
	tok := load(t)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 20000 {
				text := fmt.Sprintf(" v%dx%d", i%977, i*(g%2))
				if got := tok.Decode(tok.Encode(text)); got != text {
					t.Errorf("%q became %q", text, got)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestDamagedVocabulary(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"one word", "ab\n", "merge 1: want two words"},
		{"unknown rune", "a b\n\u4e00 b\n", "merge 2: rune"},
		{"unknown part", "ab c\n", "not both earlier tokens"},
		{"twice", "a b\nb c\na bc\nab c\n", `merge 4 makes "abc" again`},
	} {
		merges, err := parseMerges(c.text)
		if err == nil {
			_, err = newTokenizer(merges)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}

func FuzzRoundTrip(f *testing.F) {
	for _, s := range []string{
		"", " ", "Hello, world", "a  b\n\n\tc \n", "na\u00efve caf\u00e9 \u65e5\u672c 12\u00bd", "\xff\xfe a\xc3", "\xe2\x82",
		"<|im_start|>user\n<|im_", strings.Repeat("ab", 100), "\u2028x\u00a0y\u0085",
	} {
		f.Add(s)
	}
	tok := load(f)
	f.Fuzz(func(t *testing.T, s string) {
		for name, ids := range map[string][]uint32{"Encode": tok.Encode(s), "EncodeSpecial": tok.EncodeSpecial(s)} {
			if got := tok.Decode(ids); got != s {
				t.Fatalf("%s: %q became %q", name, s, got)
			}
			dec := tok.NewDecoder()
			var sb strings.Builder
			for _, id := range ids {
				piece := dec.Add(id)
				if utf8.ValidString(s) && !utf8.ValidString(piece) {
					t.Fatalf("%s: %q has the broken piece %q", name, s, piece)
				}
				sb.WriteString(piece)
			}
			sb.WriteString(dec.Flush())
			if sb.String() != s {
				t.Fatalf("%s: %q streamed as %q", name, s, sb.String())
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	tok := load(b)
	text := strings.Repeat("The picker predicts, for each candidate, the time this request costs there; 512 tokens a block.\n", 1000)
	dst := make([]uint32, 0, len(text))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		dst = tok.AppendEncode(dst[:0], text)
	}
}
