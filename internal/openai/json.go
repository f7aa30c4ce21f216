package openai

import (
	"bytes"
	"errors"
	"io"
	"iter"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// validate checks that b is one JSON value within jsontext's depth limit
// (10,000 levels). Like Python's json module it allows repeated names and text
// that is not UTF-8. The walkers below trust bytes that have passed it.
func validate(b []byte) error {
	dec := jsontext.NewDecoder(bytes.NewBuffer(b), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if _, err := dec.ReadValue(); err != nil {
		return err
	}
	switch _, err := dec.ReadToken(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return &jsontext.SyntacticError{ByteOffset: dec.InputOffset(), Err: errors.New("a second value after the first")}
}

// isValid is validate without a reason, and without allocation.
func isValid(b []byte) bool {
	return jsontext.Value(b).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// member is one name and value of an object, as offsets into it.
type member struct {
	start      int // of the name's opening quote
	nameEnd    int // behind its closing quote
	value, end int
}

// name is the unescaped name.
func (m member) name(obj []byte) []byte { return unquote(obj[m.start:m.nameEnd]) }

// raw is the value as it stands in the object.
func (m member) raw(obj []byte) []byte { return obj[m.value:m.end] }

// members walks a valid JSON object in its own order. White space may surround
// the object.
func members(obj []byte) iter.Seq[member] {
	return func(yield func(member) bool) {
		i := skipSpace(obj, skipSpace(obj, 0)+1)
		for obj[i] != '}' {
			m := member{start: i, nameEnd: skipString(obj, i)}
			m.value = skipSpace(obj, skipSpace(obj, m.nameEnd)+1) // behind the colon
			m.end = skipValue(obj, m.value)
			if !yield(m) {
				return
			}
			if i = skipSpace(obj, m.end); obj[i] == ',' {
				i = skipSpace(obj, i+1)
			}
		}
	}
}

// elements walks a valid JSON array.
func elements(arr []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for start, end := range elementSpans(arr) {
			if !yield(arr[start:end]) {
				return
			}
		}
	}
}

// elementSpans is elements as offsets.
func elementSpans(arr []byte) iter.Seq2[int, int] {
	return func(yield func(start, end int) bool) {
		i := skipSpace(arr, skipSpace(arr, 0)+1)
		for arr[i] != ']' {
			end := skipValue(arr, i)
			if !yield(i, end) {
				return
			}
			if i = skipSpace(arr, end); arr[i] == ',' {
				i = skipSpace(arr, i+1)
			}
		}
	}
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	return i
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// skipString is the offset behind the string that starts at i.
func skipString(b []byte, i int) int {
	for j := i + 1; ; j++ {
		j += bytes.IndexByte(b[j:], '"')
		k := j
		for b[k-1] == '\\' { // the opening quote ends this at the latest
			k--
		}
		if (j-k)%2 == 0 {
			return j + 1
		}
	}
}

// skipValue is the offset behind the value that starts at i.
func skipValue(b []byte, i int) int {
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		return skipNested(b, i)
	}
	for i < len(b) && b[i] != ',' && b[i] != ']' && b[i] != '}' && !isSpace(b[i]) {
		i++
	}
	return i
}

func skipNested(b []byte, i int) int {
	for depth := 0; ; {
		switch b[i] {
		case '"':
			i = skipString(b, i)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		i++
		if depth == 0 {
			return i
		}
	}
}

// trim is a value without the white space around it.
func trim(b []byte) []byte { return bytes.Trim(b, " \n\r\t") }

func isNull(raw []byte) bool   { return len(raw) == 4 && raw[0] == 'n' }
func isString(raw []byte) bool { return len(raw) > 0 && raw[0] == '"' }
func isObject(raw []byte) bool { return len(raw) > 0 && raw[0] == '{' }
func isArray(raw []byte) bool  { return len(raw) > 0 && raw[0] == '[' }

// isEmpty is true of what a template treats like an absent member: null and
// the empty array.
func isEmpty(raw []byte) bool {
	return isNull(raw) || isArray(raw) && raw[skipSpace(raw, 1)] == ']'
}

// unquote is the text of a valid JSON string. It is a part of raw unless raw
// has escapes.
func unquote(raw []byte) []byte {
	inner := raw[1 : len(raw)-1]
	i := bytes.IndexByte(inner, '\\')
	if i < 0 {
		return inner
	}
	out := make([]byte, 0, len(inner))
	for ; i >= 0; i = bytes.IndexByte(inner, '\\') {
		out = append(out, inner[:i]...)
		r, n := unescape(inner[i:])
		out = utf8.AppendRune(out, r)
		inner = inner[i+n:]
	}
	return append(out, inner...)
}

// unescape reads the escape at the start of b, which begins with a backslash,
// and its length in bytes. A surrogate without its half is U+FFFD.
func unescape(b []byte) (rune, int) {
	switch b[1] {
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
	default: // quote, backslash, slash
		return rune(b[1]), 2
	}
	r := hex4(b[2:6])
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if len(b) >= 12 && b[6] == '\\' && b[7] == 'u' {
		if pair := utf16.DecodeRune(r, hex4(b[8:12])); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return utf8.RuneError, 6
}

func hex4(b []byte) rune {
	var r rune
	for _, c := range b {
		switch {
		case c <= '9':
			c -= '0'
		case c <= 'F':
			c -= 'A' - 10
		default:
			c -= 'a' - 10
		}
		r = r<<4 | rune(c)
	}
	return r
}
