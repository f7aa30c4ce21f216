package replay

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

func TestReadScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			limit := 0
			d.MaybeScanArgs(t, "limit", &limit)
			entries, err := Read(strings.NewReader(d.Input), limit)
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			var b strings.Builder
			for _, e := range entries {
				b.WriteString(describe(e))
			}
			return b.String()
		})
	})
}

func TestShippedTraces(t *testing.T) {
	for name, want := range map[string]int{"conversation_trace.jsonl.gz": 12031, "synthetic_trace.jsonl.gz": 3993} {
		entries, err := Load(filepath.Join("..", "..", "test", "data", "traces", name), 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) != want {
			t.Errorf("%s: %d requests, want %d", name, len(entries), want)
		}
	}
}

func TestLoadMissing(t *testing.T) {
	if _, err := Load("nowhere.jsonl", 0); !os.IsNotExist(unwrapAll(err)) {
		t.Errorf("Load of a missing file: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"timestamp": 3, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}`))
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, _ = w.Write([]byte(`{"timestamp":0,"input_length":1,"output_length":0,"hash_ids":[9]}`)) // a buffer does not fail
	_ = w.Close()
	f.Add(z.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := Read(bytes.NewReader(data), 50)
		if err != nil {
			return
		}
		last := time.Duration(0)
		for _, e := range entries {
			if e.At < last || e.ISL < 1 || e.OSL < 1 || len(e.Blocks) != (e.ISL+BlockTokens-1)/BlockTokens {
				t.Fatalf("accepted a bad entry: %+v", e)
			}
			last = e.At
		}
	})
}
