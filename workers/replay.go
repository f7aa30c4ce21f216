package workers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"time"

	"github.com/go-zeromq/zmq4"
)

const (
	// maxReplayBatches and maxReplayBytes bound one answer. vLLM keeps 10,000
	// batches by default.
	maxReplayBatches = 1 << 17
	maxReplayBytes   = 256 << 20
	// replayEnd is the number of the last answer.
	replayEnd = math.MaxUint64
)

// errReplayTooLong refuses an answer over the limits.
var errReplayTooLong = errors.New("answer over the limit")

// fetchReplay asks an engine's replay socket for the batches from a number on. It
// uses a socket of its own: a DEALER does not survive its engine. What arrived
// before an error is returned with it.
func fetchReplay(ctx context.Context, endpoint string, from uint64, timeout time.Duration) ([]batch, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s := zmq4.NewDealer(ctx,
		zmq4.WithDialerMaxRetries(0), zmq4.WithDialerTimeout(dialTimeout), zmq4.WithTimeout(timeout),
		zmq4.WithLogger(log.New(io.Discard, "", 0)))
	defer func() { _ = s.Close() }() // nothing is left to lose
	if err := dial(ctx, s, endpoint); err != nil {
		return nil, fmt.Errorf("ask for replay: %w", err)
	}
	start := binary.BigEndian.AppendUint64(nil, from)
	if err := s.SendMulti(zmq4.NewMsgFrom([]byte{}, start)); err != nil {
		return nil, fmt.Errorf("ask for replay: %w", err)
	}
	var out []batch
	size := 0
	for {
		m, err := s.Recv()
		if err != nil {
			return out, fmt.Errorf("read replay: %w", err)
		}
		b, err := parseReplay(m.Frames)
		if err != nil {
			return out, fmt.Errorf("read replay: %w", err)
		}
		if b.seq == replayEnd {
			return out, nil
		}
		if len(b.payload) == 0 {
			continue // a number without its batch recovers nothing
		}
		size += len(b.payload)
		if len(out) == maxReplayBatches || size > maxReplayBytes {
			return out, fmt.Errorf("read replay: %w", errReplayTooLong)
		}
		out = append(out, b)
	}
}

// parseReplay reads an answer in either shape: [empty, topic, number, payload] as
// newer engines send it, [empty, number, payload] as older ones do. The empty
// frame may be missing.
func parseReplay(frames [][]byte) (batch, error) {
	if len(frames) > 0 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	if len(frames) == 3 {
		frames = frames[1:]
	}
	if len(frames) != 2 || len(frames[0]) != 8 {
		return batch{}, fmt.Errorf("answer of %d frames: want a number of 8 bytes and a payload", len(frames))
	}
	return batch{seq: binary.BigEndian.Uint64(frames[0]), payload: frames[1]}, nil
}
