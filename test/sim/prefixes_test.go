package sim_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/test/sim"
)

// TestTexts: the workload is what it says: JSON that repeats, prompts that go on
// where the turn before ended, in every style of client.
func TestTexts(t *testing.T) {
	t.Parallel()
	p := sim.DefaultTexts()
	p.Chats, p.Systems = 30, 5
	trace, turns, err := p.Make(1)
	if err != nil {
		t.Fatal(err)
	}
	again, same, err := p.Make(1)
	if err != nil || !reflect.DeepEqual(trace, again) || !reflect.DeepEqual(turns, same) {
		t.Errorf("two workloads of one seed differ (%v)", err)
	}
	continued := 0
	for i := range turns {
		a := &turns[i]
		if !json.Valid(a.Body) {
			t.Fatalf("turn %d is not JSON: %.200s", i, a.Body)
		}
		if e := &trace.Entries[i]; e.ISL != len(a.Prompt) || len(e.Blocks) != e.ISL/16 || len(e.Blocks)+len(e.Answer) != (e.ISL+e.OSL)/16 {
			t.Fatalf("turn %d: %d tokens, %d and %d blocks", i, e.ISL, len(e.Blocks), len(e.Answer))
		}
		text := slices.Concat(a.Prompt, a.Answer)
		for j := range turns {
			if len(turns[j].Prompt) > len(text) && slices.Equal(turns[j].Prompt[:len(text)], text) {
				continued++
				break
			}
		}
	}
	if continued < len(turns)/3 {
		t.Errorf("%d of %d turns are continued by a later one", continued, len(turns))
	}
}

// TestPrefixes holds learned prefixes against exact tokenization, over fewer texts
// than the benchmark.
func TestPrefixes(t *testing.T) {
	t.Parallel()
	plan, seeds := sim.DefaultTexts(), 4
	plan.Chats = 120
	if raced {
		plan.Chats, seeds = 30, 1
	}
	p, err := sim.ComparePrefixes(t.Context(), plan, seeds)
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if err := p.Print(&table); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", &table)
	f := &p.Foresight
	if f.Points(f.Over) > 0.1 {
		t.Errorf("learned prefixes claim %.3f points too much, want at most 0.1", f.Points(f.Over))
	}
	if raced {
		return // too few texts for the rest
	}
	if f.Points(f.Under) > 1 {
		t.Errorf("learned prefixes miss %.2f points, want at most 1", f.Points(f.Under))
	}
	if hit := p.Learned.HitRate / p.Exact.HitRate; hit < 0.98 {
		t.Errorf("hit rate x%.4f of that with exact tokens", hit)
	}
	if wait := p.Learned.TTFT.Mean / p.Exact.TTFT.Mean; wait > 1.03 {
		t.Errorf("mean TTFT x%.4f of that with exact tokens", wait)
	}
}
