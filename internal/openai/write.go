package openai

import (
	"bytes"
	"io"
	"strings"
	"unicode/utf8"
)

// compact writes JSON without white space and with the fewest escapes, in its
// own order. With hashLong, strings longer than maxInline are hashed.
func (c *canon) compact(v []byte, hashLong bool) {
	for i := 0; i < len(v); {
		switch start := i; {
		case v[i] == '"':
			i = skipString(v, i)
			if raw := v[start:i]; hashLong && len(unquote(raw)) > maxInline {
				c.hash(raw)
				continue
			}
			c.requoted(v[start:i])
		case isSpace(v[i]):
			i++
		default:
			for i++; i < len(v) && v[i] != '"' && !isSpace(v[i]); i++ {
			}
			c.bytes(v[start:i])
		}
	}
}

// unescaped writes the text of a JSON string, with its NULs escaped.
func (c *canon) unescaped(raw []byte) {
	s := raw[1 : len(raw)-1]
	for i := bytes.IndexByte(s, '\\'); i >= 0; i = bytes.IndexByte(s, '\\') {
		c.bytes(s[:i])
		r, n := unescape(s[i:])
		if s = s[i+n:]; r == 0 {
			c.str(escapedNUL)
			continue
		}
		c.bytes(utf8.AppendRune(c.small[:0], r))
	}
	c.bytes(s)
}

// bare writes the text of a JSON string as it is.
func (c *canon) bare(raw []byte) {
	s := raw[1 : len(raw)-1]
	for i := bytes.IndexByte(s, '\\'); i >= 0; i = bytes.IndexByte(s, '\\') {
		c.bytes(s[:i])
		r, n := unescape(s[i:])
		c.bytes(utf8.AppendRune(c.small[:0], r))
		s = s[i+n:]
	}
	c.bytes(s)
}

// requoted writes a JSON string with the fewest escapes.
func (c *canon) requoted(raw []byte) {
	const hexDigits = "0123456789abcdef"
	s := raw
	for i := bytes.IndexByte(s, '\\'); i >= 0; i = bytes.IndexByte(s, '\\') {
		c.bytes(s[:i])
		r, n := unescape(s[i:])
		s = s[i+n:]
		switch {
		case r == '"' || r == '\\':
			c.bytes(append(c.small[:0], '\\', byte(r)))
		case r < ' ':
			c.bytes(append(c.small[:0], '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&15]))
		default:
			c.bytes(utf8.AppendRune(c.small[:0], r))
		}
	}
	c.bytes(s)
}

// escaped writes text with its NULs escaped.
func (c *canon) escaped(s string) {
	for i := strings.IndexByte(s, 0); i >= 0; i = strings.IndexByte(s, 0) {
		c.str(s[:i])
		c.str(escapedNUL)
		s = s[i+1:]
	}
	c.str(s)
}

func (c *canon) str(s string) {
	_, _ = io.WriteString(c.w, s)
}

func (c *canon) bytes(b []byte) {
	_, _ = c.w.Write(b)
}
