package enginewire

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// optionalText reads text, or the empty string for nil and for a missing value.
func optionalText(raw []byte) (string, error) {
	if isNil(raw) {
		return "", nil
	}
	c := cursor{raw}
	p, err := c.text()
	return string(p), err
}

// hashes reads a list of block hashes. All of them share one allocation.
func hashes(raw []byte) ([]Hash, error) {
	c := cursor{raw}
	n, err := c.array()
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, errors.New("no blocks")
	}
	buf := make([]byte, 0, 8*n)
	ends := make([]int, n)
	for i := range ends {
		if buf, err = c.hash(buf); err != nil {
			return nil, fmt.Errorf("hash %d: %w", i, err)
		}
		ends[i] = len(buf)
	}
	all, start := string(buf), 0
	out := make([]Hash, n)
	for i, end := range ends {
		out[i] = Hash(all[start:end])
		start = end
	}
	return out, nil
}

// tokens reads token ids, flat or in pairs with the next one (EAGLE).
func tokens(raw []byte) (ids []uint32, eagle bool, err error) {
	c := cursor{raw}
	n, err := c.array()
	if err != nil {
		return nil, false, err
	}
	if n == 0 {
		return nil, false, nil
	}
	ids = make([]uint32, n)
	eagle = (head{code: c.b[0]}).isArray()
	for i := range ids {
		if eagle {
			if k, err := c.array(); err != nil {
				return nil, false, err
			} else if k != 2 {
				return nil, false, fmt.Errorf("entry %d has %d ids: want a pair", i, k)
			}
		}
		id, err := c.count(math.MaxUint32)
		if err != nil {
			return nil, false, fmt.Errorf("id %d: %w", i, err)
		}
		ids[i] = uint32(id)
		if eagle {
			if err := c.skip(); err != nil {
				return nil, false, err
			}
		}
	}
	return ids, eagle, nil
}

// extraKeys reads vLLM's extra_keys. An entry of a block holds, in this order,
// the adapter's name, a (identifier, offset) pair for each image, the salt (in
// the first block of a prompt only) and digests of prompt embeddings.
func extraKeys(e *Event, raw []byte) error {
	if isNil(raw) {
		return nil
	}
	c := cursor{raw}
	n, err := c.array()
	if err != nil {
		return err
	}
	if n != len(e.Hashes) {
		return fmt.Errorf("%d entries for %d blocks", n, len(e.Hashes))
	}
	for i := range n {
		entry, err := c.value()
		if err != nil {
			return err
		}
		if isNil(entry) {
			continue
		}
		if err := blockKeys(e, i, entry); err != nil {
			return fmt.Errorf("block %d: %w", i, err)
		}
	}
	return nil
}

// blockKeys sorts the keys of block i.
func blockKeys(e *Event, i int, raw []byte) error {
	c := cursor{raw}
	n, err := c.array()
	if err != nil {
		return err
	}
	for range n {
		item, err := c.value()
		if err != nil {
			return err
		}
		key, bare, err := extraKey(item)
		switch {
		case err != nil:
			return err
		case bare && key == e.LoRA:
		case bare && i == 0 && e.Parent == nil:
			e.Salt = key
		default:
			e.addExtra(i, key)
		}
	}
	return nil
}

// addExtra adds one media key to block i.
func (e *Event) addExtra(i int, key string) {
	if e.Extra == nil {
		e.Extra = make([][]string, len(e.Hashes))
	}
	e.Extra[i] = append(e.Extra[i], key)
}

// extraKey writes one key as text; bare is true for plain text, which may also
// be the adapter's name or the salt.
func extraKey(raw []byte) (key string, bare bool, err error) {
	h := head{code: raw[0]}
	c := cursor{raw}
	if h.isText() {
		p, err := c.text()
		return string(p), true, err
	}
	if !h.isArray() {
		key, err = scalar(raw)
		return key, false, err
	}
	n, err := c.array()
	if err != nil {
		return "", false, err
	}
	for i := range n {
		part, err := c.value()
		if err != nil {
			return "", false, err
		}
		word, err := scalar(part)
		if err != nil {
			return "", false, err
		}
		if i > 0 {
			key += "@"
		}
		key += word
	}
	return key, false, nil
}

// scalar writes text, bytes (in hex) or an integer as text.
func scalar(raw []byte) (string, error) {
	c := cursor{raw}
	h, err := c.head()
	if err != nil {
		return "", err
	}
	if !h.isText() && !h.isBytes() {
		bits, negative, err := h.integer()
		if err != nil {
			return "", err
		}
		if negative {
			return strconv.FormatInt(int64(bits), 10), nil
		}
		return strconv.FormatUint(bits, 10), nil
	}
	_, n := h.contents()
	p, err := c.take(n)
	if h.isBytes() {
		return hex.EncodeToString(p), err
	}
	return string(p), err
}

// mediaInfos reads the form of Dynamo's engines: for each block nil or
// {"mm_objects": [{"mm_hash": number, ...}]}.
func mediaInfos(e *Event, raw []byte) error {
	if isNil(raw) {
		return nil
	}
	c := cursor{raw}
	n, err := c.array()
	if err != nil {
		return err
	}
	if n > len(e.Hashes) {
		return fmt.Errorf("%d entries for %d blocks", n, len(e.Hashes))
	}
	for i := range n {
		entry, err := c.value()
		if err != nil {
			return err
		}
		if isNil(entry) {
			continue
		}
		if err := mediaObjects(e, i, entry); err != nil {
			return fmt.Errorf("block %d: %w", i, err)
		}
	}
	return nil
}

func mediaObjects(e *Event, i int, raw []byte) error {
	var objects []byte
	c := cursor{raw}
	err := eachPair(&c, func(k string, v []byte) {
		if k == "mm_objects" {
			objects = v
		}
	})
	if err != nil || isNil(objects) {
		return err
	}
	c = cursor{objects}
	n, err := c.array()
	if err != nil {
		return err
	}
	for range n {
		var id []byte
		err := eachPair(&c, func(k string, v []byte) {
			if k == "mm_hash" {
				id = v
			}
		})
		if err != nil {
			return err
		}
		key, err := scalar(id)
		if err != nil {
			return fmt.Errorf("mm_hash: %w", err)
		}
		e.addExtra(i, key)
	}
	return nil
}
