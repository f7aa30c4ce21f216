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
	"reflect"
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

// maxMs bounds a timestamp, ms: today's, counted from 1970, is a thousandth of it.
// maxSpanMs bounds a trace: 31 years.
const maxMs, maxSpanMs = 1e15, 1e12

// Block sizes in tokens: of traces without hash ids, and of Qwen-Bailian's.
const (
	plainBlock   = 512
	bailianBlock = 16
)

// LoadTrace reads a trace file, plain or gzip, and at most limit requests of it
// (0 = all). It tells these layouts apart:
//
//	Mooncake       JSON lines: timestamp (ms), input_length, output_length, hash_ids
//	Qwen-Bailian   the same with chat_id, timestamp in seconds, blocks of 16 tokens
//	Azure LLM      CSV: TIMESTAMP, ContextTokens, GeneratedTokens; no shared prefixes
//
// A hash id stands for a block and all before it. The block size is the one that
// fits all prompts and their numbers of ids. Lines without hash_ids share nothing.
// Times count from the first request. Errors name line and field.
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
	line    int // in the file, from 1
	bailian bool
	ms      float64
	in, out int // tokens
	ids     []uint64
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
	n := 1
	for ; scanner.Scan() && (limit == 0 || len(rows) < limit); n++ {
		raw := bytes.TrimSpace(scanner.Bytes())
		if len(raw) == 0 {
			continue
		}
		l, err := readJSONLine(raw)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		l.line = n
		rows = append(rows, l)
	}
	if err := scanner.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, fmt.Errorf("line %d: longer than %d bytes", n, maxTraceLine)
	} else if err != nil {
		return nil, fmt.Errorf("line %d: %w", n, err)
	}
	return rows, nil
}

func readJSONLine(raw []byte) (traceLine, error) {
	var o struct {
		Timestamp *float64 `json:"timestamp"`
		ChatID    *int64   `json:"chat_id"`
		Input     *int     `json:"input_length"`
		Output    *int     `json:"output_length"`
		HashIDs   []uint64 `json:"hash_ids"`
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
			return traceLine{}, fmt.Errorf("%s: got %s, want %s", wrong.Field, wrong.Value, kindOf(wrong.Type))
		}
		return traceLine{}, fmt.Errorf("want a JSON object with timestamp, input_length, output_length, hash_ids: %w", err)
	}
	switch {
	case o.Timestamp == nil:
		return traceLine{}, errors.New("timestamp is missing")
	case o.Input == nil:
		return traceLine{}, errors.New("input_length is missing")
	case o.Output == nil:
		return traceLine{}, errors.New("output_length is missing")
	}
	l := traceLine{bailian: o.ChatID != nil, ms: *o.Timestamp, in: *o.Input, out: *o.Output, ids: o.HashIDs}
	if l.bailian {
		l.ms *= 1000
	}
	switch {
	case l.ms < 0 || l.ms > maxMs:
		return l, fmt.Errorf("timestamp is %g: want 0 to %g ms", *o.Timestamp, maxMs)
	case l.in < 1 || l.in > maxTokens:
		return l, fmt.Errorf("input_length is %d: want 1 to %d", l.in, maxTokens)
	case l.out < 0 || l.out > maxTokens:
		return l, fmt.Errorf("output_length is %d: want 0 to %d", l.out, maxTokens)
	}
	return l, nil
}

// kindOf is a Go type in the words of JSON.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Uint64:
		return "a whole number of at least 0"
	case reflect.Slice:
		return "a list"
	default:
		return "a number"
	}
}

// azureTime is how the Azure traces write a time: up to seven digits of a second,
// those of 2024 with a zone behind them.
const azureTime = "2006-01-02 15:04:05.9999999"

