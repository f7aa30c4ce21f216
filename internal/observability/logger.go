package observability

import (
	"fmt"
	"io"
	"log/slog"
)

// Format is how log lines are written.
type Format string

// The formats: text for people (key=value), JSON for machines.
const (
	Text Format = "text"
	JSON Format = "json"
)

// NewLogger writes lines of at least the given level to w.
func NewLogger(w io.Writer, level slog.Level, format Format) (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: level}
	switch format {
	case Text:
		return slog.New(slog.NewTextHandler(w, options)), nil
	case JSON:
		return slog.New(slog.NewJSONHandler(w, options)), nil
	default:
		return nil, fmt.Errorf("log format %q: want text or json", format)
	}
}
