package sim_test

import (
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/test/sim"
)

// TestFormats reads what stands in testdata/formats as a trace and prints it:
// requests with their time, lengths and blocks, which are named in the order they
// appear.
//
//	read limit=0
func TestFormats(t *testing.T) {
	datadriven.Walk(t, "testdata/formats", func(t *testing.T, path string) {
		t.Helper()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			limit := 0
			d.MaybeScanArgs(t, "limit", &limit)
			trace, err := sim.ReadTrace("fixture", strings.NewReader(d.Input), limit)
			if err != nil {
				return err.Error() + "\n"
			}
			return describe(trace)
		})
	})
}

func describe(trace sim.Trace) string {
	var b strings.Builder
	names := map[kvindex.BlockHash]string{}
	fmt.Fprintf(&b, "blocks of %d\n", trace.BlockSize)
	for _, e := range trace.Entries {
		blocks := make([]string, len(e.Blocks))
		for i, h := range e.Blocks {
			if names[h] == "" {
				names[h] = fmt.Sprintf("b%d", len(names)+1)
			}
			blocks[i] = names[h]
		}
		fmt.Fprintf(&b, "%v: %d in, %d out, %s\n", e.At, e.ISL, e.OSL, strings.Join(blocks, " "))
	}
	return b.String()
}

// TestFormatSizes: what would take memory without end is refused.
func TestFormatSizes(t *testing.T) {
	for name, text := range map[string]string{
		"no request": "", "a line of 2 MiB": `{"timestamp": 0, "x": "` + strings.Repeat("x", 2<<20) + `"}`,
	} {
		_, err := sim.ReadTrace(name, strings.NewReader(text), 0)
		t.Logf("%s: %v", name, err)
		if err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// TestFormatGzip: the trace of Dynamo's replay reads the same, packed or not.
func TestFormatGzip(t *testing.T) {
	packed := loadTrace(t, "synthetic", 100)
	f, err := os.Open(filepath.Join("..", "data", "traces", "synthetic_trace.jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := sim.ReadTrace("synthetic", z, 100)
	if err != nil || !reflect.DeepEqual(packed, plain) {
		t.Errorf("the unpacked trace differs (%v)", err)
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add([]byte(`{"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [1, 2, 3]}`))
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"))
	f.Add([]byte(`{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 33, "output_length": 7, "type": "text", "turn": 1, "hash_ids": [1089, 1090, 6]}`))
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n0001-01-01 00:00:00,1,1\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		trace, err := sim.ReadTrace("fuzz", strings.NewReader(string(text)), 0)
		if err != nil {
			return
		}
		for i, e := range trace.Entries {
			if i > 0 && e.At < trace.Entries[i-1].At || e.At < 0 {
				t.Fatalf("entry %d at %v", i, e.At)
			}
			if e.ISL < 1 || e.OSL < 1 || len(e.Blocks) != e.ISL/trace.BlockSize {
				t.Fatalf("entry %+v with blocks of %d", e, trace.BlockSize)
			}
		}
	})
}

func TestTimes(t *testing.T) {
	one := loadTrace(t, "synthetic", 500)
	three := one.Times(3)
	if len(three.Entries) != 1500 {
		t.Fatalf("%d requests, want 1500", len(three.Entries))
	}
	for i := 1; i < len(three.Entries); i++ {
		if three.Entries[i].At < three.Entries[i-1].At {
			t.Fatalf("request %d arrives before the one before it", i)
		}
	}
	// Bursts of the copies do not add up: the busiest ten seconds are less above the
	// mean than those of one copy.
	if a, b := burst(one), burst(three); b > a {
		t.Errorf("the busiest ten seconds have x%.2f of the mean, of one copy x%.2f", b, a)
	}
	if a, b := one.Bounds(0).Ideal, three.Bounds(0).Ideal; a != b {
		t.Errorf("ideal hit rate %v of one copy, %v of three: they share blocks, or lost some", a, b)
	}
}

// burst is the requests of the busiest ten seconds over the mean.
func burst(t sim.Trace) float64 {
	const bin = 10 * time.Second
	counts := map[time.Duration]int{}
	most := 0
	for _, e := range t.Entries {
		counts[e.At/bin]++
		most = max(most, counts[e.At/bin])
	}
	span := t.Entries[len(t.Entries)-1].At - t.Entries[0].At
	return float64(most) / float64(len(t.Entries)) * float64(span) / float64(bin)
}
