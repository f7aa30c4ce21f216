package sim_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/benchfile"
	"github.com/kvlane/kvlane/test/sim"
)

// TestReport: the page has every plot (the imbalance takes a longer trace) and row, is well-formed, and loads nothing.
func TestReport(t *testing.T) {
	t.Parallel()
	study := &sim.Study{}
	for _, trace := range []string{"one", "two"} {
		c := sim.Case{Trace: trace, Workers: 4, Blocks: 150, Bounds: sim.Bounds{Ideal: 0.5, Pooled: 0.3}, Capacity: map[string]float64{sim.Ours: 1.5}}
		for i, name := range []string{sim.LoadLight, sim.LoadModerate} {
			cfg := small(t, sim.Ours)
			cfg.Speed = 1 + float64(i)
			results, err := sim.Compare(t.Context(), cfg, 1, sim.Policies())
			if err != nil {
				t.Fatal(err)
			}
			c.Loads = append(c.Loads, sim.Load{Name: name, Speed: cfg.Speed, Results: results})
		}
		study.Cases = append(study.Cases, c)
	}
	file := benchfile.New("fleet", true)
	file.Compare("a case", "TTFT mean", "ms", "lower", 80, "a < peer", 100, 0.9)
	file.Compare("a case", "goodput", "share", "higher", 0.5, "a < peer", 0.6, 1)
	file.Because("it is <slower>")
	file.Compare("a case", "hit rate", "share", "higher", 0.5, "a < peer", 0, 0)
	var page strings.Builder
	if err := study.WriteReport(&page, file); err != nil {
		t.Fatal(err)
	}
	text := page.String()
	for want, n := range map[string]int{
		"<svg": 2 + 2*2*2, "1 of 2 met": 1, "it is &lt;slower&gt;": 1, "NaN": 0, "Inf": 0, "href": 0, "src=": 0, "ZgotmplZ": 0,
		"1 figures without a goal": 1, "cache of all blocks, LRU 30.0": 4,
	} {
		if got := strings.Count(text, want); got != n {
			t.Errorf("%q stands %d times in the page, want %d", want, got, n)
		}
	}
	for svg := range strings.SplitSeq(text, "<svg") {
		if body, _, ok := strings.Cut(svg, "</svg>"); ok {
			wellFormed(t, "<svg"+body+"</svg>")
		}
	}
	main := study.MainPlot()
	wellFormed(t, main)
	if strings.Count(main, ">"+sim.Ours+"<") != 1 || len(main) > 30_000 {
		t.Errorf("the main plot has %d bytes and names ours %d times", len(main), strings.Count(main, ">"+sim.Ours+"<"))
	}
	if dir := os.Getenv("REPORT_DIR"); dir != "" { // to look at
		for name, content := range map[string]string{"page.html": text, "main.svg": main} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func wellFormed(t *testing.T, svg string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%v in %.200s", err, svg)
		}
	}
}
