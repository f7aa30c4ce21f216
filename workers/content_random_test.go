package workers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// fakeCache makes up what an engine with two groups and three tiers says: prompts
// of one-token blocks that begin alike, in both groups, offloaded in any order,
// removed from anywhere, some names used for other content, some blocks under two
// names.
type fakeCache struct {
	rng   *rand.Rand
	names []enginewire.Hash
}

func (f *fakeCache) batch() enginewire.Batch {
	var b enginewire.Batch
	for range 1 + f.rng.IntN(4) {
		b.Events = append(b.Events, f.event())
	}
	return b
}

func (f *fakeCache) event() enginewire.Event {
	e := enginewire.Event{Kind: enginewire.Removed, Group: f.rng.IntN(2), Tier: kvindex.Tier(f.rng.IntN(3) * f.rng.IntN(2))}
	e.GroupKind = []string{"full_attention", "sliding_window"}[e.Group]
	n := f.rng.IntN(100)
	if n == 99 {
		return enginewire.Event{Kind: enginewire.Cleared}
	}
	if len(f.names) > 0 && n < 60 {
		for range 1 + f.rng.IntN(5) {
			e.Hashes = append(e.Hashes, f.names[len(f.names)-1-f.rng.IntN(min(300, len(f.names)))])
		}
		if n < 25 {
			e.Kind = enginewire.Stored // moved
		}
		return e
	}
	e.Kind, e.BlockSize = enginewire.Stored, 1
	e.Tier = kvindex.Tier(f.rng.IntN(6) / 5)
	name, depth := uint64(f.rng.IntN(3)), f.rng.IntN(30)
	for i := range depth + 1 + f.rng.IntN(20) {
		token := uint32(f.rng.IntN(20) / 18)
		name = name*31 + uint64(token) + 1
		h := enginewire.IntHash(name * 0x9e3779b97f4a7c15)
		if f.rng.IntN(100) == 0 {
			h = enginewire.IntHash(uint64(f.rng.IntN(1000)))
		}
		f.names = append(f.names, h)
		if i < depth {
			e.Parent = &h
			continue
		}
		e.Hashes, e.Tokens = append(e.Hashes, h), append(e.Tokens, token)
	}
	return e
}

// told is what readers of records hold: copies, and the last parent said.
type told map[kvindex.Owner]map[toldKey]*toldBlock

type toldKey struct {
	group uint16
	hash  kvindex.BlockHash
}

type toldBlock struct {
	copies int
	parent kvindex.BlockHash
}

func (x told) apply(t *testing.T, r *kvindex.Record) {
	t.Helper()
	m := x[r.Owner]
	if m == nil || r.Kind == kvindex.KindCleared {
		m = map[toldKey]*toldBlock{}
		x[r.Owner] = m
	}
	switch r.Kind {
	case kvindex.KindStored:
		parent := r.Stored.Parent
		for _, h := range r.Stored.Hashes {
			k := toldKey{r.Stored.Group, h}
			if m[k] == nil {
				m[k] = &toldBlock{}
			}
			m[k].copies++
			if parent != 0 {
				m[k].parent = parent
			}
			parent = h
		}
	case kvindex.KindRemoved:
		for _, h := range r.Removed.Hashes {
			k := toldKey{r.Removed.Group, h}
			if m[k] == nil {
				t.Fatalf("%s: removed %x, which is not there", r.Owner, h)
			}
			m[k].copies--
			if m[k].copies == 0 {
				delete(m, k)
			}
		}
	default: // nothing of blocks
	}
}

// read is what records amount to for a reader, who leaves out what is older than
// what it has.
func read(t *testing.T, records []kvindex.Record) told {
	t.Helper()
	x := told{}
	type mark struct{ epoch, seq uint64 }
	last := map[kvindex.Owner]mark{}
	for i := range records {
		r := &records[i]
		switch at := last[r.Owner]; {
		case r.Kind != kvindex.KindStored && r.Kind != kvindex.KindRemoved && r.Kind != kvindex.KindCleared:
		case r.Epoch < at.epoch || r.Epoch == at.epoch && r.Seq != 0 && r.Seq <= at.seq:
		default:
			last[r.Owner] = mark{r.Epoch, max(r.Seq, at.seq)}
			x.apply(t, r)
		}
	}
	return x
}

