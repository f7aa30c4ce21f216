package openai

import (
	"bytes"
	"sort"
)

const (
	// DefaultMaxEvent is the longest event of a stream that is looked at, in
	// bytes. The longest in practice is the first one, with a prompt's token
	// ids: about 7 MB for a million of them.
	DefaultMaxEvent = 16 << 20
	// keepBuffer is the capacity that a stream keeps for its next events, in
	// bytes; most are a few hundred.
	keepBuffer = 64 << 10
)

// StreamOptions say what to do with a stream. The zero value only counts.
type StreamOptions struct {
	// Strip takes token ids out of the events, as [StripTokenIDs] does.
	Strip bool
	// Collect keeps the texts and token ids of the answer.
	Collect bool
	// MaxEvent is the longest event that is looked at, in bytes; 0 means
	// [DefaultMaxEvent]. A longer one, and everything behind it, is passed on
	// unread.
	MaxEvent int
}

// Stream reads an answer of server-sent events while it is passed on. What it
// passes on and what it reads do not depend on where the chunks are cut. It is
// not safe for concurrent use.
type Stream struct {
	opts    StreamOptions
	answer  Answer
	pending []byte // the beginning of an event
	out     []byte // what Write and Close return, if Strip is set
	joined  []byte // the data of an event of several lines
	lines   []dataLine

	// Where the search for the end of the pending event stands, as offsets into
	// it: the line being read, and the next byte to look at.
	line, pos int
	// afterCR says that the event before ended with a CR, to which a LF belongs.
	afterCR bool
}

// dataLine is one line of an event's data: where it stands in the joined data
// and in the event.
type dataLine struct{ joined, event, length int }

// NewStream starts reading an answer.
func NewStream(opts StreamOptions) *Stream {
	if opts.MaxEvent <= 0 {
		opts.MaxEvent = DefaultMaxEvent
	}
	return &Stream{opts: opts}
}

// Answer is what has been read so far; it changes with later writes. The
// texts of its choices are there after Close.
func (s *Stream) Answer() *Answer { return &s.answer }

// Write reads the next bytes of the stream and returns those to pass on now.
// Without Strip they are the chunk itself. With Strip they are the events that
// are complete, valid until the next call.
func (s *Stream) Write(chunk []byte) []byte {
	if s.answer.Overflowed || len(chunk) == 0 {
		return chunk
	}
	s.out = s.out[:0]
	s.read(chunk)
	if s.opts.Strip {
		return s.out
	}
	return chunk
}

// Close ends the stream and returns the bytes that were held back: an event
// without the empty line that should end it, which is read like any other.
func (s *Stream) Close() []byte {
	s.out = s.out[:0]
	if len(s.pending) > 0 {
		s.event(s.pending)
		s.pending = nil
	}
	s.answer.settle()
	return s.out
}

// read takes the complete events out of what is pending and the chunk.
func (s *Stream) read(chunk []byte) {
	if s.afterCR && chunk[0] == '\n' {
		s.pass(chunk[:1])
		chunk = chunk[1:]
	}
	s.afterCR = false
	b := chunk
	if len(s.pending) > 0 {
		s.pending = append(s.pending, chunk...)
		b = s.pending
	}
	for {
		end := s.eventEnd(b)
		if end > s.opts.MaxEvent || end < 0 && len(b) > s.opts.MaxEvent {
			s.overflow(b)
			return
		}
		if end < 0 {
			break
		}
		s.line, s.pos = 0, 0
		s.event(b[:end])
		s.afterCR = b[end-1] == '\r'
		if b = b[end:]; s.afterCR && len(b) > 0 {
			if s.afterCR = false; b[0] == '\n' {
				s.pass(b[:1])
				b = b[1:]
			}
		}
	}
	if cap(s.pending) > keepBuffer && len(b) < keepBuffer {
		s.pending = nil
	}
	s.pending = append(s.pending[:0], b...)
}

// overflow gives up reading.
func (s *Stream) overflow(rest []byte) {
	s.answer.Overflowed = true
	s.pass(rest)
	s.pending = nil
}

// eventEnd is the offset behind the first byte of the line end that makes an
// empty line; -1 if the event is not complete. Lines end with LF, CR or both.
func (s *Stream) eventEnd(b []byte) int {
	for ; s.pos < len(b); s.pos++ {
		switch b[s.pos] {
		case '\n':
			if s.pos > 0 && b[s.pos-1] == '\r' {
				s.line++
				continue
			}
		case '\r':
		default:
			continue
		}
		if s.pos == s.line {
			return s.pos + 1
		}
		s.line = s.pos + 1
	}
	return -1
}

// pass hands bytes on, if Write does not return the chunk as a whole.
func (s *Stream) pass(b []byte) {
	if s.opts.Strip {
		s.out = append(s.out, b...)
	}
}

// event reads one event and passes it on.
func (s *Stream) event(e []byte) {
	data := s.data(e)
	switch obj := trim(data); {
	case len(obj) == 0:
	case string(obj) == "[DONE]":
		s.answer.Done = true
	case !isObject(obj) || !isValid(obj):
		s.answer.Skipped++
	default:
		s.answer.absorb(obj, s.opts.Collect)
		if s.opts.Strip {
			s.strip(e, data)
			return
		}
	}
	s.pass(e)
}

// strip passes an event on without the token ids in its data.
func (s *Stream) strip(e, data []byte) {
	cuts := tokenIDCuts(data)
	for i, c := range cuts {
		cuts[i] = span{s.inEvent(c.start), s.inEvent(c.end)}
	}
	s.out = without(s.out, e, cuts)
}

// inEvent is the offset in the event of an offset in its data. A cut over
// several lines takes their ends and field names with it.
func (s *Stream) inEvent(off int) int {
	i := sort.Search(len(s.lines), func(i int) bool { return off <= s.lines[i].joined+s.lines[i].length })
	return s.lines[i].event + off - s.lines[i].joined
}

// data is the data of an event: its lines of that field, joined with LF. It
// notes in lines where they stand.
func (s *Stream) data(e []byte) []byte {
	s.lines, s.joined = s.lines[:0], s.joined[:0]
	var data []byte
	for at := 0; at < len(e); {
		end := at + lineLength(e[at:])
		if value, ok := bytes.CutPrefix(e[at:end], []byte("data:")); ok {
			value = bytes.TrimPrefix(value, []byte(" "))
			data = s.addLine(data, value, end-len(value))
		}
		at = end + 1
	}
	return data
}

// addLine appends a line to the data. A single line is not copied.
func (s *Stream) addLine(data, line []byte, at int) []byte {
	if len(s.lines) == 0 {
		s.lines = append(s.lines, dataLine{event: at, length: len(line)})
		return line
	}
	if len(s.lines) == 1 {
		s.joined = append(s.joined, data...)
	}
	s.joined = append(s.joined, '\n')
	s.lines = append(s.lines, dataLine{joined: len(s.joined), event: at, length: len(line)})
	s.joined = append(s.joined, line...)
	return s.joined
}

// lineLength is the length of the first line, without its end.
func lineLength(b []byte) int {
	for i, c := range b {
		if c == '\n' || c == '\r' {
			return i
		}
	}
	return len(b)
}