func readAzure(r io.Reader, limit int) ([]traceLine, error) {
	c := csv.NewReader(r)
	header, err := c.Read()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("header: %w", err)
	}
	column := func(name string) int {
		return slices.IndexFunc(header, func(h string) bool {
			return strings.EqualFold(strings.Trim(h, " \ufeff"), name)
		})
	}
	when, in, out := column("TIMESTAMP"), column("ContextTokens"), column("GeneratedTokens")
	if when < 0 || in < 0 || out < 0 {
		return nil, errors.New("line 1: want JSON lines, or CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens")
	}
	var rows []traceLine
	var start time.Time
	for limit == 0 || len(rows) < limit {
		record, err := c.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read CSV: %w", err) // has the line
		}
		line, _ := c.FieldPos(0)
		l := traceLine{line: line}
		at, err := time.Parse(azureTime, strings.TrimSuffix(record[when], "+00:00"))
		if err != nil {
			return nil, fmt.Errorf("line %d: TIMESTAMP is %q: want a time like 2023-11-16 18:15:46.6805900", line, record[when])
		}
		if len(rows) == 0 {
			start = at
		}
		l.ms = ms(at.Sub(start))
		if l.in, err = azureTokens(record[in]); err != nil {
			return nil, fmt.Errorf("line %d: ContextTokens %w", line, err)
		}
		if l.out, err = azureTokens(record[out]); err != nil {
			return nil, fmt.Errorf("line %d: GeneratedTokens %w", line, err)
		}
		rows = append(rows, l)
	}
	return rows, nil
}

func azureTokens(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxTokens {
		return 0, fmt.Errorf("is %q: want a whole number of 0 to %d", text, maxTokens)
	}
	return n, nil
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
		if i > 0 && l.ms < rows[i-1].ms {
			return Trace{}, fmt.Errorf("line %d: timestamp is before that of line %d; sort the trace by it", l.line, rows[i-1].line)
		}
		if l.ms-rows[0].ms > maxSpanMs {
			return Trace{}, fmt.Errorf("line %d: timestamp is %g ms after the first; want at most %g", l.line, l.ms-rows[0].ms, maxSpanMs)
		}
		at := time.Duration((l.ms - rows[0].ms) * float64(time.Millisecond))
		e := Entry{At: at, ISL: max(1, l.in), OSL: max(1, l.out)}
		e.Blocks = make([]kvindex.BlockHash, e.ISL/size)
		for b := range e.Blocks {
			e.Blocks[b] = spread(uint64(i)<<32 | uint64(b) | 1<<63) // its own
			if len(l.ids) > 0 {
				e.Blocks[b] = spread(l.ids[b])
			}
		}
		t.Entries[i] = e
	}
	return t, nil
}

// blockSize is the tokens that one hash id stands for.
func blockSize(rows []traceLine) (int, error) {
	sizes := []int{plainBlock, bailianBlock, 32, 64, 100, 128, 256, 1024}
	if rows[0].bailian {
		sizes[0], sizes[1] = sizes[1], sizes[0]
	}
	best, reach := 0, -1
	for _, size := range sizes {
		misfit := slices.IndexFunc(rows, func(l traceLine) bool {
			return len(l.ids) > 0 && len(l.ids) != (l.in+size-1)/size && len(l.ids) != l.in/size
		})
		if misfit < 0 {
			return size, nil
		}
		if misfit > reach {
			best, reach = size, misfit
		}
	}
	l := &rows[reach]
	if reach == 0 {
		return 0, fmt.Errorf("line %d: hash_ids has %d ids for an input_length of %d, which fits no block size of 16 to 1,024 tokens",
			l.line, len(l.ids), l.in)
	}
	return 0, fmt.Errorf("line %d: hash_ids has %d ids for an input_length of %d, the lines before it have one for every %d tokens",
		l.line, len(l.ids), l.in, best)
}

// Times is n copies of the trace at once, as a fleet n times as large would see
// them: the copies share no blocks, and each begins at another point of the
// trace, so that their bursts do not add up. A copy that reaches the trace's end goes
// on at its start; the few conversations there have their later turns first.
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
				e.Blocks, e.Answer = renamed(e.Blocks, k), renamed(e.Answer, k)
			}
			out.Entries = append(out.Entries, e)
		}
	}
	slices.SortStableFunc(out.Entries, func(a, b Entry) int { return int(a.At - b.At) })
	return out
}

// renamed are the blocks of the k-th copy in place of the trace's.
func renamed(blocks []kvindex.BlockHash, k int) []kvindex.BlockHash {
	out := make([]kvindex.BlockHash, len(blocks))
	for i, b := range blocks {
		out[i] = spread(uint64(b) ^ uint64(k)<<48)
	}
	return out
}
