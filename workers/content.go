package workers

import (
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
)

// spareIdentities is how many names of blocks that are gone are kept beyond as
// many as are held. An engine may store a block after it dropped the parent;
// with the parent's name forgotten that block would give no credit.
const spareIdentities = 1 << 16

// blockKey is an engine's own name of a block.
type blockKey struct {
	group uint16
	hash  enginewire.Hash
}

// identity is what the agent knows of one of the engine's blocks.
type identity struct {
	hash, parent kvindex.BlockHash
	tiers        uint8 // bit t is set while the engine holds it in tier t
}

// content translates one rank's events: the engine's block hashes into ours. It
// takes batches and returns records, and does nothing else.
//
// Invariant: ids holds every block that the engine holds and whose tokens are
// known from the start of its prompt; a block with an unknown parent is left out
// and counted, never taken for the start of a prompt.
type content struct {
	worker kvindex.WorkerID
	rank   uint16
	model  string
	ids    map[blockKey]*identity
	held   int // identities with a tier
	tiers  uint8
}

// applied counts what became of a batch's events.
type applied struct {
	// events were applied; orphans named an unknown parent, strangers were blocks
	// without tokens under an unknown hash.
	events, orphans, strangers int
}

func newContent(worker kvindex.WorkerID, rank uint16, model string) *content {
	return &content{worker: worker, rank: rank, model: model, ids: make(map[blockKey]*identity)}
}

// apply returns the records that a batch amounts to, in order. Owner, Kind, body
// and EngineSeq are set; the writer adds epoch, term and seq.
func (c *content) apply(b enginewire.Batch, engineSeq uint64) ([]kvindex.Record, applied) {
	var out []kvindex.Record
	var n applied
	for i := range b.Events {
		e := &b.Events[i]
		switch e.Kind {
		case enginewire.Stored:
			out = c.stored(out, e, &n)
		case enginewire.Removed:
			out = c.removed(out, e, &n)
		case enginewire.Cleared:
			out = append(out, c.clear()...)
			n.events++
		}
	}
	for i := range out {
		out[i].EngineSeq = engineSeq
	}
	c.sweep()
	return out, n
}

// clear forgets everything and returns a Cleared for the device tier and every
// other tier that was in use.
func (c *content) clear() []kvindex.Record {
	var out []kvindex.Record
	for t := range kvindex.Tier(kvindex.NumTiers) {
		if t == kvindex.Device || c.tiers&(1<<t) != 0 {
			out = append(out, kvindex.Record{Owner: c.owner(t), Kind: kvindex.KindCleared})
		}
	}
	c.ids = make(map[blockKey]*identity)
	c.held, c.tiers = 0, 0
	return out
}

func (c *content) owner(t kvindex.Tier) kvindex.Owner {
	return kvindex.Owner{Worker: c.worker, Rank: c.rank, Tier: t}
}

func (c *content) stored(out []kvindex.Record, e *enginewire.Event, n *applied) []kvindex.Record {
	group := uint16(e.Group)
	if len(e.Tokens) == 0 {
		return c.moved(out, e, n)
	}
	parent, ok := c.parent(e, group)
	if !ok {
		n.orphans++
		return out
	}
	first, fresh := parent, false
	hashes := make([]kvindex.BlockHash, 0, len(e.Hashes))
	for i, h := range e.Hashes {
		var media []string
		if e.Extra != nil {
			media = e.Extra[i]
		}
		hash := parent.Next(e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize], media)
		var changed bool
		out, changed = c.name(out, blockKey{group, h}, identity{hash: hash, parent: parent}, e.Tier)
		fresh = fresh || changed
		hashes = append(hashes, hash)
		parent = hash
	}
	n.events++
	if !fresh {
		return out
	}
	return append(out, c.storedRecord(e.Tier, group, first, hashes))
}

func (c *content) storedRecord(t kvindex.Tier, group uint16, parent kvindex.BlockHash, hashes []kvindex.BlockHash) kvindex.Record {
	return kvindex.Record{
		Owner: c.owner(t), Kind: kvindex.KindStored,
		Stored: &kvindex.Stored{Group: group, Parent: parent, Hashes: hashes},
	}
}

