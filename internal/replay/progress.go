package replay

import (
	"fmt"
	"io"
	"strings"
)

// barWidth is the length of the progress bar, characters.
const barWidth = 30

// Bar draws progress on w: one line drawn over on a terminal, a line each tenth
// elsewhere.
type Bar struct {
	w        io.Writer
	total    int
	terminal bool
	shown    int // tenths
}

// NewBar prepares a bar for total requests.
func NewBar(w io.Writer, total int, terminal bool) *Bar {
	return &Bar{w: w, total: total, terminal: terminal, shown: -1}
}

// Update shows how many requests are done. Write errors are ignored: progress
// is no result.
func (b *Bar) Update(done, errors int) {
	tenths := done * 10 / b.total
	if !b.terminal && tenths == b.shown {
		return
	}
	b.shown = tenths
	full := done * barWidth / b.total
	line := fmt.Sprintf("[%s%s] %d/%d, %d errors", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), done, b.total, errors)
	switch {
	case !b.terminal:
		_, _ = fmt.Fprintln(b.w, line)
	case done == b.total:
		_, _ = fmt.Fprintf(b.w, "\r%s\n", line)
	default:
		_, _ = fmt.Fprintf(b.w, "\r%s", line)
	}
}
