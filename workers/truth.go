package workers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
	"github.com/kvlane/kvlane/kvindex/listing"
	"github.com/kvlane/kvlane/workers/engine"
)

// truthTimeout bounds the question to one engine.
const truthTimeout = 10 * time.Second

var errNoEvents = errors.New("the engine publishes no KV events")

// truth is what an engine's rank says it holds, asked for anew and worked out
// without what the feed knows.
//
// Invariant: prefixes are known from their prompt's start; a block whose tokens
// are not is counted in the source and in no owner.
type truth struct {
	source listing.Source
	owners map[kvindex.Owner][]kvindex.BlockHash // sorted
	// prefixes are blocks that were held at some time; only [follower.truthOf] with
	// prefixes fills it.
	prefixes []prefix
}

// prefix is a block with everything before it.
type prefix struct {
	hash   kvindex.BlockHash
	before *prefix // nil at a prompt's start
	tokens []uint32
	lora   string
	salt   string
	depth  int // blocks, itself included
}

// truthOf asks the engine behind a feed. An engine that lists its content is
// taken at its word; any other's events are asked for from the first and folded.
// It returns no error: what went wrong is in the source.
func (a *follower) truthOf(ctx context.Context, f *feed, prefixes bool) truth {
	ctx, cancel := context.WithTimeout(ctx, truthTimeout)
	defer cancel()
	t := truth{source: listing.Source{Worker: a.cfg.WorkerID, Rank: f.rank}}
	err := a.asked(ctx, &t, prefixes)
	if a.bare && f.events == "" && err == nil { // nothing is said of it
		err = errNoEvents
	}
	if errors.Is(err, engine.ErrNoContent) {
		if err = a.replayed(ctx, f, &t, prefixes); err != nil {
			err = fmt.Errorf("replay: %w", err)
		}
	} else if errors.Is(err, syscall.ECONNREFUSED) { // its memory went with it
		t.source.Kind = listing.Gone
		return t
	}
	if err != nil {
		t.source.Kind, t.source.Problem = listing.Unknown, err.Error()
		t.owners = nil
	}
	return t
}

// asked lets the engine list its content. One with several ranks has no list for
// each of them.
func (a *follower) asked(ctx context.Context, t *truth, prefixes bool) error {
	if len(a.feeds) > 1 {
		if err := a.engine.Health(ctx); err != nil {
			return err
		}
		return engine.ErrNoContent
	}
	content, err := a.engine.Content(ctx)
	if err != nil {
		return err
	}
	t.dumped(content, a.model(), prefixes)
	return nil
}

// model is the engine's base model by the newest look.
func (a *follower) model() string { return a.prober.state.Load().Models.Base }

// dumped names the blocks that an engine lists.
func (t *truth) dumped(c *engine.Content, model string, prefixes bool) {
	t.source.Kind, t.source.Life, t.source.Next = listing.Dump, fmt.Sprint(c.Life), c.NextSeq
	blocks := make(map[string]*engine.ContentBlock, len(c.Blocks))
	for i := range c.Blocks {
		blocks[c.Blocks[i].Hash] = &c.Blocks[i]
	}
	named := make(map[string]*prefix, len(c.Blocks))
	hashes := make([]kvindex.BlockHash, 0, len(c.Blocks))
	var chain []*engine.ContentBlock // a block and what is not named before it, the block first
	for i := range c.Blocks {
		chain = chain[:0]
		b := &c.Blocks[i]
		for b != nil && named[b.Hash] == nil && len(chain) <= len(c.Blocks) {
			chain = append(chain, b)
			b = blocks[b.Parent]
		}
		for _, b := range slices.Backward(chain) {
			ns := kvindex.Namespace{Model: model, LoRA: b.LoRA, Salt: b.Salt, BlockSize: c.BlockSize}
			if p := extend(named[b.Parent], b.Parent == "", ns, b.IDs, nil); p != nil {
				named[b.Hash] = p
				hashes = append(hashes, p.hash)
			}
		}
	}
	t.source.Unnamed = len(c.Blocks) - len(hashes)
	slices.Sort(hashes)
	t.owners = map[kvindex.Owner][]kvindex.BlockHash{{Worker: t.source.Worker, Rank: t.source.Rank}: hashes}
	if prefixes {
		for _, p := range named {
			t.prefixes = append(t.prefixes, *p)
		}
	}
}

