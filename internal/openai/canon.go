package openai

import (
	"bytes"
	"cmp"
	"io"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/kvindex"
)

// The canonical stream of a chat prompt is a row of frames, each begun by a NUL
// and a letter. No frame has an end mark, so that a conversation's next turn
// only adds bytes. Text can hold no frame: its own NULs are written as NUL 0xff.
const (
	frameTools   = "\x00T" // compact JSON of tools
	frameMessage = "\x00M" // role
	frameText    = "\x00C" // a run of text
	framePart    = "\x00P" // type of a media part
	frameHash    = "\x00H" // 16 bytes: XXH3-128 of a long string
	frameMember  = "\x00X" // name of any other member
	frameValue   = "\x00V" // its compact JSON
	frameOpaque  = "\x00O" // compact JSON of something read as a whole
	escapedNUL   = "\x00\xff"
)

// Types of a part that is text.
const (
	kindText       = "text"
	kindInputText  = "input_text"
	kindOutputText = "output_text"
)

const (
	// maxFields bounds the members that are put into a fixed order; an object
	// with more is taken as it comes.
	maxFields = 64
	// maxInline is the longest string inside a part that is written out, in
	// bytes; longer ones (data of media) are written as a hash.
	maxInline = 64
)

// streamVersion changes when the canonical stream does, so that pickers of
// different releases never share chunks.
const streamVersion = "openai/1"

// Seed is the seed of the request's prompts: everything besides their text
// that changes how the engine renders them, and the pool's secret. base is the
// base model's name, lora the adapter's (empty for none).
func (r *Request) Seed(secret, base, lora string) kvindex.Seed {
	parts := []string{streamVersion, secret, r.API.String(), base, lora, r.CacheSalt}
	opts := slices.Clone(r.seedParts)
	slices.SortFunc(opts, func(a, b seedPart) int { return cmp.Compare(a.name, b.name) })
	for _, o := range opts {
		if isNull(o.value) {
			continue
		}
		var v bytes.Buffer
		c := canon{w: &v}
		c.compact(o.value, false)
		parts = append(parts, o.name, v.String())
	}
	return kvindex.NewSeed(parts...)
}

// Hashers are the hashed prompts of the request, one per text prompt and
// exactly one for chat; none for prompts of token ids. Equal seeds and equal
// prompts give equal chunks however the JSON is spelt.
func (r *Request) Hashers(seed kvindex.Seed) []*kvindex.ChunkHasher {
	hs := make([]*kvindex.ChunkHasher, 0, r.TextPrompts)
	r.writePrompts(func() io.Writer {
		h := kvindex.NewChunkHasher(seed)
		hs = append(hs, h)
		return h
	})
	return hs
}

// writePrompts writes each text prompt's stream to a writer that next makes.
func (r *Request) writePrompts(next func() io.Writer) {
	switch {
	case r.TextPrompts == 0:
	case r.API == APIChat:
		c := canon{w: next()}
		c.chat(r)
	case isString(r.prompt):
		c := canon{w: next()}
		c.bare(r.prompt)
	default:
		for e := range elements(r.prompt) {
			c := canon{w: next()}
			c.bare(e)
		}
	}
}

// Reply continues a prompt's stream with the assistant's reply. The stream of
// the conversation's next turn, which has the reply as a message, begins with
// the result. text is the whole reply as the client got it.
func (r *Request) Reply(h *kvindex.ChunkHasher, text string) {
	c := canon{w: h}
	if r.API != APIChat {
		c.str(text)
		return
	}
	c.str(frameMessage)
	c.str("assistant")
	if text != "" {
		c.str(frameText)
		c.escaped(text)
	}
}

// canon writes canonical streams. Its writer is a hasher, or a test's buffer;
// neither fails.
type canon struct {
	w     io.Writer
	inRun bool    // the frame being written is a run of text
	small [8]byte // one unescaped character

	// fields are buffers for the members of a message, a part, and what is in it.
	fields [3][]field
}

// field is a member of an object that is put into order.
type field struct {
	name, value []byte
	rank        int
}

func (c *canon) chat(r *Request) {
	if r.tools != nil && !isEmpty(r.tools) {
		c.str(frameTools)
		c.compact(r.tools, false)
	}
	for m := range elements(r.messages) {
		c.message(m)
	}
}

// messageRank is the place of a message's member in its frame: near the order
// in which templates render them, the text of the reasoning before the content.
// Others follow by name.
func messageRank(name []byte) int {
	switch string(name) {
	case "role":
		return 0
	case "name":
		return 1
	case "reasoning_content":
		return 2
	case "reasoning":
		return 3
	case "content":
		return 4
	case "tool_calls":
		return 5
	case "tool_call_id":
		return 6
	default:
		return 7
	}
}

