package enginewire

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/kvindex"
)

// Bounds of what an event may say. Blocks of 64k tokens and 2^16 ranks or
// groups are far beyond any engine; a larger number is a damaged event.
const (
	maxBlockSize = 1 << 16
	maxRank      = 1<<16 - 1
	maxGroup     = 1<<16 - 1
)

// errHashTwice refuses a run of blocks that contains itself: followed as a
// chain it would never end.
var errHashTwice = errors.New("a block occurs twice in its own chain")

// Decode reads one payload. The error is for a payload that is no batch at all
// or whose end is missing; nothing of it may be applied then. Single bad events
// are in Batch.Bad. The batch does not share memory with the payload.
func Decode(payload []byte) (Batch, error) {
	c := cursor{payload}
	f, err := batchFields(&c)
	if err != nil {
		return Batch{}, fmt.Errorf("read event batch: %w", err)
	}
	var b Batch
	t := cursor{f.time}
	if b.Time, err = t.number(); err != nil {
		return Batch{}, fmt.Errorf("read event batch: time: %w", err)
	}
	if !isNil(f.rank) {
		r := cursor{f.rank}
		rank, err := r.count(maxRank)
		if err != nil {
			return Batch{}, fmt.Errorf("read event batch: rank: %w", err)
		}
		b.Rank = &rank
	}
	ev := cursor{f.events}
	n, err := ev.array()
	if err != nil {
		return Batch{}, fmt.Errorf("read event batch: events: %w", err)
	}
	for i := range n {
		raw, err := ev.value()
		if err != nil {
			return Batch{}, fmt.Errorf("read event batch: event %d: %w", i, err)
		}
		b.add(i, raw)
	}
	return b, nil
}

// rawBatch are the values of a batch, each still encoded.
type rawBatch struct{ time, events, rank []byte }

// batchFields takes the batch apart: an array of at least two, or a map by
// field name, as vLLM's development branch wrote for a while.
func batchFields(c *cursor) (rawBatch, error) {
	var f rawBatch
	if len(c.b) == 0 {
		return f, errCut
	}
	if (head{code: c.b[0]}).isMap() {
		err := eachPair(c, func(key string, raw []byte) {
			switch key {
			case "ts":
				f.time = raw
			case "events":
				f.events = raw
			case "data_parallel_rank", "attn_dp_rank": // vLLM's word and SGLang's
				f.rank = raw
			}
		})
		return f, err
	}
	n, err := c.array()
	if err != nil {
		return f, err
	}
	for i := range n {
		raw, err := c.value()
		if err != nil {
			return f, err
		}
		switch i {
		case 0:
			f.time = raw
		case 1:
			f.events = raw
		case 2:
			f.rank = raw
		}
	}
	return f, nil
}

// eachPair calls f with every entry of a map whose key is text; other keys
// are nobody's.
func eachPair(c *cursor, f func(key string, raw []byte)) error {
	n, err := c.pairs()
	if err != nil {
		return err
	}
	for range n {
		k, err := c.value()
		if err != nil {
			return err
		}
		v, err := c.value()
		if err != nil {
			return err
		}
		kc := cursor{k}
		if key, err := kc.text(); err == nil {
			f(string(key), v)
		}
	}
	return nil
}

// add puts one encoded event where it belongs.
func (b *Batch) add(i int, raw []byte) {
	f, err := eventFields(raw)
	if err != nil {
		b.Bad = append(b.Bad, fmt.Errorf("event %d: %w", i, err))
		return
	}
	e, skip, err := f.event()
	switch {
	case err != nil:
		b.Bad = append(b.Bad, fmt.Errorf("event %d, %s: %w", i, e.Kind, err))
	case skip != nil:
		b.Skipped = append(b.Skipped, *skip)
	default:
		b.Events = append(b.Events, e)
	}
}

// event builds the event from its fields, or says why it does not count.
func (f *fields) event() (Event, *Skip, error) {
	e := Event{Kind: f.kind}
	if f.kind == Cleared {
		return e, nil, nil
	}
	if err := f.readGroup(&e); err != nil {
		return e, nil, err
	}
	kind, ok := KindOf(e.GroupKind)
	if !ok || kind != kvindex.GroupFull && emptyArray(f.hashes) { // every block fell out of the window
		return e, &Skip{SkipGroup, e.GroupKind, e.Kind, e.Group}, nil
	}
	var err error
	if e.Hashes, err = hashes(f.hashes); err != nil {
		return e, nil, fmt.Errorf("block_hashes: %w", err)
	}
	if f.kind == Stored {
		if err := f.stored(&e); err != nil {
			return e, nil, err
		}
	}
	return f.place(e)
}

func emptyArray(raw []byte) bool {
	c := cursor{raw}
	n, err := c.array()
	return err == nil && n == 0
}

func (f *fields) readGroup(e *Event) error {
	var err error
	if !isNil(f.group) {
		c := cursor{f.group}
		if e.Group, err = c.count(maxGroup); err != nil {
			return fmt.Errorf("group_idx: %w", err)
		}
	}
	if e.GroupKind, err = optionalText(f.groupKind); err != nil {
		return fmt.Errorf("kv_cache_spec_kind: %w", err)
	}
	if !isNil(f.window) {
		c := cursor{f.window}
		if e.Window, err = c.count(math.MaxInt32); err != nil {
			return fmt.Errorf("kv_cache_spec_sliding_window: %w", err)
		}
	}
	return nil
}

