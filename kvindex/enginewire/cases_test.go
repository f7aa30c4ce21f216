package enginewire

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const casesDir = "../../test/data/cases"

// rows calls f with every line of a JSON-lines file.
func rows[T any](t *testing.T, path string, f func(line int, row T)) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(bytes.NewReader(b))
	s.Buffer(nil, 1<<20)
	for n := 1; s.Scan(); n++ {
		var row T
		if err := json.Unmarshal(s.Bytes(), &row); err != nil {
			t.Fatalf("%s:%d: %v", path, n, err)
		}
		f(n, row)
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestForms runs the 70 payloads of case C15 and compares both counters. An
// event that is understood and skipped for its medium counts as applied there.
func TestForms(t *testing.T) {
	type row struct {
		Name, Hex string
		Want      struct{ Applied, Bad int }
	}
	seen := 0
	rows(t, filepath.Join(casesDir, "C15-forms.jsonl"), func(line int, r row) {
		seen++
		b, err := Decode(unhex(t, r.Hex))
		applied, bad := len(b.Events)+len(b.Skipped), len(b.Bad)
		if err != nil {
			bad++
		}
		if applied != r.Want.Applied || bad != r.Want.Bad {
			t.Errorf("line %d, %s: applied %d, bad %d; want %d and %d (err %v, bad %v)",
				line, r.Name, applied, bad, r.Want.Applied, r.Want.Bad, err, b.Bad)
		}
	})
	if seen != 70 {
		t.Errorf("%d rows, want 70", seen)
	}
}

// TestScripts decodes every batch of the other scripts: none is bad, and
// re-encoding the map form gives the same bytes, which were written with the
// library and the field order of vLLM.
func TestScripts(t *testing.T) {
	type row struct {
		Do, Hex string
		Batches []struct{ Hex string }
	}
	files, err := filepath.Glob(filepath.Join(casesDir, "C1[234]-*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range files {
		rows(t, path, func(line int, r row) {
			payloads := []string{r.Hex}
			for _, b := range r.Batches {
				payloads = append(payloads, b.Hex)
			}
			for _, p := range payloads {
				if p == "" {
					continue
				}
				raw := unhex(t, p)
				b, err := Decode(raw)
				if err != nil || len(b.Bad) > 0 || len(b.Skipped) > 0 || len(b.Events) == 0 {
					t.Errorf("%s:%d: %v, bad %v", path, line, err, b.Bad)
				}
				signed := strings.Contains(path, "forms") || strings.Contains(path, "parent")
				if strings.HasSuffix(path, ".map.jsonl") && !signed {
					if got := Encode(b, Map); !bytes.Equal(got, raw) {
						t.Errorf("%s:%d: encoded again:\n%x\nwant\n%x", path, line, got, raw)
					}
				}
			}
		})
	}
}

// TestTwins checks case C14: in every pair of a stored and a removed event of
// the same blocks the hashes are equal, whatever their spelling, and chains
// that share only 8 of 32 bytes stay apart.
func TestTwins(t *testing.T) {
	type row struct{ From, What, Hex string }
	for _, name := range []string{"C14-forms.map", "C14-forms.array", "C14-collide.map", "C14-collide.array"} {
		stored := make(map[string][]Hash)
		owner := make(map[Hash]string)
		removals := 0
		rows(t, filepath.Join(casesDir, name+".jsonl"), func(line int, r row) {
			if r.From != "w1" {
				return
			}
			b, err := Decode(unhex(t, r.Hex))
			if err != nil {
				t.Fatalf("%s:%d: %v", name, line, err)
			}
			what, blocks, _ := strings.Cut(r.What, " ")
			hs := b.Events[0].Hashes
			if what == "stored" {
				stored[blocks] = hs
				for _, h := range hs {
					if other, ok := owner[h]; ok {
						t.Errorf("%s:%d: block %s of %s is also one of %s", name, line, h, blocks, other)
					}
					owner[h] = blocks
				}
				return
			}
			removals++
			for i, h := range hs {
				if h != stored[blocks][i] {
					t.Errorf("%s:%d: removed %s, stored %s", name, line, h, stored[blocks][i])
				}
			}
		})
		if removals == 0 {
			t.Errorf("%s: nothing was removed", name)
		}
	}
}

// TestZero checks that 0 is a hash and a parent, not "none".
func TestZero(t *testing.T) {
	type row struct{ From, Hex string }
	var parents []Hash
	rows(t, filepath.Join(casesDir, "C14-zero.map.jsonl"), func(_ int, r row) {
		if r.From != "w1" {
			return
		}
		b, err := Decode(unhex(t, r.Hex))
		if err != nil {
			t.Fatal(err)
		}
		e := b.Events[0]
		if e.Parent != nil {
			parents = append(parents, *e.Parent)
		} else if e.Hashes[0] != IntHash(0) {
			t.Errorf("first block %s, want zero", e.Hashes[0])
		}
	})
	if len(parents) != 1 || parents[0] != IntHash(0) {
		t.Errorf("parents %v, want one of value 0", parents)
	}
}
