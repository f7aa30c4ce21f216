package bpe

import (
	_ "embed"
	"fmt"
	"strings"
	"unicode/utf8"
)

// mergesText is the vocabulary: one merge a line, the first learned first, the
// two parts separated by a space and written as [AppendMerge] writes them.
//
//go:embed merges.txt
var mergesText string

// byteRune is GPT-2's printable rune for a byte: printable Latin-1 stands for
// itself, the other bytes follow from U+0100 in order. A space is U+0120.
func byteRunes() (t [256]rune) {
	free := rune(0x100)
	for b := range t {
		switch r := rune(b); {
		case r >= '!' && r <= '~', r >= 0xa1 && r <= 0xac, r >= 0xae:
			t[b] = r
		default:
			t[b] = free
			free++
		}
	}
	return t
}

// AppendMerge appends the line of a merge, as merges.txt holds it, to dst:
// printable runes for all bytes, so that the file is text.
func AppendMerge(dst []byte, left, right string) []byte {
	runes := byteRunes()
	for i := range len(left) {
		dst = utf8.AppendRune(dst, runes[left[i]])
	}
	dst = append(dst, ' ')
	for i := range len(right) {
		dst = utf8.AppendRune(dst, runes[right[i]])
	}
	return append(dst, '\n')
}

// parseMerges reads lines written by AppendMerge.
func parseMerges(text string) ([][2]string, error) {
	back := make(map[rune]byte, 256)
	for b, r := range byteRunes() {
		back[r] = byte(b)
	}
	plain := func(word string) (string, error) {
		var sb strings.Builder
		for _, r := range word {
			b, ok := back[r]
			if !ok {
				return "", fmt.Errorf("rune %q stands for no byte", r)
			}
			sb.WriteByte(b)
		}
		return sb.String(), nil
	}
	var merges [][2]string
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !ok || left == "" || right == "" {
			return nil, fmt.Errorf("merge %d: want two words, got %q", len(merges)+1, line)
		}
		l, err := plain(left)
		if err != nil {
			return nil, fmt.Errorf("merge %d: %w", len(merges)+1, err)
		}
		r, err := plain(right)
		if err != nil {
			return nil, fmt.Errorf("merge %d: %w", len(merges)+1, err)
		}
		merges = append(merges, [2]string{l, r})
	}
	return merges, nil
}