// place sets the tier, or says why the event does not count. Where no medium
// is named, as in older engines, the blocks are in device memory.
func (f *fields) place(e Event) (Event, *Skip, error) {
	medium, err := optionalText(f.medium)
	if err != nil {
		return e, nil, fmt.Errorf("medium: %w", err)
	}
	locality, err := optionalText(f.locality)
	if err != nil {
		return e, nil, fmt.Errorf("locality: %w", err)
	}
	if strings.EqualFold(locality, "REMOTE") {
		return e, &Skip{SkipRemote, locality, e.Kind, e.Group}, nil
	}
	tier, ok := TierOf(medium)
	if !ok {
		return e, &Skip{SkipMedium, medium, e.Kind, e.Group}, nil
	}
	e.Tier = tier
	return e, nil, nil
}

// KindOf is what a prefix needs of the blocks of a group that engines call by this
// word; false for a word that is not known and for groups that say nothing about
// prefixes. An empty word is full attention.
func KindOf(word string) (kvindex.GroupKind, bool) {
	switch word {
	case "", "full_attention", "mla_attention", "sink_full_attention":
		return kvindex.GroupFull, true
	case "sliding_window", "sliding_window_mla":
		return kvindex.GroupWindow, true
	case "chunked_local_attention":
		return kvindex.GroupChunk, true
	case "mamba":
		return kvindex.GroupState, true
	}
	return kvindex.GroupUnused, false
}

// TierOf is the tier that engines call by this name; false for a name that is
// not known. An empty name is device memory.
func TierOf(medium string) (kvindex.Tier, bool) {
	switch strings.ToUpper(medium) {
	case "", "GPU", "DEVICE":
		return kvindex.Device, true
	case "CPU", "CPU_PINNED", "CPU_TIER1":
		return kvindex.Host, true
	case "CPU_TIER2", "DISK", "FS", "NVME", "STORAGE":
		return kvindex.Disk, true
	case "EXTERNAL", "NETWORK", "OBJ", "REMOTE", "SHARED":
		return kvindex.External, true
	}
	return 0, false
}

// stored reads what only a Stored has.
func (f *fields) stored(e *Event) error {
	if !isNil(f.parent) {
		c := cursor{f.parent}
		p, err := c.hash(nil)
		if err != nil {
			return fmt.Errorf("parent_block_hash: %w", err)
		}
		parent := Hash(p)
		e.Parent = &parent
	}
	if err := distinct(e.Parent, e.Hashes); err != nil {
		return err
	}
	c := cursor{f.blockSize}
	var err error
	if e.BlockSize, err = c.count(maxBlockSize); err != nil {
		return fmt.Errorf("block_size: %w", err)
	}
	if e.Tokens, e.Eagle, err = tokens(f.tokens); err != nil {
		return fmt.Errorf("token_ids: %w", err)
	}
	if kind, _ := KindOf(e.GroupKind); kind != kvindex.GroupFull && len(e.Tokens) != e.BlockSize*len(e.Hashes) {
		// Such groups leave out blocks that fell out of their window, and do not say
		// which: what is left is known by its hash from another group, or not at all.
		e.Tokens, e.BlockSize, f.extra, f.mediaInfos = nil, 0, nil, nil
		return f.names(e)
	}
	if len(e.Tokens) != e.BlockSize*len(e.Hashes) {
		return fmt.Errorf("%d tokens for %d blocks of %d", len(e.Tokens), len(e.Hashes), e.BlockSize)
	}
	return f.names(e)
}

// distinct refuses a chain with a loop.
func distinct(parent *Hash, hs []Hash) error {
	if len(hs) == 1 {
		if parent != nil && *parent == hs[0] {
			return errHashTwice
		}
		return nil
	}
	seen := make(map[Hash]struct{}, len(hs)+1)
	if parent != nil {
		seen[*parent] = struct{}{}
	}
	for _, h := range hs {
		if _, ok := seen[h]; ok {
			return errHashTwice
		}
		seen[h] = struct{}{}
	}
	return nil
}

// names reads adapter, salt and media keys.
func (f *fields) names(e *Event) error {
	if err := f.adapter(e); err != nil {
		return err
	}
	if salt, err := optionalText(f.salt); err != nil {
		return fmt.Errorf("cache_salt: %w", err)
	} else if salt != "" {
		e.Salt = salt
	}
	if err := extraKeys(e, f.extra); err != nil {
		return fmt.Errorf("extra_keys: %w", err)
	}
	if err := mediaInfos(e, f.mediaInfos); err != nil {
		return fmt.Errorf("block_mm_infos: %w", err)
	}
	return nil
}

// adapter reads lora_name, where SGLang puts a map with the salt, and falls
// back to lora_id.
func (f *fields) adapter(e *Event) error {
	if !isNil(f.loraName) && (head{code: f.loraName[0]}).isMap() {
		c := cursor{f.loraName}
		m := make(map[string][]byte)
		if err := eachPair(&c, func(k string, raw []byte) { m[k] = raw }); err != nil {
			return fmt.Errorf("lora_name: %w", err)
		}
		f.salt, f.loraName = m["cache_salt"], m["lora_name"]
	}
	name, err := optionalText(f.loraName)
	if err != nil {
		return fmt.Errorf("lora_name: %w", err)
	}
	e.LoRA = name
	if name != "" || isNil(f.loraID) {
		return nil
	}
	if (head{code: f.loraID[0]}).isText() {
		e.LoRA, err = optionalText(f.loraID)
		return err
	}
	c := cursor{f.loraID}
	id, err := c.count(math.MaxInt32)
	if err != nil {
		return fmt.Errorf("lora_id: %w", err)
	}
	e.LoRA = "lora_id:" + strconv.Itoa(id)
	return nil
}
