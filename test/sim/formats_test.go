package sim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/test/sim"
)

func TestFormats(t *testing.T) {
	for _, c := range []struct {
		name, text string
		size       int
		at         time.Duration // of the last request
		isl, osl   int
		blocks     int
		shares     bool // the last two requests share their first block
	}{
		{
			"mooncake", `{"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [1, 2, 3]}
{"timestamp": 3000, "input_length": 1024, "output_length": 0, "hash_ids": [1, 4]}
`, 512, 3 * time.Second, 1024, 1, 2, true,
		},
		{
			"bailian", `{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 33, "output_length": 7, "type": "text", "turn": 1, "hash_ids": [1089, 1090, 6]}
{"chat_id": 2, "parent_chat_id": 1, "timestamp": 61.5, "input_length": 48, "output_length": 9, "type": "text", "turn": 2, "hash_ids": [1089, 1090, 7]}
`, 16, 61500 * time.Millisecond, 48, 9, 3, true,
		},
		{
			"azure", `TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,1396,109
`, 512, 4314579 * time.Microsecond, 1396, 109, 2, false,
		},
		{
			"lengths only", `{"timestamp": 0, "input_length": 600, "output_length": 5}
{"timestamp": 1, "input_length": 600, "output_length": 5}
`, 512, time.Millisecond, 600, 5, 1, false,
		},
	} {
		trace, err := sim.ReadTrace(c.name, strings.NewReader(c.text), 0)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		first, last := trace.Entries[0], trace.Entries[1]
		if trace.BlockSize != c.size || last.At != c.at || last.ISL != c.isl || last.OSL != c.osl || len(last.Blocks) != c.blocks {
			t.Errorf("%s: blocks of %d, last request %+v", c.name, trace.BlockSize, last)
		}
		if shares := len(first.Blocks) > 0 && first.Blocks[0] == last.Blocks[0]; shares != c.shares {
			t.Errorf("%s: the requests share their first block: %t", c.name, shares)
		}
	}
}

func TestFormatErrors(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "other": "a,b\n1,2\n", "huge": `{"timestamp": 0, "input_length": 1000000000000, "output_length": 5}`, "no time": `{"input_length": 5, "output_length": 5}`, "garbage": `{"timestamp": `,
		"block size": `{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]}`,
		"back":       "{\"timestamp\": 5, \"input_length\": 5, \"output_length\": 5}\n{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 5}",
		"azure time": "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n",
	} {
		if _, err := sim.ReadTrace(name, strings.NewReader(text), 0); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add([]byte(`{"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [1, 2, 3]}`))
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		trace, err := sim.ReadTrace("fuzz", strings.NewReader(string(text)), 0)
		if err != nil {
			return
		}
		for _, e := range trace.Entries {
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
	if a, b := one.Bounds(0).Ideal, three.Bounds(0).Ideal; a != b {
		t.Errorf("ideal hit rate %v of one copy, %v of three: they share blocks, or lost some", a, b)
	}
}