// parent is our hash of the block before the event's first.
func (c *content) parent(e *enginewire.Event, group uint16) (kvindex.BlockHash, bool) {
	if e.Parent == nil {
		ns := kvindex.Namespace{Model: c.model, LoRA: e.LoRA, Salt: e.Salt, BlockSize: e.BlockSize}
		return ns.Root(), true
	}
	id, ok := c.ids[blockKey{group, *e.Parent}]
	if !ok {
		return 0, false
	}
	return id.hash, true
}

// name notes that the engine holds a block in a tier, and reports whether that
// is news. If the engine's name stood for other content, that content is gone.
func (c *content) name(out []kvindex.Record, k blockKey, id identity, t kvindex.Tier) ([]kvindex.Record, bool) {
	old, ok := c.ids[k]
	if ok && old.hash != id.hash {
		for u := range kvindex.Tier(kvindex.NumTiers) {
			if old.tiers&(1<<u) != 0 {
				out = append(out, c.removedRecord(u, k.group, []kvindex.BlockHash{old.hash}))
			}
		}
		c.drop(old, old.tiers)
		ok = false
	}
	if !ok {
		old = &id
		c.ids[k] = old
	}
	return out, c.hold(old, t)
}

func (c *content) hold(id *identity, t kvindex.Tier) bool {
	bit := uint8(1) << t
	if id.tiers&bit != 0 {
		return false
	}
	if id.tiers == 0 {
		c.held++
	}
	id.tiers |= bit
	c.tiers |= bit
	return true
}

func (c *content) drop(id *identity, tiers uint8) {
	if id.tiers == 0 {
		return
	}
	id.tiers &^= tiers
	if id.tiers == 0 {
		c.held--
	}
}

// moved handles a Stored without tokens: known blocks that now lie in another
// tier too. Blocks that follow each other go into one record.
func (c *content) moved(out []kvindex.Record, e *enginewire.Event, n *applied) []kvindex.Record {
	group := uint16(e.Group)
	var run []kvindex.BlockHash
	var first kvindex.BlockHash
	flush := func() {
		if len(run) > 0 {
			out = append(out, c.storedRecord(e.Tier, group, first, run))
			run = nil
		}
	}
	for _, h := range e.Hashes {
		id, ok := c.ids[blockKey{group, h}]
		if !ok {
			n.strangers++
			continue
		}
		if !c.hold(id, e.Tier) {
			continue
		}
		if len(run) == 0 || run[len(run)-1] != id.parent {
			flush()
			first = id.parent
		}
		run = append(run, id.hash)
	}
	flush()
	n.events++
	return out
}

func (c *content) removed(out []kvindex.Record, e *enginewire.Event, n *applied) []kvindex.Record {
	group := uint16(e.Group)
	var hashes []kvindex.BlockHash
	for _, h := range e.Hashes {
		id, ok := c.ids[blockKey{group, h}]
		if !ok || id.tiers&(1<<e.Tier) == 0 {
			continue // never credited, or removed twice
		}
		c.drop(id, 1<<e.Tier)
		hashes = append(hashes, id.hash)
	}
	n.events++
	if len(hashes) == 0 {
		return out
	}
	return append(out, c.removedRecord(e.Tier, group, hashes))
}

func (c *content) removedRecord(t kvindex.Tier, group uint16, hashes []kvindex.BlockHash) kvindex.Record {
	return kvindex.Record{
		Owner: c.owner(t), Kind: kvindex.KindRemoved,
		Removed: &kvindex.Removed{Group: group, Hashes: hashes},
	}
}

// sweep bounds the names of blocks that are gone.
func (c *content) sweep() {
	if len(c.ids) <= 2*c.held+spareIdentities {
		return
	}
	for k, id := range c.ids {
		if id.tiers == 0 {
			delete(c.ids, k)
		}
	}
}
