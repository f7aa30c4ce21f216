package main

import (
	"slices"
	"testing"

	"github.com/kvlane/kvlane/kvindex"
)

func TestNumbers(t *testing.T) {
	r := random{state: 42}
	for _, c := range []struct{ got, want uint64 }{
		{mix(0), 16294208416658607535},
		{mix(42), 13679457532755275413},
		{r.next(), 13679457532755275413},
		{r.next(), 2949826092126892291},
		{r.next(), 5139283748462763858},
		{r.next(), 6349198060258255764},
		{block(inPrefix, 0, 0), 10427778489764412663},
		{block(inBody, 5, 100), 6463629447246244909},
		{block(unknown, 1, 128), 3727278507965030721},
	} {
		if c.got != c.want {
			t.Errorf("got %d, want %d", c.got, c.want)
		}
	}
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		workers                              uint64
		conversations, memberships, distinct int
		events, singles, removes, removed    int
	}{
		{32, 6875, 1000172, 925836, 52520, 251438, 28822, 435651},
		{256, 6454, 1000101, 872901, 49385, 236482, 27042, 408848},
	} {
		p := newPlan(c.workers, target)
		if len(p.conversations) != c.conversations || p.memberships != c.memberships || p.distinct != c.distinct {
			t.Errorf("%d workers: %d conversations, %d memberships, %d blocks", c.workers, len(p.conversations), p.memberships, p.distinct)
		}
		count := func(singles bool) (events, blocks int) {
			p.stores(given, singles, func(_ uint64, _ kvindex.BlockHash, hashes []kvindex.BlockHash) {
				events++
				blocks += len(hashes)
			})
			return events, blocks
		}
		if events, blocks := count(false); events != c.events || blocks != c.memberships {
			t.Errorf("%d workers: %d stores of %d blocks", c.workers, events, blocks)
		}
		if events, blocks := count(true); events != c.singles || blocks != c.memberships {
			t.Errorf("%d workers: %d stores with singles of %d blocks", c.workers, events, blocks)
		}
		events, blocks := 0, 0
		p.removes(given, func(_ uint64, hashes []kvindex.BlockHash) {
			events++
			blocks += len(hashes)
		})
		if events != c.removes || blocks != c.removed {
			t.Errorf("%d workers: %d removes of %d blocks", c.workers, events, blocks)
		}
	}
}

func TestFirstConversation(t *testing.T) {
	p := newPlan(32, 10_000)
	c := &p.conversations[0]
	if c.family != 291 || c.worker != 18 || c.length != 205 || !slices.Equal(c.turns, []int{19, 19, 16, 32, 4, 7, 31, 31, 14}) {
		t.Errorf("conversation 0: %+v", c)
	}
	blocks := c.blocks()
	chain := given(blocks)
	if blocks[204] != 2728891127974381597 || chain[204] != 8611020669470401522 {
		t.Errorf("last block %d, last hash %d", blocks[204], chain[204])
	}
	if c := &p.conversations[2]; c.family != 263 || c.worker != 3 || c.length != 67 || !slices.Equal(c.turns, []int{14, 18, 3}) {
		t.Errorf("conversation 2: %+v", c)
	}
}

// Both kinds of keys give the same answers. That all of the workload's queries
// give the agreed sums is checked whenever the bench runs.
func TestSums(t *testing.T) {
	p := newPlan(32, 50_000)
	want := map[string]sums{}
	for name, hash := range map[string]keys{"given": given, "from tokens": fromTokens} {
		x, err := filled(p, hash)
		if err != nil {
			t.Fatal(err)
		}
		for _, set := range p.queries() {
			set.prompts = set.prompts[:min(len(set.prompts), 64)]
			got := sumsOf(x, set, hash)
			if first, ok := want[set.name]; ok && got != first {
				t.Errorf("%s: keys %s give %+v, others %+v", set.name, name, got, first)
			}
			want[set.name] = got
		}
	}
	for _, name := range []string{"deep1024", "deep8192", "miss"} { // the others depend on the plan's size
		if full := wantSums(32, name); want[name] != full {
			t.Errorf("%s: %+v, want %+v", name, want[name], full)
		}
	}
}
