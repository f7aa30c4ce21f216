package bpe

import (
	"strings"
	"unicode/utf8"
)

// Decode is the text of ids. Special tokens give their written form; an id
// outside the vocabulary gives nothing.
func (t *Tokenizer) Decode(ids []uint32) string {
	var sb strings.Builder
	for _, id := range ids {
		sb.WriteString(t.Text(id))
	}
	return sb.String()
}

// Text is the bytes of one token, which need not be valid UTF-8 alone. An id
// outside the vocabulary gives the empty string.
func (t *Tokenizer) Text(id uint32) string {
	if int64(id) >= int64(len(t.tokens)) {
		return ""
	}
	return t.tokens[id]
}

// Decoder decodes a stream of ids so that no piece ends inside a rune. It
// holds back at most three bytes. The pieces and the flush together are what
// [Tokenizer.Decode] gives for all ids.
type Decoder struct {
	t    *Tokenizer
	held []byte
}

// NewDecoder starts a stream.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{t: t} }

// Add takes the next id and returns the text that is complete with it, which
// may be empty.
func (d *Decoder) Add(id uint32) string {
	text := d.t.Text(id)
	if len(d.held) == 0 && (text == "" || text[len(text)-1] < utf8.RuneSelf) {
		return text
	}
	d.held = append(d.held, text...)
	whole := len(d.held) - incomplete(d.held)
	out := string(d.held[:whole])
	d.held = append(d.held[:0], d.held[whole:]...)
	return out
}

// Flush returns the bytes held back, at the end of the stream.
func (d *Decoder) Flush() string {
	out := string(d.held)
	d.held = d.held[:0]
	return out
}

// incomplete is how many bytes at the end of b begin a rune that more bytes
// could complete.
func incomplete(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		tail := b[len(b)-n:]
		if utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
