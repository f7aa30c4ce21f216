package workers

import (
	"iter"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
	"github.com/kvlane/kvlane/kvindex/translate"
)

// blockKey is an engine's own name of a block.
type blockKey struct {
	group uint16
	hash  enginewire.Hash
}

// content translates one rank's events: the engine's block hashes into ours. It
// takes batches and returns records, and does nothing else.
//
// Invariant: groups know every block that the engine holds and whose tokens are
// known from the start of its prompt; a block with an unknown parent is left out
// and counted, never taken for the start of a prompt. A block is published when
// its first copy in a tier comes and when the last one goes, so a reader's count is
// never above 1 for one name.
type content struct {
	worker kvindex.WorkerID
	rank   uint16
	model  string
	seed   uint64                    // of the maps
	groups map[uint16]*translate.Map // by the engine's KV-cache group
	used   [kvindex.NumTiers]bool    // tiers that ever held something in this life
	layout layout
}

// applied counts what became of a batch's events.
type applied struct {
	// events were applied; orphans named an unknown parent, strangers were blocks
	// without tokens under an unknown hash.
	events, orphans, strangers int
}

func newContent(worker kvindex.WorkerID, rank uint16, model string, groups []kvindex.GroupSpec) *content {
	return &content{
		worker: worker, rank: rank, model: model,
		seed: rand.Uint64(), groups: make(map[uint16]*translate.Map), layout: newLayout(groups),
	}
}

// apply returns the records that a batch amounts to, in order. Owner, Kind, body
// and EngineSeq are set; the writer adds epoch, term and seq.
func (c *content) apply(b enginewire.Batch, engineSeq uint64) ([]kvindex.Record, applied) {
	var out []kvindex.Record
	var n applied
	events := b.Events
	for len(events) > 0 {
		if events[0].Kind == enginewire.Cleared {
			out = append(out, c.clear()...)
			n.events++
			events = events[1:]
			continue
		}
		end := slices.IndexFunc(events, func(e enginewire.Event) bool { return e.Kind == enginewire.Cleared })
		if end < 0 {
			end = len(events)
		}
		out = c.between(out, events[:end], &n)
		events = events[end:]
	}
	for i := range out {
		out[i].EngineSeq = engineSeq
	}
	return out, n
}

// between applies events without a Cleared among them: those of the first group
// before the others', which may have to be named by it.
func (c *content) between(out []kvindex.Record, events []enginewire.Event, n *applied) []kvindex.Record {
	others := false
	for i := range events {
		c.layout.see(&events[i])
		others = others || events[i].Group != c.layout.primary
	}
	for i := range events {
		if e := &events[i]; e.Group == c.layout.primary {
			out = c.event(out, e, n)
		}
	}
	for i := range events {
		if e := &events[i]; others && e.Group != c.layout.primary {
			out = c.event(out, e, n)
		}
	}
	return out
}

func (c *content) event(out []kvindex.Record, e *enginewire.Event, n *applied) []kvindex.Record {
	switch {
	case c.layout.unused(e.Group):
		n.events++
		return out
	case e.Kind == enginewire.Removed:
		return c.removed(out, e, n)
	case len(e.Tokens) == 0:
		return c.moved(out, e, n)
	case e.Group != c.layout.primary:
		return c.storedOther(out, e, n)
	}
	return c.stored(out, e, n)
}

// clear forgets everything and returns a Cleared for the device tier and every
// other tier that was in use.
func (c *content) clear() []kvindex.Record {
	var out []kvindex.Record
	for t := range kvindex.Tier(kvindex.NumTiers) {
		if t == kvindex.Device || c.used[t] {
			out = append(out, kvindex.Record{Owner: c.owner(t), Kind: kvindex.KindCleared})
		}
	}
	clear(c.groups)
	c.used = [kvindex.NumTiers]bool{}
	return out
}

func (c *content) owner(t kvindex.Tier) kvindex.Owner {
	return kvindex.Owner{Worker: c.worker, Rank: c.rank, Tier: t}
}

// group is the map of a KV-cache group.
func (c *content) group(g uint16) *translate.Map {
	m := c.groups[g]
	if m == nil {
		m = translate.New(c.seed)
		c.groups[g] = m
	}
	return m
}

func (c *content) stored(out []kvindex.Record, e *enginewire.Event, n *applied) []kvindex.Record {
	m := c.group(uint16(e.Group))
	parent, ok := c.parent(m, e)
	if !ok {
		n.orphans++
		return out
	}
	c.used[e.Tier] = true
	run := c.run(e)
	for i, h := range e.Hashes {
		var media []string
		if e.Extra != nil {
			media = e.Extra[i]
		}
		block := parent.Next(e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize], media)
		if old, _, known := m.Lookup(h); known && old != block {
			out = run.flush(out)
			out = c.renamed(out, m, run.group, h, old)
		}
		if m.Store(h, block, parent, e.Tier) {
			out = run.add(out, parent, block)
		}
		parent = block
	}
	n.events++
	return run.flush(out)
}