// listTold writes the blocks of an owner in order.
func listTold(held map[toldKey]*toldBlock) string {
	var out []string
	for k, b := range held {
		out = append(out, fmt.Sprintf("%x/%d*%d", k.hash, k.group, b.copies))
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

// TestContentHolds: what a content says it holds is what the records that it gave
// amount to, with the same parents, each block after its parent.
func TestContentHolds(t *testing.T) {
	for range 20 {
		seed := rand.Uint64()
		f := &fakeCache{rng: rand.New(rand.NewPCG(seed, 0))}
		c, want := newContent("w", 0, "m", nil), told{}
		for i := range 600 {
			records, _ := c.apply(f.batch(), uint64(i))
			for j := range records {
				want.apply(t, &records[j])
			}
			if i%40 == 0 || i == 599 {
				checkHolds(t, seed, c, want)
			}
		}
	}
}

func checkHolds(t *testing.T, seed uint64, c *content, want told) {
	t.Helper()
	for tier := range kvindex.Tier(kvindex.NumTiers) {
		held, got := want[c.owner(tier)], map[toldKey]int{}
		for s := range c.holds(tier) {
			parent := s.Parent
			for _, h := range s.Hashes {
				k := toldKey{s.Group, h}
				if before := (toldKey{s.Group, parent}); held[before] != nil && got[before] == 0 {
					t.Fatalf("seed %d, %s: %x comes before its parent", seed, tier, h)
				}
				if b := held[k]; b == nil || b.parent != 0 && parent != b.parent && (parent != 0 || s.Group == 0) {
					t.Fatalf("seed %d, %s: %x after %x, want %+v", seed, tier, h, parent, b)
				}
				got[k]++
				parent = h
			}
		}
		for k, b := range held {
			if got[k] != b.copies {
				t.Fatalf("seed %d, %s: %d copies of %x in group %d, want %d", seed, tier, got[k], k.hash, k.group, b.copies)
			}
		}
		if len(got) != len(held) {
			t.Fatalf("seed %d, %s: %d blocks, want %d", seed, tier, len(got), len(held))
		}
	}
}

// TestEventsThroughFaults: whatever happens to the log while events come, its
// readers end with what they amount to, and so does a checkpoint with what was
// appended behind it, at any time.
func TestEventsThroughFaults(t *testing.T) {
	for range 10 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testEvents(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func testEvents(t *testing.T, rng *rand.Rand) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := &askingLog{Log: memlog.New(memlog.Options{})}
	faulty := newFaultyLog(l)
	w := startWriter(ctx, faulty, 1)
	f := &fakeCache{rng: rng}
	wants := [2]told{{}, {}}
	var twins [2]*content
	renew := func(rank uint16, epoch uint64) {
		twins[rank] = newContent("w", rank, "m", nil)
		for o := range wants[rank] {
			clear(wants[rank][o])
		}
		w.put(ctx, update{rank: rank, epoch: epoch})
	}
	renew(0, 1)
	renew(1, 1)
	for i := range 500 {
		rank := uint16(rng.IntN(2))
		e := &events{seq: uint64(i), model: "m", seen: func(*content, applied) {}}
		switch n := rng.IntN(100); {
		case n < 4:
			faulty.set(l, errAway)
			continue
		case n < 12:
			faulty.set(l, nil)
			continue
		case n < 15:
			l.ask(rng.IntN(4) == 0)
			continue
		case n < 25:
			sleep(time.Duration(rng.IntN(700)) * time.Millisecond)
			continue
		case n < 26:
			renew(rank, uint64(i+2))
			continue
		case n < 27:
			e.lost = true
		default:
			e.batch = f.batch()
		}
		records := twins[rank].clear
		if !e.lost {
			records = func() []kvindex.Record { rs, _ := twins[rank].apply(e.batch, e.seq); return rs }
		}
		for _, r := range records() {
			wants[rank].apply(t, &r)
		}
		w.put(ctx, update{rank: rank, events: e})
	}
	faulty.set(l, nil)
	l.ask(false)
	sleep(3 * time.Second)
	synctest.Wait()
	l.mu.Lock()
	content, taken := slices.Clone(l.content), l.taken
	l.mu.Unlock()
	for name, records := range map[string][]kvindex.Record{"log": l.Snapshot("w"), "checkpoint": content} {
		got := read(t, records)
		for rank := range wants {
			for o, want := range wants[rank] {
				if g, w := listTold(got[o]), listTold(want); g != w {
					t.Errorf("%s, %s: got %s, want %s", name, o, g, w)
				}
			}
		}
	}
	if taken == 0 {
		t.Error("no checkpoint was taken")
	}
	w.stop()
	if err := <-w.ended; err != nil {
		t.Error(err)
	}
}