// extend is the prefix of one block more; nil if it cannot be named.
func extend(before *prefix, first bool, ns kvindex.Namespace, tokens []uint32, media []string) *prefix {
	parent, depth := ns.Root(), 0
	switch {
	case before != nil:
		parent, depth = before.hash, before.depth
	case !first:
		return nil
	}
	if len(tokens) == 0 {
		return nil
	}
	return &prefix{
		hash: parent.Next(tokens, media), before: before, tokens: tokens,
		lora: ns.LoRA, salt: ns.Salt, depth: depth + 1,
	}
}

// replayed folds all events since the engine's start.
func (a *follower) replayed(ctx context.Context, f *feed, t *truth, prefixes bool) error {
	switch {
	case f.events == "":
		return errNoEvents
	case f.replay == "":
		return errors.New("the engine has no replay socket")
	}
	batches, err := fetchReplay(ctx, f.replay, 0, truthTimeout)
	if err != nil {
		return err
	}
	slices.SortFunc(batches, func(x, y batch) int { return int(min(max(int64(x.seq)-int64(y.seq), -1), 1)) })
	if prefixes {
		t.prefixes = prefixesOf(batches, a.model())
	}
	if len(batches) > 0 && batches[0].seq > 0 {
		return fmt.Errorf("its ring of events begins at batch %d", batches[0].seq)
	}
	t.source.Kind = listing.Replay
	folded := make(map[kvindex.Owner]*mirror)
	contents := make(map[uint16]*content)
	for i, b := range batches {
		if b.seq != uint64(i) {
			return fmt.Errorf("its ring of events has no batch %d", i)
		}
		t.source.Next = b.seq + 1
		decoded, err := enginewire.Decode(b.payload)
		if err != nil { // whatever it took away, the feed has cleared all
			return fmt.Errorf("batch %d of its ring of events: %w", i, err)
		}
		rank := f.rankOf(decoded)
		c := contents[rank]
		if c == nil {
			c = newContent(a.cfg.WorkerID, rank, a.model(), a.cfg.KVGroups)
			contents[rank] = c
		}
		records, n := c.apply(decoded, b.seq)
		t.source.Unnamed += n.orphans + n.strangers
		for j := range records {
			r := &records[j]
			if folded[r.Owner] == nil {
				folded[r.Owner] = newMirror()
			}
			folded[r.Owner].apply(r)
		}
	}
	t.owners = map[kvindex.Owner][]kvindex.BlockHash{{Worker: t.source.Worker, Rank: t.source.Rank}: nil}
	for o, m := range folded {
		t.owners[o] = m.hashes()
	}
	return nil
}

// prefixesOf finds the prefixes whose tokens the batches tell from their
// prompt's start, those with media left out: they cannot be asked for by ids.
func prefixesOf(batches []batch, model string) []prefix {
	var out []prefix
	named := make(map[blockKey]*prefix)
	for _, b := range batches {
		decoded, err := enginewire.Decode(b.payload)
		if err != nil {
			continue
		}
		for i := range decoded.Events {
			e := &decoded.Events[i]
			if e.Kind != enginewire.Stored || len(e.Tokens) == 0 {
				continue
			}
			ns := kvindex.Namespace{Model: model, LoRA: e.LoRA, Salt: e.Salt, BlockSize: e.BlockSize}
			var before *prefix
			if e.Parent != nil {
				before = named[blockKey{uint16(e.Group), *e.Parent}]
			}
			first := e.Parent == nil
			for j, h := range e.Hashes {
				if j < len(e.Extra) && len(e.Extra[j]) > 0 {
					break
				}
				p := extend(before, first, ns, e.Tokens[j*e.BlockSize:(j+1)*e.BlockSize], nil)
				if p == nil {
					break
				}
				if named[blockKey{uint16(e.Group), h}] == nil {
					out = append(out, *p)
				}
				named[blockKey{uint16(e.Group), h}] = p
				before, first = p, false
			}
		}
	}
	return out
}
