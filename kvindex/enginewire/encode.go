package enginewire

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/kvindex"
)

// Form is how events are laid out.
type Form uint8

// The forms. A batch around the events is an array in both.
const (
	// Map is what vLLM 0.32 publishes: each event a map with "type", members with
	// their default value left out.
	Map Form = iota
	// Array is the older form: each event an array, the tag first.
	Array
)

// String is the form's name in flags.
func (f Form) String() string {
	if f == Array {
		return "array"
	}
	return "map"
}

// ParseForm reads what [Form.String] writes.
func ParseForm(s string) (Form, error) {
	for _, f := range []Form{Map, Array} {
		if f.String() == s {
			return f, nil
		}
	}
	return 0, fmt.Errorf("form %q: want map or array", s)
}

// Encode writes a batch. Skipped and Bad are not written. Hashes of eight bytes
// become unsigned integers, others byte strings.
func Encode(b Batch, form Form) []byte {
	size := 64
	for i := range b.Events {
		size += 256 + 9*len(b.Events[i].Hashes) + 3*len(b.Events[i].Tokens)
	}
	dst := make([]byte, 0, size)
	n := 2
	if b.Rank != nil {
		n = 3
	}
	dst = appendArray(dst, n)
	dst = append(dst, 0xcb)
	dst = binary.BigEndian.AppendUint64(dst, math.Float64bits(b.Time))
	dst = appendArray(dst, len(b.Events))
	for i := range b.Events {
		if form == Array {
			dst = appendArrayEvent(dst, &b.Events[i])
		} else {
			dst = appendMapEvent(dst, &b.Events[i])
		}
	}
	if b.Rank != nil {
		dst = appendUint(dst, uint64(*b.Rank))
	}
	return dst
}

func appendMapEvent(dst []byte, e *Event) []byte {
	switch e.Kind {
	case Stored:
		return appendStoredMap(dst, e)
	case Removed:
		dst = append(dst, 0x84)
		dst = appendKeyText(dst, "type", e.Kind.String())
		dst = appendHashes(appendText(dst, "block_hashes"), e.Hashes)
		dst = appendKeyText(dst, "medium", mediumOf(e.Tier))
		return appendUint(appendText(dst, "group_idx"), uint64(e.Group))
	default:
		return appendKeyText(append(dst, 0x81), "type", e.Kind.String())
	}
}

func appendStoredMap(dst []byte, e *Event) []byte {
	if e.Window > 0 {
		dst = append(dst, 0x8c)
		dst = appendUint(appendText(dst, "kv_cache_spec_sliding_window"), uint64(e.Window))
	} else {
		dst = append(dst, 0x8b)
	}
	dst = appendKeyText(dst, "type", e.Kind.String())
	dst = appendHashes(appendText(dst, "block_hashes"), e.Hashes)
	dst = appendParent(appendText(dst, "parent_block_hash"), e.Parent)
	dst = appendTokens(appendText(dst, "token_ids"), e)
	dst = appendUint(appendText(dst, "block_size"), uint64(e.BlockSize))
	dst = appendLoRAID(appendText(dst, "lora_id"), e.LoRA)
	dst = appendKeyText(dst, "medium", mediumOf(e.Tier))
	dst = appendLoRAName(appendText(dst, "lora_name"), e.LoRA)
	dst = appendExtra(appendText(dst, "extra_keys"), e)
	dst = appendUint(appendText(dst, "group_idx"), uint64(e.Group))
	return appendKeyText(dst, "kv_cache_spec_kind", e.kindWord())
}

func appendArrayEvent(dst []byte, e *Event) []byte {
	switch e.Kind {
	case Stored:
		n := 11
		if e.Window > 0 {
			n = 12
		}
		dst = appendArray(dst, n)
		dst = appendText(dst, e.Kind.String())
		dst = appendHashes(dst, e.Hashes)
		dst = appendParent(dst, e.Parent)
		dst = appendTokens(dst, e)
		dst = appendUint(dst, uint64(e.BlockSize))
		dst = appendLoRAID(dst, e.LoRA)
		dst = appendText(dst, mediumOf(e.Tier))
		dst = appendLoRAName(dst, e.LoRA)
		dst = appendExtra(dst, e)
		dst = appendUint(dst, uint64(e.Group))
		dst = appendText(dst, e.kindWord())
		if e.Window > 0 {
			dst = appendUint(dst, uint64(e.Window))
		}
		return dst
	case Removed:
		dst = appendArray(dst, 4)
		dst = appendText(dst, e.Kind.String())
		dst = appendHashes(dst, e.Hashes)
		dst = appendText(dst, mediumOf(e.Tier))
		return appendUint(dst, uint64(e.Group))
	default:
		return appendText(appendArray(dst, 1), e.Kind.String())
	}
}

