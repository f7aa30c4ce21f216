package openai

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// caseFile reads one of the shared inputs.
func caseFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "test", "data", "cases", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// caseLines is caseFile for a file of one body a line.
func caseLines(t testing.TB, name string) [][]byte {
	t.Helper()
	return bytes.Split(bytes.TrimSuffix(caseFile(t, name), []byte("\n")), []byte("\n"))
}

func mustParse(t testing.TB, api API, body string) *Request {
	t.Helper()
	r, err := Parse(api, []byte(body))
	if err != nil {
		t.Fatalf("parse %s: %v", clip(body), err)
	}
	return r
}

// streams are the canonical streams of a request's prompts.
func streams(r *Request) []string {
	var bufs []*bytes.Buffer
	r.writePrompts(func() io.Writer {
		b := new(bytes.Buffer)
		bufs = append(bufs, b)
		return b
	})
	out := make([]string, 0, len(bufs))
	for _, b := range bufs {
		out = append(out, b.String())
	}
	return out
}

// readable shows a stream with one frame a line.
func readable(stream string) string {
	var sb strings.Builder
	for frame := range strings.SplitSeq(strings.ReplaceAll(stream, escapedNUL, `\0`), "\x00") {
		switch {
		case frame == "":
		case frame[0] == 'H' && len(frame) == 17:
			fmt.Fprintf(&sb, "H %x\n", frame[1:])
		default:
			fmt.Fprintf(&sb, "%c %q\n", frame[0], frame[1:])
		}
	}
	return sb.String()
}