func (c *canon) message(m []byte) {
	c.inRun = false
	c.str(frameMessage)
	fields, ok := c.sorted(0, m, messageRank)
	if !ok {
		c.str(frameOpaque)
		c.compact(m, true)
		return
	}
	for _, f := range fields {
		switch {
		case f.rank == 0 && isString(f.value):
			c.unescaped(f.value)
		case f.rank == 4 && isString(f.value):
			c.run(f.value)
		case f.rank == 4 && isArray(f.value):
			for p := range elements(f.value) {
				c.part(p)
			}
		default:
			c.member(f)
		}
	}
}

// sorted are the members of an object by rank, then by name, of equal names the
// last, without the empty ones. It says false if there are more than maxFields.
// The result is valid until the next object of the same level.
func (c *canon) sorted(level int, obj []byte, rank func(name []byte) int) ([]field, bool) {
	fs := c.fields[level][:0]
	for m := range members(obj) {
		if len(fs) == maxFields {
			return nil, false
		}
		name := m.name(obj)
		fs = append(fs, field{name: name, value: m.raw(obj), rank: rank(name)})
	}
	c.fields[level] = fs
	slices.SortStableFunc(fs, func(a, b field) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), bytes.Compare(a.name, b.name))
	})
	out := fs[:0]
	for i, f := range fs {
		repeated := i+1 < len(fs) && bytes.Equal(f.name, fs[i+1].name)
		if !repeated && !isEmpty(f.value) {
			out = append(out, f)
		}
	}
	return out, true
}

func (c *canon) member(f field) {
	c.inRun = false
	c.str(frameMember)
	c.escaped(string(f.name))
	c.str(frameValue)
	c.compact(f.value, false)
}

// part writes one part of a message's content.
func (c *canon) part(p []byte) {
	if isString(p) {
		c.run(p)
		return
	}
	var fields []field
	ok := isObject(p)
	if ok {
		fields, ok = c.sorted(1, p, partRank)
	}
	if !ok || len(fields) == 0 || fields[0].rank != 0 || !isString(fields[0].value) {
		c.opaque(p)
		return
	}
	kind, rest := unquote(fields[0].value), fields[1:]
	switch string(kind) {
	case kindText, kindInputText, kindOutputText:
		c.textPart(p, rest)
	case "image_url", "audio_url", "video_url", "input_audio":
		c.media(kind, rest)
	default:
		c.opaque(p)
	}
}

// partRank puts a part's type first.
func partRank(name []byte) int {
	if string(name) == "type" {
		return 0
	}
	return 1
}

// textPart continues the run of text. Members beside the text, such as cache
// hints, are not rendered.
func (c *canon) textPart(p []byte, rest []field) {
	for _, f := range rest {
		if string(f.name) != "text" {
			continue
		}
		if !isString(f.value) {
			c.opaque(p)
			return
		}
		c.run(f.value)
	}
}

// media writes the type of a part and the hash of its address or data, which
// stand under the type's own name: as a string, or in an object.
func (c *canon) media(kind []byte, rest []field) {
	c.inRun = false
	c.str(framePart)
	c.bytes(kind)
	for _, f := range rest {
		switch {
		case !bytes.Equal(f.name, kind):
			c.member(f)
		case isString(f.value):
			c.hash(f.value)
		case isObject(f.value):
			c.mediaObject(f.value)
		default:
			c.member(f)
		}
	}
}

func (c *canon) mediaObject(obj []byte) {
	fields, ok := c.sorted(2, obj, func([]byte) int { return 0 })
	if !ok {
		c.opaque(obj)
		return
	}
	for _, f := range fields {
		if name := string(f.name); (name == "url" || name == "data") && isString(f.value) {
			c.hash(f.value)
			continue
		}
		c.member(f)
	}
}

// opaque writes a value that we cannot read.
func (c *canon) opaque(v []byte) {
	c.inRun = false
	c.str(frameOpaque)
	c.compact(v, true)
}

// hash stands for a long JSON string.
func (c *canon) hash(raw []byte) {
	sum := xxh3.Hash128(unquote(raw)).Bytes()
	c.str(frameHash)
	c.bytes(sum[:])
}

// run continues the text of a message, or begins it. Adjoining parts and one
// string of the same text are equal; an empty text is none.
func (c *canon) run(raw []byte) {
	if len(raw) == len(`""`) {
		return
	}
	if !c.inRun {
		c.str(frameText)
		c.inRun = true
	}
	c.unescaped(raw)
}
