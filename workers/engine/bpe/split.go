package bpe

import (
	"iter"
	"unicode"
	"unicode/utf8"
)

// class is what the pre-tokenizer sees of a rune.
type class uint8

const (
	other  class = iota // punctuation, symbols, marks, controls, invalid bytes
	letter              // Unicode L
	digit               // Unicode N
	space               // Unicode White_Space
)

// asciiClasses is the class of each ASCII byte; a table because most text is
// ASCII and this is the inner loop.
func asciiClasses() (t [utf8.RuneSelf]class) {
	for r := range rune(utf8.RuneSelf) {
		t[r] = classify(r)
	}
	return t
}

func classify(r rune) class {
	switch {
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return digit
	case unicode.IsSpace(r):
		return space
	default:
		return other
	}
}

// splitter cuts text into pre-tokens.
type splitter struct {
	ascii [utf8.RuneSelf]class
}

func newSplitter() *splitter { return &splitter{ascii: asciiClasses()} }

// at is the class and the length in bytes of the rune at text[i]. A byte that
// is not valid UTF-8 is one rune of class other.
func (s *splitter) at(text string, i int) (class, int) {
	b := text[i]
	if b < utf8.RuneSelf {
		return s.ascii[b], 1
	}
	r, n := utf8.DecodeRuneInString(text[i:])
	if r == utf8.RuneError && n == 1 {
		return other, 1
	}
	return classify(r), n
}

// next is the length of the first pre-token of text, which is not empty.
func (s *splitter) next(text string) int {
	c, n := s.at(text, 0)
	if c == space {
		return s.spaces(text, n)
	}
	return s.run(text, n, c)
}

// run extends a pre-token of i bytes over the runes of class c that follow.
func (s *splitter) run(text string, i int, c class) int {
	for i < len(text) {
		d, n := s.at(text, i)
		if d != c {
			break
		}
		i += n
	}
	return i
}

// spaces is a pre-token that starts with white space, whose first rune has n
// bytes. A run of white space gives its last rune to what follows it: as a
// prefix if it is U+0020, else as a pre-token of its own.
func (s *splitter) spaces(text string, n int) int {
	end, last := n, 0
	for end < len(text) {
		c, m := s.at(text, end)
		if c != space {
			break
		}
		end, last = end+m, end
	}
	switch {
	case end == len(text):
		return end
	case last > 0:
		return last
	case text[0] == ' ':
		c, m := s.at(text, end)
		return s.run(text, end+m, c)
	default:
		return end
	}
}

// Split yields the pre-tokens of text in order; together they are text.
func Split(text string) iter.Seq[string] {
	s := newSplitter()
	return func(yield func(string) bool) {
		for text != "" {
			n := s.next(text)
			if !yield(text[:n]) {
				return
			}
			text = text[n:]
		}
	}
}
