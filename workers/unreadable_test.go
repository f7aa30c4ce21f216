package workers

import (
	"encoding/hex"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
)

// TestUnreadableBatch: a batch that cannot be read may have taken blocks away. It is
// asked for again; if that does not help, nothing is believed any more of what was
// before it.
func TestUnreadableBatch(t *testing.T) {
	s := newStage(t, logs{"", 1, embedded}, false)
	s.hire("w1", 1)
	p, a := s.sockets["w1"], s.agents["w1"]
	event := func(kind enginewire.Kind, names ...uint64) []byte {
		e := enginewire.Event{Kind: kind}
		for _, n := range names {
			e.Hashes = append(e.Hashes, enginewire.IntHash(n))
		}
		if kind == enginewire.Stored {
			e.BlockSize, e.Tokens = 16, make([]uint32, 16*len(names))
			e.Tokens[0] = uint32(names[0])
		}
		return enginewire.Encode(enginewire.Batch{Events: []enginewire.Event{e}}, enginewire.Map)
	}
	broken := []byte("not msgpack")
	seq := uint64(0)
	send := func(payload []byte) {
		t.Helper()
		s.step(int(seq), step{Do: "publish", From: "w1", Seq: seq, Hex: hex.EncodeToString(payload)})
		seq++
	}
	expect := func(when string, blocks int, bad, recovered, doubts float64) {
		t.Helper()
		if n := len(s.watches[0].index.Blocks(kvindex.Owner{Worker: idOf("w1")})); n != blocks {
			t.Errorf("%s: %d blocks, want %d", when, n, blocks)
		}
		got := []float64{a.metric("kv_batches_total", "bad"), a.metric("kv_batches_total", "recovered"), a.metric("kv_doubts_total")}
		if !slices.Equal(got, []float64{bad, recovered, doubts}) {
			t.Errorf("%s: bad, recovered, doubts %v, want %v", when, got, []float64{bad, recovered, doubts})
		}
	}
	first, gone := event(enginewire.Stored, 1, 2, 3), event(enginewire.Removed, 3)
	send(first)
	p.router.set([]batch{{0, first}, {1, gone}}, nil)
	send(broken) // on the way only: the engine has it as it was
	expect("replayed", 2, 1, 1, 0)
	send(broken) // the engine has nothing else
	expect("lost", 0, 2, 1, 1)
	send(broken)
	expect("nothing can be read", 0, 3, 1, 1)
	send(event(enginewire.Stored, 11, 12))
	expect("readable again", 2, 3, 1, 1)
	p.router.set([]batch{{4, event(enginewire.Stored, 11, 12)}, {5, broken}, {6, event(enginewire.Stored, 21)}}, nil)
	seq = 7
	send(event(enginewire.Stored, 31, 32, 33)) // shows a gap whose replay cannot be read
	expect("a replay that cannot be read", 4, 4, 3, 2)
	if n := a.metric("engine_lives_total"); n != 0 {
		t.Errorf("%v new lives", n)
	}
}
