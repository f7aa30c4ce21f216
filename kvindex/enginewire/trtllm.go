package enginewire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/kvlane/kvlane/kvindex"
)

// minPolled bounds what a list of nothing allocates: an event is far longer.
const minPolled = 24

// Polled is one event of TensorRT-LLM.
type Polled struct {
	// Seq is the engine's event_id, which counts from 0 for each rank.
	Seq uint64
	// Batch is what the event amounts to; Rank is the attention data-parallel rank.
	Batch Batch
}

// TRT reads what TensorRT-LLM answers to POST /kv_cache_events: a JSON list of
// events. It remembers what single events do not say. The zero value is ready.
type TRT struct {
	// BlockSize is in tokens: what the caller knows, until an event shows a block
	// that another one follows in the same run, which is a whole one. 0: unknown.
	BlockSize int

	// windows are the attention windows met; the place is the group's number where
	// the engine gives none.
	windows []int
	shown   bool // BlockSize was shown by an event
}

type trtEnvelope struct {
	ID     *uint64         `json:"event_id"`
	Data   json.RawMessage `json:"data"`
	Window int             `json:"window_size"`
	Group  *int            `json:"layer_group_id"`
	Rank   *int            `json:"attention_dp_rank"`
}

type trtData struct {
	Type   string            `json:"type"`
	Parent json.RawMessage   `json:"parent_hash"`
	Blocks []trtBlock        `json:"blocks"`
	Hashes []json.RawMessage `json:"block_hashes"`
	Hash   json.RawMessage   `json:"block_hash"`
	Level  *trtDiff          `json:"cache_level"`
}

type trtBlock struct {
	Hash   json.RawMessage `json:"block_hash"`
	Tokens []trtToken      `json:"tokens"`
	Level  int             `json:"cache_level"`
	Salt   string          `json:"cache_salt"`
	Media  []trtMedia      `json:"mm_keys"`
}

// trtToken is a token's id, a number or, for a piece of media, text; and a second
// number that tells apart equal ids of prompt tables.
type trtToken struct {
	ID    json.RawMessage `json:"token_id"`
	Extra uint64          `json:"token_extra_id"`
}

type trtMedia struct {
	Hash   string `json:"hash"`
	Offset int64  `json:"start_offset"`
}

type trtDiff struct {
	New int `json:"new_value"`
	Old int `json:"old_value"`
}

// Decode reads one answer. The error is for a payload that is no list; an event
// that cannot be read is in Batch.Bad of its own entry, with the next number
// where it gives none. Blocks that are not full are left out and counted in
// Batch.Skipped: nothing follows them.
func (d *TRT) Decode(payload []byte) ([]Polled, error) {
	var raws []json.RawMessage
	if err := json.Unmarshal(payload, &raws); err != nil {
		return nil, fmt.Errorf("read event list: %w", err)
	}
	if len(raws) > len(payload)/minPolled {
		return nil, fmt.Errorf("read event list: %d entries in %d bytes: %w", len(raws), len(payload), errRange)
	}
	envelopes := make([]trtEnvelope, len(raws))
	datas := make([]trtData, len(raws))
	faults := make([]error, len(raws))
	for i, raw := range raws {
		if faults[i] = json.Unmarshal(raw, &envelopes[i]); faults[i] == nil {
			faults[i] = d.look(&envelopes[i], &datas[i])
		}
	}
	out := make([]Polled, 0, len(raws))
	next := uint64(0)
	for i := range raws {
		p := Polled{Seq: next}
		if id := envelopes[i].ID; id != nil {
			p.Seq = *id
		}
		next = p.Seq + 1
		p.Batch.Rank = envelopes[i].Rank
		err := faults[i]
		if err == nil {
			err = d.event(&p.Batch, &envelopes[i], &datas[i])
		}
		if err != nil {
			p.Batch.Bad = append(p.Batch.Bad, fmt.Errorf("event %d: %w", p.Seq, err))
		}
		out = append(out, p)
	}
	return out, nil
}

// look reads an event's body and learns from it what others need.
func (d *TRT) look(v *trtEnvelope, data *trtData) error {
	switch {
	case v.ID == nil:
		return errors.New("no event_id")
	case v.Rank != nil && (*v.Rank < 0 || *v.Rank > maxRank):
		v.Rank = nil
		return fmt.Errorf("attention_dp_rank: %w", errRange)
	case v.Group != nil && (*v.Group < 0 || *v.Group > maxGroup):
		return fmt.Errorf("layer_group_id: %w", errRange)
	}
	if err := json.Unmarshal(v.Data, data); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if !slices.Contains(d.windows, v.Window) && len(d.windows) < maxGroup {
		d.windows = append(d.windows, v.Window)
	}
	if n := len(data.Blocks); n > 1 && !d.shown {
		if size := len(data.Blocks[0].Tokens); size > 0 && size <= maxBlockSize {
			d.BlockSize, d.shown = size, true
		}
	}
	return nil
}

// event appends what one event amounts to.
func (d *TRT) event(b *Batch, v *trtEnvelope, data *trtData) error {
	switch data.Type {
	case "created": // the pool of a window is new and empty
		b.Events = append(b.Events, Event{Kind: Cleared})
		return nil
	case "stored":
		return d.stored(b, v, data)
	case "removed":
		e := d.begin(Removed, v)
		for i, raw := range data.Hashes {
			h, err := trtHash(raw)
			if err != nil {
				return fmt.Errorf("removed, block %d: %w", i, err)
			}
			e.Hashes = append(e.Hashes, h)
		}
		if len(e.Hashes) == 0 {
			return errors.New("removed: no blocks")
		}
		// It does not say where the block lay: it is nowhere any more.
		for t := range kvindex.Tier(kvindex.NumTiers) {
			e.Tier = t
			b.Events = append(b.Events, e)
		}
		return nil
	case "updated":
		return d.updated(b, v, data)
	}
	return fmt.Errorf("type %.32q is not known", data.Type)
}

