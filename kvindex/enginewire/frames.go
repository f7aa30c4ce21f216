package enginewire

import (
	"encoding/binary"
	"fmt"
	"math"
)

// endSeq is the number that ends a replay: minus one.
const endSeq = math.MaxUint64

// Message is one batch as it travels.
type Message struct {
	Topic string // empty in a replay of an older engine
	Seq   uint64
	// Payload is for [Decode]; it is the frame's own memory.
	Payload []byte
	// End marks the last answer of a replay; it carries no batch.
	End bool
}

// ParseLive reads the frames of a PUB message: topic, number, payload.
func ParseLive(frames [][]byte) (Message, error) {
	if len(frames) != 3 {
		return Message{}, fmt.Errorf("read event message: %d frames, want 3", len(frames))
	}
	if len(frames[1]) != 8 {
		return Message{}, fmt.Errorf("read event message: a number of %d bytes, want 8", len(frames[1]))
	}
	return Message{Topic: string(frames[0]), Seq: binary.BigEndian.Uint64(frames[1]), Payload: frames[2]}, nil
}

// ParseReplay reads the frames of a replay's answer in either shape:
// [empty, topic, number, payload] of newer vLLM, [empty, number, payload] of
// older ones and of SGLang.
func ParseReplay(frames [][]byte) (Message, error) {
	var m Message
	var err error
	switch {
	case len(frames) == 4 && len(frames[0]) == 0:
		m, err = ParseLive(frames[1:])
	case len(frames) == 3 && len(frames[0]) == 0:
		m, err = ParseLive(frames)
	default:
		return m, fmt.Errorf("read replay answer: %d frames without the empty one", len(frames))
	}
	if err != nil {
		return m, fmt.Errorf("read replay answer: %w", err)
	}
	m.End = m.Seq == endSeq
	return m, nil
}

// ReplayRequest are the frames that ask an engine's ROUTER for every batch it
// still has from number start on, to be sent through a DEALER.
func ReplayRequest(start uint64) [][]byte {
	return [][]byte{{}, Seq(start)}
}

// ParseReplayRequest reads the frames of a request as a ROUTER receives them:
// identity, empty, number.
func ParseReplayRequest(frames [][]byte) (identity []byte, start uint64, err error) {
	if len(frames) != 3 || len(frames[1]) != 0 || len(frames[2]) != 8 {
		return nil, 0, fmt.Errorf("read replay request: %d frames, want identity, empty, 8 bytes", len(frames))
	}
	return frames[0], binary.BigEndian.Uint64(frames[2]), nil
}

// ReplayAnswer are the frames of one batch for a ROUTER, with the topic frame
// in the map form, as the engines of that age send it.
func ReplayAnswer(identity []byte, form Form, topic string, seq uint64, payload []byte) [][]byte {
	if form == Array {
		return [][]byte{identity, {}, Seq(seq), payload}
	}
	return [][]byte{identity, {}, []byte(topic), Seq(seq), payload}
}

// ReplayEnd are the frames that end a replay.
func ReplayEnd(identity []byte, form Form) [][]byte {
	return ReplayAnswer(identity, form, "", endSeq, nil)
}

// Seq is a sequence number on the wire: 8 bytes, big-endian.
func Seq(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
