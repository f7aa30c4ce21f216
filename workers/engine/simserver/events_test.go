package simserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"

	"github.com/kvlane/kvlane/kvindex/enginewire"
)

// mirror rebuilds an engine's content from its sockets, as an agent does.
type mirror struct {
	t      *testing.T
	s      *Server
	sub    zmq4.Socket
	next   uint64 // number of the batch that is due
	live   uint64 // one more than the newest live number: what a replay overtook may still come
	blocks map[enginewire.Hash]contentBlock
	gaps   int
	lives  int // restarts seen
}

func newMirror(t *testing.T, s *Server) *mirror {
	t.Helper()
	m := &mirror{t: t, s: s, sub: zmq4.NewSub(t.Context(), quiet()), blocks: map[enginewire.Hash]contentBlock{}}
	t.Cleanup(func() { _ = m.sub.Close() })
	if err := m.sub.SetOption(zmq4.OptionSubscribe, s.Topic()); err != nil {
		t.Fatal(err)
	}
	if err := m.sub.Dial(s.EventsEndpoint()); err != nil {
		t.Fatal(err)
	}
	topics, ok := s.pub.pub.(zmq4.Topics)
	if !ok {
		t.Fatal("the PUB socket does not tell its topics")
	}
	until(t, "the subscription arrived", func() bool { return len(topics.Topics()) > 0 })
	return m
}

// read takes live batches until the one with the number last is in.
func (m *mirror) read(last uint64) {
	m.t.Helper()
	for {
		msg, err := m.sub.Recv()
		if err != nil {
			m.t.Fatal(err)
		}
		b, err := enginewire.ParseLive(msg.Frames)
		if err != nil || b.Topic != m.s.Topic() {
			m.t.Fatalf("message %q: %v", b.Topic, err)
		}
		if b.Seq < m.live {
			m.lives++
			m.next = 0
			clear(m.blocks)
		}
		m.live = b.Seq + 1
		if b.Seq > m.next {
			m.gaps++
			m.replay()
		}
		if b.Seq == m.next {
			m.apply(b)
		}
		if m.next > last {
			return
		}
	}
}

// replay asks for everything from the number that is due.
func (m *mirror) replay() {
	m.t.Helper()
	sock := zmq4.NewDealer(m.t.Context(), quiet())
	defer func() { _ = sock.Close() }()
	if err := sock.Dial(m.s.ReplayEndpoint()); err != nil {
		m.t.Fatal(err)
	}
	if err := sock.SendMulti(zmq4.NewMsgFrom(enginewire.ReplayRequest(m.next)...)); err != nil {
		m.t.Fatal(err)
	}
	for {
		msg, err := sock.Recv()
		if err != nil {
			m.t.Fatal(err)
		}
		want := 4
		if m.s.cfg.Form == enginewire.Array {
			want = 3
		}
		if len(msg.Frames) != want {
			m.t.Errorf("replay answer of %d frames, want %d", len(msg.Frames), want)
		}
		b, err := enginewire.ParseReplay(msg.Frames)
		if err != nil {
			m.t.Fatal(err)
		}
		if b.End {
			return
		}
		if b.Seq != m.next {
			m.t.Fatalf("replay gave %d, %d is due", b.Seq, m.next)
		}
		m.apply(b)
	}
}

func (m *mirror) apply(msg enginewire.Message) {
	m.t.Helper()
	b, err := enginewire.Decode(msg.Payload)
	if err != nil || len(b.Bad)+len(b.Skipped) > 0 || b.Rank == nil || *b.Rank != 0 || b.Time == 0 {
		m.t.Fatalf("batch %d: %+v, %v", msg.Seq, b, err)
	}
	m.next = msg.Seq + 1
	for _, e := range b.Events {
		switch e.Kind {
		case enginewire.Stored:
			m.store(e)
		case enginewire.Removed:
			for _, h := range e.Hashes {
				if _, ok := m.blocks[h]; !ok {
					m.t.Errorf("batch %d removes %s, which is not there", msg.Seq, h)
				}
				delete(m.blocks, h)
			}
		case enginewire.Cleared:
			clear(m.blocks)
		}
	}
}

func (m *mirror) store(e enginewire.Event) {
	m.t.Helper()
	parent := e.Parent
	for i, h := range e.Hashes {
		b := contentBlock{
			Hash: h.String(), Tokens: e.BlockSize, IDs: e.Tokens[i*e.BlockSize : (i+1)*e.BlockSize], LoRA: e.LoRA, Salt: e.Salt,
		}
		if parent != nil {
			p, ok := m.blocks[*parent]
			if !ok {
				m.t.Errorf("parent %s of %s is not there", parent, h)
			}
			b.Parent, b.Salt = parent.String(), p.Salt
		}
		m.blocks[h] = b
		parent = &h
	}
}