// begin is an event of the envelope's group.
func (d *TRT) begin(k Kind, v *trtEnvelope) Event {
	e := Event{Kind: k, Window: v.Window, GroupKind: "full_attention"}
	if v.Group != nil {
		e.Group = *v.Group
	} else {
		e.Group = max(0, slices.Index(d.windows, v.Window))
	}
	if v.Window < slices.Max(d.windows) {
		e.GroupKind = "sliding_window"
	}
	return e
}

func (d *TRT) updated(b *Batch, v *trtEnvelope, data *trtData) error {
	h, err := trtHash(data.Hash)
	if err != nil {
		return fmt.Errorf("updated: %w", err)
	}
	if data.Level == nil || data.Level.New == data.Level.Old {
		return nil // the priority changed
	}
	to, from := d.begin(Stored, v), d.begin(Removed, v)
	to.Hashes, from.Hashes = []Hash{h}, []Hash{h}
	if to.Tier, err = trtTier(data.Level.New); err != nil {
		return err
	}
	if from.Tier, err = trtTier(data.Level.Old); err != nil {
		return err
	}
	b.Events = append(b.Events, to, from)
	return nil
}

// stored cuts the event's blocks into runs of one tier.
func (d *TRT) stored(b *Batch, v *trtEnvelope, data *trtData) error {
	first := d.begin(Stored, v)
	if len(data.Parent) > 0 && !bytes.Equal(data.Parent, []byte("null")) {
		h, err := trtHash(data.Parent)
		if err != nil {
			return fmt.Errorf("stored, parent_hash: %w", err)
		}
		first.Parent = &h
	}
	first.BlockSize = d.BlockSize
	run, at := first, len(b.Events)
	for i := range data.Blocks {
		block := &data.Blocks[i]
		if d.BlockSize == 0 || len(block.Tokens) != d.BlockSize {
			b.Skipped = append(b.Skipped, Skip{SkipPartial, strconv.Itoa(len(block.Tokens)), Stored, run.Group})
			break
		}
		h, err := trtHash(block.Hash)
		if err == nil {
			run.Tier, err = trtTier(block.Level)
		}
		if err != nil {
			b.Events = b.Events[:at]
			return fmt.Errorf("stored, block %d: %w", i, err)
		}
		if n := len(b.Events); n == at || b.Events[n-1].Tier != run.Tier {
			if i == 0 && first.Parent == nil {
				run.Salt = block.Salt
			}
			b.Events = append(b.Events, run)
		}
		e := &b.Events[len(b.Events)-1]
		e.Hashes = append(e.Hashes, h)
		if err := trtTokens(e, block); err != nil {
			b.Events = b.Events[:at]
			return fmt.Errorf("stored, block %d: %w", i, err)
		}
		run.Parent, run.Salt = &h, ""
	}
	for i := range b.Events[at:] {
		e := &b.Events[at+i]
		for len(e.Extra) > 0 && len(e.Extra) < len(e.Hashes) {
			e.Extra = append(e.Extra, nil)
		}
		if err := distinct(e.Parent, e.Hashes); err != nil {
			b.Events = b.Events[:at]
			return fmt.Errorf("stored: %w", err)
		}
	}
	return nil
}

// trtTokens appends a block's ids. What is not a plain token makes the block
// another one than text of the same ids.
func trtTokens(e *Event, b *trtBlock) error {
	at := len(e.Hashes) - 1
	extra := func(key string) {
		for len(e.Extra) <= at {
			e.Extra = append(e.Extra, nil)
		}
		e.Extra[at] = append(e.Extra[at], key)
	}
	for i := range b.Tokens {
		t := &b.Tokens[i]
		var id uint64
		if len(t.ID) > 0 && t.ID[0] == '"' {
			var s string
			if err := json.Unmarshal(t.ID, &s); err != nil {
				return fmt.Errorf("token_id %d: %w", i, err)
			}
			extra(s + "@" + strconv.Itoa(i))
		} else {
			var err error
			if id, err = strconv.ParseUint(string(t.ID), 10, 64); err != nil || id > math.MaxUint32 {
				return fmt.Errorf("token_id %d: %w", i, errNotInt)
			}
		}
		if t.Extra != 0 {
			extra("extra:" + strconv.FormatUint(t.Extra, 10) + "@" + strconv.Itoa(i))
		}
		e.Tokens = append(e.Tokens, uint32(id))
	}
	for _, m := range b.Media {
		extra(m.Hash + "@" + strconv.FormatInt(m.Offset, 10))
	}
	return nil
}

func trtHash(raw json.RawMessage) (Hash, error) {
	if len(raw) == 0 {
		return "", errNotInt
	}
	if raw[0] == '"' {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return "", fmt.Errorf("hash: %w", err)
		}
		if s == "" || len(s) > 2*maxHashBytes {
			return "", fmt.Errorf("hash: %w", errRange)
		}
		return Hash(appendHexHash(nil, s)), nil
	}
	if v, err := strconv.ParseUint(string(raw), 10, 64); err == nil {
		return IntHash(v), nil
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return "", fmt.Errorf("hash: %w", errNotInt)
	}
	return IntHash(uint64(v)), nil
}

// trtTier is where a cache level lies: device memory, host memory, disk.
func trtTier(level int) (kvindex.Tier, error) {
	if level < 0 || level > int(kvindex.Disk) {
		return 0, fmt.Errorf("cache_level %d: %w", level, errRange)
	}
	return kvindex.Tier(level), nil
}
