package sim

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// maxTraceLine bounds one line of a trace, bytes: 200,000 tokens in blocks of 16.
const maxTraceLine = 1 << 20

// maxTokens bounds prompt and answer.
const maxTokens = 10_000_000

// plainBlock is the block size of traces that have none, tokens.
const plainBlock = 512

// LoadTrace reads a trace file, plain or gzip, and at most limit requests of it
// (0 = all). It tells these layouts apart:
//
//	Mooncake       JSON lines: timestamp (ms), input_length, output_length, hash_ids
//	Qwen-Bailian   the same with chat_id, timestamp in seconds, blocks of 16 tokens
//	Azure LLM      CSV: TIMESTAMP, ContextTokens, GeneratedTokens; no shared prefixes
//
// A hash id stands for a block and all before it. The block size is the one that
// fits all prompts and their numbers of ids. Lines without hash_ids share nothing.
func LoadTrace(name, path string, limit int) (Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return Trace{}, fmt.Errorf("open trace: %w", err)
	}
	defer func() { _ = f.Close() }() // read only
	t, err := ReadTrace(name, f, limit)
	if err != nil {
		return Trace{}, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// traceLine is one line of a trace before the block size is known.
type traceLine struct {
	Timestamp *float64 `json:"timestamp"`
	ChatID    *int64   `json:"chat_id"`
	Input     int      `json:"input_length"`
	Output    int      `json:"output_length"`
	HashIDs   []uint64 `json:"hash_ids"`
}

// ReadTrace is [LoadTrace] for an open stream.
func ReadTrace(name string, r io.Reader, limit int) (Trace, error) {
	buffered := bufio.NewReader(r)
	if magic, err := buffered.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return Trace{}, fmt.Errorf("gzip: %w", err)
		}
		buffered = bufio.NewReader(z)
	}
	read := readJSONLines
	if first, err := buffered.Peek(1); err == nil && first[0] != '{' {
		read = readAzure
	}
	rows, err := read(buffered, limit)
	if err != nil {
		return Trace{}, err
	}
	if len(rows) == 0 {
		return Trace{}, errors.New("the trace has no request")
	}
	return build(name, rows)
}

func readJSONLines(r io.Reader, limit int) ([]traceLine, error) {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, maxTraceLine)
	var rows []traceLine
	for n := 1; scanner.Scan() && (limit == 0 || len(rows) < limit); n++ {
		raw := bytes.TrimSpace(scanner.Bytes())
		if len(raw) == 0 {
			continue
		}
		var l traceLine
		if err := json.Unmarshal(raw, &l); err != nil {
			return nil, fmt.Errorf("line %d: want an object with timestamp, input_length, output_length, hash_ids: %w", n, err)
		}
		if l.Timestamp == nil || *l.Timestamp < 0 || l.Input < 1 || l.Output < 0 || l.Input > maxTokens || l.Output > maxTokens {
			return nil, fmt.Errorf("line %d: want a timestamp of at least 0, input_length of 1 to %d, output_length of 0 to %d", n, maxTokens, maxTokens)
		}
		if l.ChatID != nil { // Qwen-Bailian
			*l.Timestamp *= 1000
		}
		rows = append(rows, l)
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	return rows, nil
}

// azureTime is how the Azure traces write a time; they have up to seven digits of
// a second.
const azureTime = "2006-01-02 15:04:05.9999999"

func readAzure(r io.Reader, limit int) ([]traceLine, error) {
	c := csv.NewReader(r)
	header, err := c.Read()
	if err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	column := func(name string) int {
		return slices.IndexFunc(header, func(h string) bool { return strings.EqualFold(strings.TrimSpace(h), name) })
	}
	when, in, out := column("TIMESTAMP"), column("ContextTokens"), column("GeneratedTokens")
	if when < 0 || in < 0 || out < 0 {
		return nil, errors.New("want JSON lines, or CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens")
	}
	var rows []traceLine
	var start time.Time
	for n := 2; limit == 0 || len(rows) < limit; n++ {
		record, err := c.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		at, err1 := time.Parse(azureTime, strings.TrimSuffix(record[when], "+00:00"))
		input, err2 := strconv.Atoi(record[in])
		output, err3 := strconv.Atoi(record[out])
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if input > maxTokens || output > maxTokens {
			return nil, fmt.Errorf("line %d: more than %d tokens", n, maxTokens)
		}
		if len(rows) == 0 {
			start = at
		}
		ms := float64(at.Sub(start)) / float64(time.Millisecond)
		rows = append(rows, traceLine{Timestamp: &ms, Input: max(1, input), Output: output})
	}
	return rows, nil
}

// build makes a trace of lines.
func build(name string, rows []traceLine) (Trace, error) {
	size, err := blockSize(rows)
	if err != nil {
		return Trace{}, err
	}
	t := Trace{Name: name, BlockSize: size, Entries: make([]Entry, len(rows))}
	for i := range rows {
		l := &rows[i]
		e := Entry{At: time.Duration(*l.Timestamp * float64(time.Millisecond)), ISL: l.Input, OSL: max(1, l.Output)}
		if i > 0 && e.At < t.Entries[i-1].At {
			return Trace{}, fmt.Errorf("request %d: timestamp goes back; sort the trace by timestamp", i+1)
		}
		e.Blocks = make([]kvindex.BlockHash, l.Input/size)
		for b := range e.Blocks {
			e.Blocks[b] = spread(uint64(i)<<32 | uint64(b) | 1<<63) // its own
			if len(l.HashIDs) > 0 {
				e.Blocks[b] = spread(l.HashIDs[b])
			}
		}
		t.Entries[i] = e
	}
	return t, nil
}

// blockSize is the tokens that one hash id stands for.
func blockSize(rows []traceLine) (int, error) {
	fits := func(size int) bool {
		return !slices.ContainsFunc(rows, func(l traceLine) bool {
			return len(l.HashIDs) > 0 && len(l.HashIDs) != (l.Input+size-1)/size && len(l.HashIDs) != l.Input/size
		})
	}
	for _, size := range []int{plainBlock, 16, 32, 64, 100, 128, 256, 1024} {
		if fits(size) {
			return size, nil
		}
	}
	return 0, errors.New("hash_ids: their numbers fit no block size of 16 to 1,024 tokens")
}

// Times is n copies of the trace at once, as a fleet n times as large would see
// them: the copies share no blocks, and each begins at another point of the
// trace, so that their bursts do not add up.
func (t Trace) Times(n int) Trace {
	if n < 2 {
		return t
	}
	span := t.Entries[len(t.Entries)-1].At + 1
	out := Trace{Name: fmt.Sprintf("%s x%d", t.Name, n), BlockSize: t.BlockSize, Entries: make([]Entry, 0, n*len(t.Entries))}
	for k := range n {
		shift := span / time.Duration(n) * time.Duration(k)
		for _, e := range t.Entries {
			e.At = (e.At + shift) % span
			if k > 0 {
				blocks := make([]kvindex.BlockHash, len(e.Blocks))
				for i, b := range e.Blocks {
					blocks[i] = spread(uint64(b) ^ uint64(k)<<48)
				}
				e.Blocks = blocks
			}
			out.Entries = append(out.Entries, e)
		}
	}
	slices.SortStableFunc(out.Entries, func(a, b Entry) int { return int(a.At - b.At) })
	return out
}
