package simserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/kvlane/kvlane/kvindex/enginewire"
	"github.com/kvlane/kvlane/workers/engine/sim"
)

const (
	// ringSize is how many batches can be replayed; vLLM's buffer_steps.
	ringSize = 10_000
	// highWater bounds the batches that wait for subscribers, vLLM's hwm. Beyond
	// it batches are lost, as with any PUB socket.
	highWater = 100_000
)

// publisher numbers, sends and keeps batches of KV events. With no endpoint it
// still numbers and keeps them, so that nothing else depends on the setting.
type publisher struct {
	form      enginewire.Form
	blockSize int
	now       func() time.Time

	mu     sync.Mutex
	topic  string
	pub    zmq4.Socket // nil without an endpoint
	seq    uint64
	ring   [][]byte // payload of number n at n % ringSize; nil where forgotten
	drop   int      // batches not to send
	forget bool     // dropped batches are missing from the ring too
	swap   int      // batches to send after the next one
	late   *zmq4.Msg
}

func newPublisher(form enginewire.Form, blockSize int) *publisher {
	return &publisher{form: form, blockSize: blockSize, now: time.Now, ring: make([][]byte, 0, 64)}
}

// publish sends the events of one step as a batch.
func (p *publisher) publish(events []sim.Event) {
	rank := 0
	b := enginewire.Batch{Time: float64(p.now().UnixNano()) / 1e9, Rank: &rank, Events: make([]enginewire.Event, len(events))}
	for i := range events {
		b.Events[i] = wireEvent(&events[i], p.blockSize)
	}
	payload := enginewire.Encode(b, p.form)

	p.mu.Lock()
	defer p.mu.Unlock()
	seq := p.seq
	p.seq++
	kept := payload
	lost := p.drop > 0
	if lost {
		p.drop--
		if p.forget {
			kept = nil
		}
	}
	if len(p.ring) < ringSize {
		p.ring = append(p.ring, kept)
	} else {
		p.ring[seq%ringSize] = kept
	}
	if p.pub == nil || lost {
		return
	}
	msg := zmq4.NewMsgFrom([]byte(p.topic), enginewire.Seq(seq), payload)
	if p.swap > 0 && p.late == nil {
		p.swap--
		p.late = &msg
		return
	}
	p.send(msg)
	p.sendLate()
}

// send passes a batch to the socket. A PUB socket queues and drops; the only error
// it has is a closed socket, and the engine's goroutine ends before the socket does.
func (p *publisher) send(msg zmq4.Msg) { _ = p.pub.SendMulti(msg) }

func (p *publisher) sendLate() {
	if p.late != nil {
		p.send(*p.late)
		p.late = nil
	}
}

// wireEvent is the event as vLLM describes it.
func wireEvent(ev *sim.Event, blockSize int) enginewire.Event {
	hashes := make([]enginewire.Hash, len(ev.Blocks))
	for i, id := range ev.Blocks {
		hashes[i] = wireHash(id)
	}
	switch ev.Kind {
	case sim.Stored:
		e := enginewire.Event{
			Kind: enginewire.Stored, Hashes: hashes, Tokens: ev.Tokens, BlockSize: blockSize, LoRA: ev.LoRA, Salt: ev.Salt,
		}
		if ev.HasParent {
			parent := wireHash(ev.Parent)
			e.Parent = &parent
		}
		return e
	case sim.Removed:
		return enginewire.Event{Kind: enginewire.Removed, Hashes: hashes}
	default:
		return enginewire.Event{Kind: enginewire.Cleared}
	}
}

// restart begins a new life: numbers start at 0, nothing can be replayed.
func (p *publisher) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seq, p.drop, p.ring, p.swap, p.late = 0, 0, p.ring[:0], 0, nil
}

// next is the number that the next batch will have.
func (p *publisher) next() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seq
}

// lose makes the next n batches numbered and not sent.
func (p *publisher) lose(n int, forget bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop, p.forget = n, forget
}

// reorder makes each of the next n batches that can be sent follow its successor;
// with 0 what is held back is sent.
func (p *publisher) reorder(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swap = n
	if n == 0 {
		p.sendLate()
	}
}

// numbered is a batch of the ring.
type numbered struct {
	seq     uint64
	payload []byte
}

// since lists what the ring holds from a number on.
func (p *publisher) since(start uint64) (topic string, out []numbered) {
	p.mu.Lock()
	defer p.mu.Unlock()
	oldest := p.seq - uint64(len(p.ring))
	for n := max(start, oldest); n < p.seq; n++ {
		if b := p.ring[n%ringSize]; b != nil {
			out = append(out, numbered{n, b})
		}
	}
	return p.topic, out
}

// open binds the PUB socket and names the topic.
func (p *publisher) open(ctx context.Context, endpoint, topic string) (zmq4.Socket, error) {
	sock, err := bind(zmq4.NewPub(ctx, quiet()), endpoint)
	if err != nil {
		return nil, err
	}
	if err := sock.SetOption(zmq4.OptionHWM, highWater); err != nil {
		return nil, fmt.Errorf("bound the event queue: %w", errors.Join(err, sock.Close()))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.topic, p.pub = topic, sock
	return sock, nil
}

// serveReplay answers requests for lost batches until the socket is closed.
func (p *publisher) serveReplay(ctx context.Context, sock zmq4.Socket) error {
	for {
		msg, err := sock.Recv()
		if err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // closed because the engine ends
			}
			return fmt.Errorf("receive replay request: %w", err)
		}
		id, start, err := enginewire.ParseReplayRequest(msg.Frames)
		if err != nil {
			continue // not a request; vLLM ignores it too
		}
		topic, batches := p.since(start)
		for _, b := range batches {
			// A client that went away takes its answer with it.
			_ = sock.SendMulti(zmq4.NewMsgFrom(enginewire.ReplayAnswer(id, p.form, topic, b.seq, b.payload)...))
		}
		_ = sock.SendMulti(zmq4.NewMsgFrom(enginewire.ReplayEnd(id, p.form)...))
	}
}

// quiet keeps the library from writing to stderr about peers that connect
// without speaking ZMTP.
func quiet() zmq4.Option { return zmq4.WithLogger(log.New(io.Discard, "", 0)) }

// bind listens on the endpoint and closes the socket if that does not work.
func bind(sock zmq4.Socket, endpoint string) (zmq4.Socket, error) {
	if err := sock.Listen(strings.Replace(endpoint, "//*:", "//0.0.0.0:", 1)); err != nil {
		return nil, fmt.Errorf("bind %s: %w", endpoint, errors.Join(err, sock.Close()))
	}
	return sock, nil
}