// kindWord is the group's kind as vLLM always gives it in a Stored.
func (e *Event) kindWord() string {
	if e.GroupKind == "" {
		return "full_attention"
	}
	return e.GroupKind
}

// appendExtra writes vLLM's extra_keys: the adapter in every block, the salt in
// the first of a prompt, nil where a block has none.
func appendExtra(dst []byte, e *Event) []byte {
	dst = appendArray(dst, len(e.Hashes))
	for i := range e.Hashes {
		var media []string
		if i < len(e.Extra) {
			media = e.Extra[i]
		}
		salted := i == 0 && e.Parent == nil && e.Salt != ""
		n := len(media)
		if e.LoRA != "" {
			n++
		}
		if salted {
			n++
		}
		if n == 0 {
			dst = append(dst, 0xc0)
			continue
		}
		dst = appendArray(dst, n)
		if e.LoRA != "" {
			dst = appendText(dst, e.LoRA)
		}
		for _, key := range media {
			dst = appendMediaKey(dst, key)
		}
		if salted {
			dst = appendText(dst, e.Salt)
		}
	}
	return dst
}

// appendMediaKey writes the (identifier, offset) pair that the key stands for;
// a key without an offset becomes an array of one, which is no salt.
func appendMediaKey(dst []byte, key string) []byte {
	id, offset, ok := strings.Cut(key, "@")
	n, err := strconv.Atoi(offset)
	if !ok || err != nil || strconv.Itoa(n) != offset {
		return appendText(append(dst, 0x91), key)
	}
	return appendInt(appendText(append(dst, 0x92), id), int64(n))
}

func mediumOf(t kvindex.Tier) string {
	switch t {
	case kvindex.Host:
		return "CPU"
	case kvindex.Disk:
		return "STORAGE"
	case kvindex.External:
		return "EXTERNAL"
	default:
		return "GPU"
	}
}

func appendHashes(dst []byte, hs []Hash) []byte {
	dst = appendArray(dst, len(hs))
	for _, h := range hs {
		dst = appendHash(dst, h)
	}
	return dst
}

func appendHash(dst []byte, h Hash) []byte {
	if len(h) == 8 {
		return appendUint(dst, binary.BigEndian.Uint64([]byte(h)))
	}
	dst = append(dst, 0xc4, byte(len(h)))
	return append(dst, h...)
}

func appendParent(dst []byte, p *Hash) []byte {
	if p == nil {
		return append(dst, 0xc0)
	}
	return appendHash(dst, *p)
}

func appendTokens(dst []byte, e *Event) []byte {
	dst = appendArray(dst, len(e.Tokens))
	for i, t := range e.Tokens {
		if !e.Eagle {
			dst = appendUint(dst, uint64(t))
			continue
		}
		next := t
		if i+1 < len(e.Tokens) {
			next = e.Tokens[i+1]
		}
		dst = appendUint(appendUint(append(dst, 0x92), uint64(t)), uint64(next))
	}
	return dst
}

func appendLoRAID(dst []byte, lora string) []byte {
	if s, ok := strings.CutPrefix(lora, "lora_id:"); ok {
		if n, err := strconv.ParseUint(s, 10, 31); err == nil {
			return appendUint(dst, n)
		}
	}
	return append(dst, 0xc0)
}

func appendLoRAName(dst []byte, lora string) []byte {
	if lora == "" || strings.HasPrefix(lora, "lora_id:") {
		return append(dst, 0xc0)
	}
	return appendText(dst, lora)
}

func appendKeyText(dst []byte, key, value string) []byte {
	return appendText(appendText(dst, key), value)
}

func appendArray(dst []byte, n int) []byte {
	switch {
	case n < 16:
		return append(dst, 0x90|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, 0xdc), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, 0xdd), uint32(n))
}

func appendText(dst []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		dst = append(dst, 0xa0|byte(n))
	case n < 1<<8:
		dst = append(dst, 0xd9, byte(n))
	case n < 1<<16:
		dst = binary.BigEndian.AppendUint16(append(dst, 0xda), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, 0xdb), uint32(n))
	}
	return append(dst, s...)
}

func appendUint(dst []byte, v uint64) []byte {
	switch {
	case v < 1<<7:
		return append(dst, byte(v))
	case v < 1<<8:
		return append(dst, 0xcc, byte(v))
	case v < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, 0xcd), uint16(v))
	case v < 1<<32:
		return binary.BigEndian.AppendUint32(append(dst, 0xce), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xcf), v)
}

func appendInt(dst []byte, v int64) []byte {
	switch {
	case v >= 0:
		return appendUint(dst, uint64(v))
	case v >= -32:
		return append(dst, byte(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xd3), uint64(v))
}