// readContent reads /sim/content.
func readContent(t *testing.T, s *Server) contentAnswer {
	t.Helper()
	_, body := call(t, s, http.MethodGet, "/sim/content?ids=1", "")
	var c contentAnswer
	if err := json.Unmarshal([]byte(body), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// check reads up to the engine's newest batch and compares.
func (m *mirror) check(what string) {
	m.t.Helper()
	c := readContent(m.t, m.s)
	if c.NextSeq > 0 && m.next != c.NextSeq {
		m.read(c.NextSeq - 1)
	}
	if len(c.Blocks) != c.CachedBlocks || len(m.blocks) != len(c.Blocks) {
		m.t.Errorf("%s: %d blocks by events, %d listed, %d in the core", what, len(m.blocks), len(c.Blocks), c.CachedBlocks)
	}
	for _, want := range c.Blocks {
		found := false
		for _, got := range m.blocks {
			found = found || reflect.DeepEqual(got, want)
		}
		if !found {
			m.t.Errorf("%s: block %+v is not in the mirror", what, want)
		}
	}
}

// load sends requests that share prefixes and overflow the cache.
func load(t *testing.T, s *Server, round int) {
	t.Helper()
	for i := range 12 {
		body := fmt.Sprintf(`{"prompt":"Round %d. %s And now story %d.","max_tokens":20,"ignore_eos":true%s}`,
			round, strings.Repeat("It was a dark and stormy night. ", 3+i%4), i, []string{"", `,"cache_salt":"a"`, `,"model":"fast"`}[i%3])
		post(t, s, "/v1/completions", body)
	}
}

// TestEvents follows an engine through evictions, lost batches, a cleared cache
// and a restart, in both forms.
func TestEvents(t *testing.T) {
	for _, form := range []enginewire.Form{enginewire.Map, enginewire.Array} {
		t.Run(form.String(), func(t *testing.T) {
			s := start(t, func(c *Config) {
				c.Events, c.Replay, c.Form = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0", form
				c.Blocks, c.MaxModelLen = 48, 512
			})
			post(t, s, "/v1/load_lora_adapter", `{"lora_name":"fast","lora_path":"/a"}`)
			load(t, s, 0) // before anyone listens
			m := newMirror(t, s)
			load(t, s, 1)
			m.check("late subscriber")
			if m.gaps != 1 {
				t.Errorf("%d gaps, want the one before the subscription", m.gaps)
			}
			load(t, s, 2)
			m.check("evictions")

			setFault(t, s, `{"kind":"drop-events","count":5}`)
			load(t, s, 3)
			m.check("after lost batches")
			if m.gaps != 2 {
				t.Errorf("%d gaps, want 2", m.gaps)
			}
			post(t, s, "/reset_prefix_cache", "")
			m.check("cleared")
			load(t, s, 4)
			m.check("filled again")

			setFault(t, s, `{"kind":"restart"}`)
			load(t, s, 5)
			m.check("after a restart")
			if m.lives != 1 || m.gaps != 2 {
				t.Errorf("%d restarts and %d gaps seen, want 1 and 2", m.lives, m.gaps)
			}
			if c := readContent(t, s); c.Life != 1 {
				t.Errorf("life %d, want 1", c.Life)
			}
		})
	}
}

// TestForget checks that batches can be lost for good.
func TestForget(t *testing.T) {
	p := newPublisher(enginewire.Map, 16)
	p.publish(nil)
	p.lose(2, true)
	for range 4 {
		p.publish(nil)
	}
	var got []uint64
	_, batches := p.since(0)
	for _, b := range batches {
		got = append(got, b.seq)
	}
	if fmt.Sprint(got) != "[0 3 4]" {
		t.Errorf("ring has %v, want 0, 3 and 4", got)
	}
}

// TestRing checks that the ring keeps the newest batches and no more.
func TestRing(t *testing.T) {
	p := newPublisher(enginewire.Map, 16)
	for range ringSize + 5 {
		p.publish(nil)
	}
	_, batches := p.since(0)
	if n := len(batches); n != ringSize || batches[0].seq != 5 || batches[n-1].seq != ringSize+4 {
		t.Errorf("%d batches, from %d to %d", n, batches[0].seq, batches[n-1].seq)
	}
	if _, batches = p.since(ringSize + 3); len(batches) != 2 {
		t.Errorf("%d batches since the last two", len(batches))
	}
}

// TestBadReplayRequest checks that a request that is none gets no answer and
// does not stop the ones after it.
func TestBadReplayRequest(t *testing.T) {
	s := start(t, func(c *Config) { c.Events, c.Replay = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0" })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sock := zmq4.NewDealer(ctx, quiet())
	defer func() { _ = sock.Close() }()
	if err := sock.Dial(s.ReplayEndpoint()); err != nil {
		t.Fatal(err)
	}
	for _, frames := range [][][]byte{{[]byte("x")}, {{}, []byte("short")}, enginewire.ReplayRequest(0)} {
		if err := sock.SendMulti(zmq4.NewMsgFrom(frames...)); err != nil {
			t.Fatal(err)
		}
	}
	msg, err := sock.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := enginewire.ParseReplay(msg.Frames); err != nil || !b.End {
		t.Errorf("answer %+v, %v; want the end mark", b, err)
	}
}

// TestReorder checks that a batch can arrive after the one that follows it.
func TestReorder(t *testing.T) {
	s := start(t, func(c *Config) { c.Events, c.Replay = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0" })
	m := newMirror(t, s)
	setFault(t, s, `{"kind":"reorder-events","count":2}`)
	for range 6 {
		s.pub.publish(nil)
	}
	setFault(t, s, `{"kind":"reorder-events","count":1}`)
	s.pub.publish(nil)
	setFault(t, s, `{"kind":"none"}`) // sends what waits for a successor
	for i, want := range []uint64{1, 0, 3, 2, 4, 5, 6} {
		msg, err := m.sub.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if b, err := enginewire.ParseLive(msg.Frames); err != nil || b.Seq != want {
			t.Errorf("message %d has number %d, want %d (%v)", i, b.Seq, want, err)
		}
	}
}
