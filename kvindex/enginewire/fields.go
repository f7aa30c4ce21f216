package enginewire

import (
	"errors"
	"fmt"
)

// errTag is an event without a name.
var errTag = errors.New("the event has no type")

// fields are the values of one event, each still encoded; nil where missing.
type fields struct {
	kind                              Kind
	hashes, parent, tokens, blockSize []byte
	loraID, medium, loraName, salt    []byte
	extra, mediaInfos                 []byte
	group, groupKind, locality        []byte
	window                            []byte
}

// eventFields takes an event apart, whichever form it has.
func eventFields(raw []byte) (fields, error) {
	c := cursor{raw}
	switch h := (head{code: raw[0]}); {
	case h.isMap():
		return mapFields(&c)
	case h.isArray():
		return arrayFields(&c)
	}
	return fields{}, errors.New("neither a map nor an array")
}

func kindOf(tag []byte) (Kind, error) {
	switch string(tag) {
	case "BlockStored":
		return Stored, nil
	case "BlockRemoved":
		return Removed, nil
	case "AllBlocksCleared":
		return Cleared, nil
	}
	return 0, fmt.Errorf("type %.32q is not known", tag)
}

func mapFields(c *cursor) (fields, error) {
	var f fields
	var tag []byte
	err := eachPair(c, func(key string, raw []byte) {
		if key == "type" {
			tag = raw
			return
		}
		if p := f.slot(key); p != nil {
			*p = raw
		}
	})
	if err != nil {
		return f, err
	}
	if tag == nil {
		return f, errTag
	}
	t := cursor{tag}
	name, err := t.text()
	if err != nil {
		return f, fmt.Errorf("type: %w", err)
	}
	f.kind, err = kindOf(name)
	return f, err
}

// slot is where the value of a map's key goes; nil for a key that means
// nothing here.
func (f *fields) slot(key string) *[]byte {
	switch key {
	case "block_hashes":
		return &f.hashes
	case "parent_block_hash":
		return &f.parent
	case "token_ids":
		return &f.tokens
	case "block_size":
		return &f.blockSize
	case "lora_id":
		return &f.loraID
	case "medium":
		return &f.medium
	case "lora_name":
		return &f.loraName
	case "cache_salt":
		return &f.salt
	case "extra_keys":
		return &f.extra
	case "block_mm_infos":
		return &f.mediaInfos
	case "group_idx":
		return &f.group
	case "kv_cache_spec_kind":
		return &f.groupKind
	case "kv_cache_spec_sliding_window":
		return &f.window
	case "locality":
		return &f.locality
	}
	return nil
}

func arrayFields(c *cursor) (fields, error) {
	var f fields
	n, err := c.array()
	if err != nil {
		return f, err
	}
	if n == 0 {
		return f, errTag
	}
	name, err := c.text()
	if err != nil {
		return f, fmt.Errorf("type: %w", err)
	}
	if f.kind, err = kindOf(name); err != nil {
		return f, err
	}
	for i := 1; i < n; i++ {
		raw, err := c.value()
		if err != nil {
			return f, err
		}
		f.position(i, raw)
	}
	return f, nil
}

// position puts the i-th entry of an array event into its slot. The order is
// fixed up to the group; the entries after it were left out or put in
// differently over the versions and are told apart by their type.
func (f *fields) position(i int, raw []byte) {
	var order []*[]byte
	switch f.kind {
	case Stored:
		order = []*[]byte{nil, &f.hashes, &f.parent, &f.tokens, &f.blockSize, &f.loraID, &f.medium, &f.loraName, &f.extra}
	case Removed:
		order = []*[]byte{nil, &f.hashes, &f.medium}
	case Cleared:
		return
	}
	if i < len(order) {
		*order[i] = raw
		return
	}
	f.tail(i == len(order), raw)
}

// tail sorts an entry after the fixed ones. first is the group's place.
func (f *fields) tail(first bool, raw []byte) {
	h := head{code: raw[0]}
	_, _, notInt := (&cursor{raw}).integerHead()
	switch {
	case notInt == nil && first:
		f.group = raw
	case notInt == nil && f.groupKind != nil && f.locality == nil && f.window == nil:
		f.window = raw
	case h.isText():
		f.tailWord(raw)
	case h.isArray() && f.kind == Stored && f.mediaInfos == nil:
		f.mediaInfos = raw
	}
}

// tailWord sorts text: a locality by its two words, else the group's kind;
// the word after that is the ownership, which does not matter here.
func (f *fields) tailWord(raw []byte) {
	c := cursor{raw}
	word, err := c.text()
	if err != nil {
		return
	}
	switch string(word) {
	case "LOCAL", "REMOTE":
		f.locality = raw
		return
	}
	if f.kind == Stored && f.groupKind == nil {
		f.groupKind = raw
	}
}

// integerHead reads the next value as an integer.
func (c *cursor) integerHead() (bits uint64, negative bool, err error) {
	h, err := c.head()
	if err != nil {
		return 0, false, err
	}
	return h.integer()
}
