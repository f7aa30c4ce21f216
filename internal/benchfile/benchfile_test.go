package benchfile

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRows(t *testing.T) {
	f := New("demo", true)
	f.Compare("a", "ttft", "ms", "lower", 80, "round-robin", 100, 0.8)
	f.Compare("b", "ttft", "ms", "lower", 81, "round-robin", 100, 0.8)
	f.Compare("c", "hit", "ratio", "higher", 0.2, "round-robin", 0.1, 1.5)
	f.Compare("d", "hit", "ratio", "higher", 0.2, "round-robin", 0, 1.5)
	f.Compare("e", "hit", "ratio", "higher", 0.2, "round-robin", 0.4, 0)
	f.Bound("f", "errors", "requests", "lower", 0, 0)
	f.Bound("g", "rate", "1/s", "higher", 9, 10)
	f.Because("too slow")
	f.Compare("h", "ttft", "ms", "lower", 80, "round-robin", 100, 0.8)
	f.Because("never shown")
	want := []bool{true, false, true, false, true, true, false, true}
	for i, row := range f.Rows {
		if row.OK != want[i] {
			t.Errorf("row %s: ok %t, want %t", row.Case, row.OK, want[i])
		}
	}
	if f.Rows[6].Reason != "too slow" || f.Rows[7].Reason != "" {
		t.Errorf("reasons %q and %q", f.Rows[6].Reason, f.Rows[7].Reason)
	}
	if f.Rows[3].Ratio != nil {
		t.Error("a ratio to zero was computed")
	}
	dir := filepath.Join(t.TempDir(), "out", "bench")
	if err := f.Write(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "demo.json"))
	if err != nil {
		t.Fatal(err)
	}
	var back File
	if err := json.Unmarshal(text, &back); err != nil || len(back.Rows) != len(want) || back.CPU == "" {
		t.Errorf("read back %+v, %v", back, err)
	}
	var table bytes.Buffer
	if err := f.Print(&table); err != nil || strings.Count(table.String(), "\n") != 2+len(want) {
		t.Errorf("Print: %v\n%s", err, table.String())
	}
}
