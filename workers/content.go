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
	// copies counts the engine's copies by tier: it announces each one that is
	// stored and each one that is evicted, also while others exist.
	copies [kvindex.NumTiers]uint32
}

func (id *identity) held() bool { return id.copies != [kvindex.NumTiers]uint32{} }

// content translates one rank's events: the engine's block hashes into ours. It
// takes batches and returns records, and does nothing else.
//
// Invariant: ids holds every block that the engine holds and whose tokens are
// known from the start of its prompt; a block with an unknown parent is left out
// and counted, never taken for the start of a prompt. A block is published when
// its first copy in a tier comes and when the last one goes, so a reader's count is
// never above 1.
type content struct {
	worker kvindex.WorkerID
	rank   uint16
	model  string
	ids    map[blockKey]*identity
	held   int                    // identities with a copy
	used   [kvindex.NumTiers]bool // tiers that ever held something in this life
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
		if t == kvindex.Device || c.used[t] {
			out = append(out, kvindex.Record{Owner: c.owner(t), Kind: kvindex.KindCleared})
		}
	}
	c.ids = make(map[blockKey]*identity)
	c.held, c.used = 0, [kvindex.NumTiers]bool{}
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
	run := c.run(e.Tier, group)
	for i, h := range e.Hashes {
		var media []string
		if e.Extra != nil {
			media = e.Extra[i]
		}
		id := &identity{hash: parent.Next(e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize], media), parent: parent}
		parent = id.hash
		out, id = c.name(out, blockKey{group, h}, id)
		if c.hold(id, e.Tier) {
			out = run.add(out, id)
		}
	}
	n.events++
	return run.flush(out)
}

// run joins blocks that follow each other into one record.
type run struct {
	owner  kvindex.Owner
	group  uint16
	parent kvindex.BlockHash
	hashes []kvindex.BlockHash
}

func (c *content) run(t kvindex.Tier, group uint16) *run {
	return &run{owner: c.owner(t), group: group}
}

func (r *run) add(out []kvindex.Record, id *identity) []kvindex.Record {
	if n := len(r.hashes); n > 0 && r.hashes[n-1] != id.parent {
		out = r.flush(out)
	}
	if len(r.hashes) == 0 {
		r.parent = id.parent
	}
	r.hashes = append(r.hashes, id.hash)
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

// name returns what the engine's name of a block stands for: what it stood for
// before if that is the same, else id. Other content under the name is gone.
func (c *content) name(out []kvindex.Record, k blockKey, id *identity) ([]kvindex.Record, *identity) {
	old, ok := c.ids[k]
	if ok && old.hash == id.hash {
		return out, old
	}
	if ok {
		for t := range kvindex.Tier(kvindex.NumTiers) {
			if old.copies[t] > 0 {
				out = append(out, c.removedRecord(t, k.group, []kvindex.BlockHash{old.hash}))
			}
		}
		if old.held() {
			c.held--
		}
	}
	c.ids[k] = id
	return out, id
}

// hold notes one copy more and reports whether it is the first in the tier.
func (c *content) hold(id *identity, t kvindex.Tier) bool {
	if !id.held() {
		c.held++
	}
	id.copies[t]++
	c.used[t] = true
	return id.copies[t] == 1
}

// drop notes one copy less and reports whether it was the last in the tier.
func (c *content) drop(id *identity, t kvindex.Tier) bool {
	if id.copies[t] == 0 {
		return false
	}
	id.copies[t]--
	if !id.held() {
		c.held--
	}
	return id.copies[t] == 0
}

// moved handles a Stored without tokens: known blocks that now lie in another
// tier too.
func (c *content) moved(out []kvindex.Record, e *enginewire.Event, n *applied) []kvindex.Record {
	group := uint16(e.Group)
	run := c.run(e.Tier, group)
	for _, h := range e.Hashes {
		id, ok := c.ids[blockKey{group, h}]
		if !ok {
			n.strangers++
			continue
		}
		if c.hold(id, e.Tier) {
			out = run.add(out, id)
		}
	}
	n.events++
	return run.flush(out)
}

func (c *content) removed(out []kvindex.Record, e *enginewire.Event, n *applied) []kvindex.Record {
	group := uint16(e.Group)
	var hashes []kvindex.BlockHash
	for _, h := range e.Hashes {
		id, ok := c.ids[blockKey{group, h}]
		if ok && c.drop(id, e.Tier) {
			hashes = append(hashes, id.hash)
		}
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
		if !id.held() {
			delete(c.ids, k)
		}
	}
}
