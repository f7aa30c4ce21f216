package replay

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// BlockTokens is how many tokens one hash id of a trace stands for (Mooncake's
// traces; FAST25-release/traces of kvcache-ai/Mooncake).
const BlockTokens = 512

// maxLine bounds one line of a trace; a 200,000-token prompt has 400 hash ids.
const maxLine = 1 << 20

// Entry is one request of a trace.
type Entry struct {
	// At is the arrival, from the start of the trace.
	At time.Duration
	// ISL and OSL are the prompt's and the answer's length in tokens, at least 1.
	ISL, OSL int
	// Blocks are hash ids, ceil(ISL/BlockTokens) of them.
	Blocks []uint64
}

type line struct {
	Timestamp    *float64 `json:"timestamp"` // ms
	InputLength  int      `json:"input_length"`
	OutputLength int      `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"`
}

// Load reads a trace of JSON lines, plain or gzip, and at most limit requests
// of it (0 = all). An error names the line and the field.
func Load(path string, limit int) ([]Entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	defer func() { _ = f.Close() }() // read only
	entries, err := Read(f, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return entries, nil
}

// Read is [Load] for an open stream.
func Read(r io.Reader, limit int) ([]Entry, error) {
	buffered := bufio.NewReader(r)
	if magic, err := buffered.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		buffered = bufio.NewReader(z)
	}
	scanner := bufio.NewScanner(buffered)
	scanner.Buffer(nil, maxLine)
	var entries []Entry
	for n := 1; scanner.Scan() && (limit == 0 || len(entries) < limit); n++ {
		raw := bytes.TrimSpace(scanner.Bytes())
		if len(raw) == 0 {
			continue
		}
		entry, err := parseLine(raw)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if len(entries) > 0 && entry.At < entries[len(entries)-1].At {
			return nil, fmt.Errorf("line %d: timestamp goes back; sort the trace by timestamp", n)
		}
		entries = append(entries, entry)
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	if len(entries) == 0 {
		return nil, errors.New("the trace has no request")
	}
	return entries, nil
}

func parseLine(raw []byte) (Entry, error) {
	var l line
	if err := json.Unmarshal(raw, &l); err != nil {
		return Entry{}, fmt.Errorf("want one JSON object with timestamp, input_length, output_length, hash_ids: %w", err)
	}
	blocks := (l.InputLength + BlockTokens - 1) / BlockTokens
	switch {
	case l.Timestamp == nil || *l.Timestamp < 0:
		return Entry{}, errors.New("timestamp: want milliseconds from the start, at least 0")
	case l.InputLength < 1:
		return Entry{}, fmt.Errorf("input_length %d: want at least 1 token", l.InputLength)
	case l.OutputLength < 0:
		return Entry{}, fmt.Errorf("output_length %d: want at least 0 tokens", l.OutputLength)
	case len(l.HashIDs) != blocks:
		return Entry{}, fmt.Errorf("hash_ids: want %d for %d tokens in blocks of %d, got %d",
			blocks, l.InputLength, BlockTokens, len(l.HashIDs))
	}
	return Entry{
		At:     time.Duration(*l.Timestamp * float64(time.Millisecond)),
		ISL:    l.InputLength,
		OSL:    max(l.OutputLength, 1),
		Blocks: l.HashIDs,
	}, nil
}
