package workers

import (
	"slices"
	"testing"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// TestHybridEngine: from a hybrid engine's events to the prefix that all its groups
// have: every block for full attention, the last ones for a sliding window.
func TestHybridEngine(t *testing.T) {
	tokens := make([]uint32, 16*6)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	hashes := make([]enginewire.Hash, 6)
	for i := range hashes {
		hashes[i] = enginewire.IntHash(uint64(100 + i))
	}
	stored := func(group int, kind string, window, from, to int) enginewire.Event {
		e := enginewire.Event{
			Kind: enginewire.Stored, Hashes: hashes[from:to], Tokens: tokens[16*from : 16*to], BlockSize: 16,
			Group: group, GroupKind: kind, Window: window,
		}
		if from > 0 {
			e.Parent = &hashes[from-1]
		}
		return e
	}
	first := enginewire.Batch{Events: []enginewire.Event{
		stored(0, "sliding_window", 33, 0, 6), stored(1, "full_attention", 0, 0, 6),
	}}
	// The window needs two blocks before the prefix's end; 0 to 2 and 4 go.
	second := enginewire.Batch{Events: []enginewire.Event{
		{Kind: enginewire.Removed, Hashes: []enginewire.Hash{hashes[0], hashes[4]}, Group: 0},
	}}
	e, p := newFakeEngine(t), newPublisherSocket(t, true)
	l := memlog.New(memlog.Options{})
	w := newWatch(t, l)
	p.router.set([]batch{{0, enginewire.Encode(first, enginewire.Map)}}, nil)
	startAgent(t, e.URL, l, func(c *Config) {
		c.WorkerID, c.KVEvents, c.KVReplay = "w1", []string{p.events}, []string{p.replay}
	})
	w.awaitReady("w1", true)
	want := []kvindex.GroupSpec{{}, {Kind: kvindex.GroupWindow, Window: 33}}
	w.await("a Hello with the groups", func(rs []kvindex.Record) bool {
		h := lastOf(rs, kvindex.KindHello)
		return h != nil && slices.Equal(h.Hello.Groups, want)
	})
	chain := kvindex.AppendChain(nil, kvindex.Namespace{Model: "base", BlockSize: 16}.Root(), tokens, 16)
	hit := func(want uint32) {
		t.Helper()
		w.await("the prefix of all groups", func([]kvindex.Record) bool {
			m := w.index.Overlap(chain, nil)
			return len(m) == 1 && m[0].Depth[kvindex.Device] == want
		})
	}
	hit(6)
	p.awaitSubscriber()
	p.send(1, enginewire.Encode(second, enginewire.Array))
	hit(4) // 2 and 3 are there; 5 alone is too few
}