// storedOther takes blocks of another group than the first. They go by the names of
// the first group's blocks: the same hash there is the same block, and otherwise
// the tokens tell. A longer block is named by the last of the first group's in it.
func (c *content) storedOther(out []kvindex.Record, e *enginewire.Event, n *applied) []kvindex.Record {
	m := c.group(uint16(e.Group))
	size := c.layout.size
	if size == 0 {
		size = e.BlockSize
	}
	parent, known := c.parent(m, e)
	if !known && e.Parent != nil {
		parent, _, known = c.lookup(m, *e.Parent)
	}
	known = known && e.BlockSize%size == 0
	run, lost := c.run(e), false
	for i, h := range e.Hashes {
		var media []string
		if e.Extra != nil {
			media = e.Extra[i]
		}
		known = known && (len(media) == 0 || e.BlockSize == size) // else: which of them?
		block := parent
		if known {
			for tokens := e.Tokens[i*e.BlockSize : (i+1)*e.BlockSize]; len(tokens) > 0; tokens = tokens[size:] {
				block = block.Next(tokens[:size], media)
			}
		} else if block, _, known = c.lookup(m, h); !known {
			lost = true
			continue
		}
		c.used[e.Tier] = true
		if old, _, had := m.Lookup(h); had && old != block {
			out = run.flush(out)
			out = c.renamed(out, m, run.group, h, old)
		}
		if m.Store(h, block, parent, e.Tier) {
			out = run.add(out, parent, block)
		}
		parent = block
	}
	if lost {
		n.orphans++
	} else {
		n.events++
	}
	return run.flush(out)
}

// lookup is what a name stands for in a group, or in the first one.
func (c *content) lookup(m *translate.Map, h enginewire.Hash) (block, parent kvindex.BlockHash, ok bool) {
	if block, parent, ok = m.Lookup(h); ok || c.layout.primary < 0 {
		return block, parent, ok
	}
	first := c.groups[uint16(c.layout.primary)]
	if first == nil {
		return 0, 0, false
	}
	return first.Lookup(h)
}

// run begins the record of an event.
func (c *content) run(e *enginewire.Event) run {
	return run{owner: c.owner(e.Tier), group: c.layout.number(e.Group)}
}

// run joins blocks that follow each other into one record.
type run struct {
	owner  kvindex.Owner
	group  uint16
	parent kvindex.BlockHash
	hashes []kvindex.BlockHash
}

func (r *run) add(out []kvindex.Record, parent, block kvindex.BlockHash) []kvindex.Record {
	if n := len(r.hashes); n > 0 && r.hashes[n-1] != parent {
		out = r.flush(out)
	}
	if len(r.hashes) == 0 {
		r.parent = parent
	}
	r.hashes = append(r.hashes, block)
	return out
}

func (r *run) flush(out []kvindex.Record) []kvindex.Record {
	if len(r.hashes) == 0 {
		return out
	}
	out = append(out, kvindex.Record{
		Owner: r.owner, Kind: kvindex.KindStored,
		Stored: &kvindex.Stored{Group: r.group, Parent: r.parent, Hashes: r.hashes},
	})
	r.hashes = nil
	return out
}

// parent is our hash of the block before the event's first.
func (c *content) parent(m *translate.Map, e *enginewire.Event) (kvindex.BlockHash, bool) {
	if e.Parent == nil {
		ns := kvindex.Namespace{Model: c.model, LoRA: e.LoRA, Salt: e.Salt, BlockSize: e.BlockSize}
		if e.Group != c.layout.primary && c.layout.size > 0 {
			ns.BlockSize = c.layout.size
		}
		return ns.Root(), true
	}
	block, _, ok := m.Lookup(*e.Parent)
	return block, ok
}

// renamed drops a block whose name the engine uses for another one now.
func (c *content) renamed(out []kvindex.Record, m *translate.Map, group uint16, h enginewire.Hash, old kvindex.BlockHash) []kvindex.Record {
	for t, held := range m.Forget(h) {
		if held {
			out = append(out, c.removedRecord(kvindex.Tier(t), group, []kvindex.BlockHash{old}))
		}
	}
	return out
}

// moved handles a Stored without tokens: known blocks that now lie in another
// tier too, in any order. Engines do not say here what comes before a block; where
// that is not known either, Parent is 0, which is the parent of nothing.
func (c *content) moved(out []kvindex.Record, e *enginewire.Event, n *applied) []kvindex.Record {
	m := c.group(uint16(e.Group))
	run := c.run(e)
	for _, h := range e.Hashes {
		block, parent, ok := c.lookup(m, h)
		if !ok {
			n.strangers++
			continue
		}
		c.used[e.Tier] = true
		if m.Store(h, block, parent, e.Tier) {
			out = run.add(out, parent, block)
		}
	}
	n.events++
	return run.flush(out)
}

func (c *content) removed(out []kvindex.Record, e *enginewire.Event, n *applied) []kvindex.Record {
	m := c.group(uint16(e.Group))
	var hashes []kvindex.BlockHash
	for _, h := range e.Hashes {
		if block, last := m.Remove(h, e.Tier); last {
			hashes = append(hashes, block)
		}
	}
	n.events++
	if len(hashes) == 0 {
		return out
	}
	return append(out, c.removedRecord(e.Tier, c.layout.number(e.Group), hashes))
}

func (c *content) removedRecord(t kvindex.Tier, group uint16, hashes []kvindex.BlockHash) kvindex.Record {
	return kvindex.Record{
		Owner: c.owner(t), Kind: kvindex.KindRemoved,
		Removed: &kvindex.Removed{Group: group, Hashes: hashes},
	}
}

// holds yields Stored bodies that amount to what a tier holds, each block after its
// parent (see [chains]), a block with two names twice. The content must not change
// meanwhile.
func (c *content) holds(t kvindex.Tier) iter.Seq[kvindex.Stored] {
	return func(yield func(kvindex.Stored) bool) {
		for _, g := range slices.Sorted(maps.Keys(c.groups)) {
			m := c.groups[g]
			links := make([]link, 0, m.Len(t))
			for block, parent := range m.Held(t) {
				links = append(links, link{parent, block})
			}
			for s := range chains(links) {
				s.Group = c.layout.number(int(g))
				if !yield(s) {
					return
				}
			}
		}
	}
}

// bytes is the memory of the translation.
func (c *content) bytes() int {
	n := 0
	for _, m := range c.groups {
		n += m.BytesReserved()
	}
	return n
}
