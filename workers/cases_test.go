package workers

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/internal/redistest"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
	"github.com/kvlane/kvlane/kvindex/redislog"
)

// publisherSocket is a fake engine's ZMQ side for one rank: PUB and, while on,
// a replay ROUTER.
type publisherSocket struct {
	t              *testing.T
	events, replay string
	topics         bool // answers carry the topic frame

	pub    zmq4.Socket
	stop   context.CancelFunc
	router *router
}

// freeEndpoint is a ZMQ endpoint where nobody listens yet.
func freeEndpoint(t *testing.T) string { return "tcp://" + porttest.Address(t) }

func newPublisherSocket(t *testing.T, topics bool) *publisherSocket {
	p := &publisherSocket{t: t, events: freeEndpoint(t), replay: freeEndpoint(t), topics: topics}
	p.open()
	p.router = newRouter(t, p.replay, topics)
	t.Cleanup(func() { p.stop(); p.pub.Close(); p.router.close() })
	return p
}

func quiet() zmq4.Option { return zmq4.WithLogger(log.New(io.Discard, "", 0)) }

func (p *publisherSocket) open() {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p.pub, p.stop = zmq4.NewPub(ctx, quiet()), cancel
	if err := p.pub.Listen(p.events); err != nil {
		p.t.Fatal(err)
	}
}

// restart closes the publisher and opens it on the same address.
func (p *publisherSocket) restart() {
	p.stop()
	p.pub.Close()
	p.open()
}

// awaitSubscriber waits until the agent's subscription has arrived. The library
// tells nobody, so it is asked.
func (p *publisherSocket) awaitSubscriber() {
	p.t.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for len(p.pub.(zmq4.Topics).Topics()) == 0 {
		select {
		case <-deadline:
			p.t.Fatal("nobody subscribed")
		case <-ticker.C:
		}
	}
}

func (p *publisherSocket) send(seq uint64, payload []byte, frames ...[]byte) {
	p.t.Helper()
	if frames == nil {
		frames = [][]byte{[]byte("kv@127.0.0.1@base"), binary.BigEndian.AppendUint64(nil, seq), payload}
	}
	if err := p.pub.SendMulti(zmq4.NewMsgFrom(frames...)); err != nil {
		p.t.Fatal(err)
	}
}

// router answers replays.
type router struct {
	topics bool
	cancel context.CancelFunc
	socket zmq4.Socket
	done   chan struct{}
	asked  chan uint64

	mu      sync.Mutex
	batches []batch
	gate    chan struct{} // answers wait for it; nil for none
	mute    bool
}

func newRouter(t *testing.T, endpoint string, topics bool) *router {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &router{topics: topics, cancel: cancel, socket: zmq4.NewRouter(ctx, quiet()), done: make(chan struct{}), asked: make(chan uint64, 100)}
	if err := r.socket.Listen(endpoint); err != nil {
		t.Fatal(err)
	}
	go r.serve(ctx)
	return r
}

func (r *router) close() {
	r.cancel()
	r.socket.Close()
	<-r.done
}

func (r *router) set(batches []batch, gate chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.batches, r.gate = batches, gate
}

func (r *router) serve(ctx context.Context) {
	defer close(r.done)
	for {
		m, err := r.socket.Recv()
		if err != nil {
			return
		}
		if len(m.Frames) != 3 {
			continue
		}
		start := binary.BigEndian.Uint64(m.Frames[2])
		r.mu.Lock()
		batches, gate, mute := r.batches, r.gate, r.mute
		r.mu.Unlock()
		select {
		case r.asked <- start:
		default:
		}
		if mute {
			continue
		}
		if gate != nil {
			select {
			case <-gate:
			case <-ctx.Done():
				return
			}
		}
		for _, b := range append(append([]batch(nil), batches...), batch{seq: math.MaxUint64}) {
			if b.seq < start {
				continue
			}
			frames := [][]byte{m.Frames[0], {}}
			if r.topics || b.seq == math.MaxUint64 {
				frames = append(frames, []byte{})
			}
			frames = append(frames, binary.BigEndian.AppendUint64(nil, b.seq), b.payload)
			// The asker may close the moment it has the end, while the library still
			// writes nothing more; the next asker is served all the same.
			_ = r.socket.SendMulti(zmq4.NewMsgFrom(frames...))
		}
	}
}

// step is one line of an event script.
type step struct {
	Do      string
	From    string
	Seq     uint64
	Hex     string
	What    string
	Text    string
	Want    string
	Why     string
	Blocks  map[string]uint32
	Lost    string
	DelayMs int `json:"delay_ms"`
	Batches []struct {
		Seq uint64
		Hex string
	}
}

// stage plays a script: fake engines by name, each with an agent, one log, and one
// or several readers of it, each standing for a picker.
type stage struct {
	t       *testing.T
	topics  bool
	log     kvindex.Log // that agents write to
	watches []*watch
	agents  map[string]*running
	sockets map[string]*publisherSocket
	handled map[string]chan uint64
	gate    chan struct{}
	markers kvindex.ChunkHash
}

// logs is a kind of log and how many pickers read it.
type logs struct {
	name    string
	pickers int
	// open returns a log for the agents, and a function that opens one for a picker.
	open func(*testing.T) (kvindex.Log, func() kvindex.Log)
}

func embedded(*testing.T) (kvindex.Log, func() kvindex.Log) {
	l := memlog.New(memlog.Options{})
	return l, func() kvindex.Log { return l }
}

// setups are what every case is played on. Two pickers of a Redis have a connection
// each, and so have the agents.
func setups(t *testing.T) []logs {
	server := redistest.Start(t, redistest.Options{})
	var pools atomic.Int32
	inRedis := func(t *testing.T) (kvindex.Log, func() kvindex.Log) {
		pool := fmt.Sprintf("pool-%d", pools.Add(1))
		open := func() kvindex.Log {
			l, err := redislog.New(redislog.Options{URL: server.URL(), Pool: pool})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() }) // nothing is left to write
			return l
		}
		return open(), open
	}
	return []logs{{"one picker", 1, embedded}, {"two pickers", 2, embedded}, {"two pickers and Redis", 2, inRedis}}
}

func newStage(t *testing.T, l logs, topics bool) *stage {
	s := &stage{
		t: t, topics: topics, agents: map[string]*running{},
		sockets: map[string]*publisherSocket{}, handled: map[string]chan uint64{},
	}
	var reader func() kvindex.Log
	s.log, reader = l.open(t)
	for range l.pickers {
		s.watches = append(s.watches, newWatch(t, reader()))
	}
	return s
}

// await waits until every picker has seen it.
func (s *stage) await(what string, cond func([]kvindex.Record) bool) {
	s.t.Helper()
	for _, w := range s.watches {
		w.await(what, cond)
	}
}

// The cases C11 to C14 are scripts. They are played through real sockets, in both
// encodings and with both shapes of replay answers.

func TestC11EngineRestartsInPlace(t *testing.T) {
	t.Parallel()
	playAll(t, "C11-*.jsonl")
}

func TestC12LostRepeatedAndLateBatches(t *testing.T) {
	t.Parallel()
	playAll(t, "C12-*.jsonl")
}

func TestC13EverythingCleared(t *testing.T) {
	t.Parallel()
	playAll(t, "C13-*.jsonl")
}

func TestC14OneHashInSeveralForms(t *testing.T) {
	t.Parallel()
	playAll(t, "C14-*.jsonl")
}

// C16: a hit of one block counts, whatever characters the worker's name has.
func TestC16OneBlock(t *testing.T) {
	t.Parallel()
	playAll(t, "C16-*.jsonl")
}

func playAll(t *testing.T, pattern string) {
	t.Helper()
	files, err := filepath.Glob(casesDir + pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", pattern, len(files), err)
	}
	for _, l := range setups(t) {
		for _, f := range files {
			for _, topics := range []bool{true, false} {
				name := filepath.Base(f)
				if !topics && l.pickers > 1 || strings.Count(name, ".") != 2 { // the shape is the agent's affair; no script
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/topics=%v", l.name, strings.TrimSuffix(name, ".jsonl"), topics), func(t *testing.T) {
					t.Parallel()
					play(t, l, name, topics)
				})
			}
		}
	}
}

func play(t *testing.T, l logs, name string, topics bool) {
	steps := lines[step](t, name)[1:]
	s := newStage(t, l, topics)
	ranks := map[string]int{}
	for _, st := range steps {
		if worker, rank, _ := strings.Cut(st.From, "/"); worker != "" {
			ranks[worker] = max(ranks[worker], len(rank)) // "1" at most
		}
	}
	for worker, extra := range ranks {
		s.hire(worker, 1+extra)
	}
	for i, st := range steps {
		s.step(i, st)
	}
	gaps := 0.0
	for _, a := range s.agents {
		gaps += a.metric("kv_gaps_total")
	}
	switch {
	case strings.HasPrefix(name, "C12") && gaps == 0:
		t.Error("no gap was counted")
	case strings.HasPrefix(name, "C13") && gaps != 0:
		t.Errorf("%v gaps counted", gaps)
	}
	for _, w := range s.watches {
		if len(w.refused) > 0 {
			t.Errorf("the log's reader refused records: %v", w.refused)
		}
	}
}

// idOf is a worker's name in the log: w1 of the scripts has an IPv6 address, which
// is full of colons.
func idOf(worker string) kvindex.WorkerID {
	if worker == "w1" {
		return "[2001:db8::10]:8000"
	}
	return kvindex.WorkerID(worker)
}

// hire starts a worker with fake engines for its ranks.
func (s *stage) hire(worker string, ranks int) {
	var events, replay []string
	for r := range ranks {
		name := worker
		if r > 0 {
			name = fmt.Sprintf("%s/%d", worker, r)
		}
		p := newPublisherSocket(s.t, s.topics)
		s.sockets[name] = p
		s.handled[name] = make(chan uint64, 1000)
		events, replay = append(events, p.events), append(replay, p.replay)
	}
	e := newFakeEngine(s.t)
	a := startAgentWith(s.t, e.URL, s.log, func(c *Config) {
		c.WorkerID = idOf(worker)
		c.KVEvents, c.KVReplay = events, replay
		c.ReplayTimeout = patience
	}, func(a *Agent) {
		for i, f := range a.feeds {
			name := worker
			if i > 0 {
				name = fmt.Sprintf("%s/%d", worker, i)
			}
			f.handled = func(seq uint64) { s.handled[name] <- seq }
		}
	})
	s.agents[worker] = a
	for _, w := range s.watches {
		w.awaitReady(idOf(worker), true)
	}
	for name, p := range s.sockets {
		if name == worker || strings.HasPrefix(name, worker+"/") {
			p.awaitSubscriber()
		}
	}
}

func (s *stage) step(i int, st step) {
	s.t.Helper()
	p := s.sockets[st.From]
	switch st.Do {
	case "publish":
		send := func() { p.send(st.Seq, unhex(s.t, st.Hex)) }
		send()
		if s.gate == nil {
			s.settle(st.From, st.Seq, send)
		}
	case "ask":
		s.ask(i, st)
	case "restart":
		p.restart()
		p.awaitSubscriber()
	case "replay":
		var batches []batch
		for _, b := range st.Batches {
			batches = append(batches, batch{b.Seq, unhex(s.t, b.Hex)})
		}
		if st.DelayMs > 0 {
			s.gate = make(chan struct{})
		}
		for len(p.router.asked) > 0 {
			<-p.router.asked
		}
		p.router.set(batches, s.gate)
	case "no_replay":
		p.router.close()
	case "wait":
		if s.gate != nil { // a late answer: let it come now, after the live batch was seen
			<-s.sockets["w1"].router.asked
			close(s.gate)
			s.gate = nil
			s.settle("w1", 5, func() {})
		}
	default:
		s.t.Fatalf("step %d: do %q", i, st.Do)
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// resendAfter is how long a batch may take on a busy machine before it is taken
// for lost.
const resendAfter = 3 * time.Second

// settle waits until a live batch was handled and all that follows from it is in
// the index: a marker written behind it has arrived. A publisher may lose what it
// sends while a subscriber joins, so a batch that does not arrive is sent again; a
// repeat changes nothing.
func (s *stage) settle(from string, seq uint64, again func()) {
	s.t.Helper()
	resend := time.NewTicker(resendAfter)
	defer resend.Stop()
	for timeout := time.After(patience); ; {
		select {
		case got := <-s.handled[from]:
			if got != seq {
				continue
			}
		case <-resend.C:
			again()
			continue
		case <-timeout:
			s.t.Fatalf("%s did not handle batch %d", from, seq)
		}
		break
	}
	worker, _, _ := strings.Cut(from, "/")
	s.markers++
	marker, p := s.markers, s.agents[worker].publisher
	p.put(s.t.Context(), update{records: []kvindex.Record{p.learnedRecord(&kvindex.Learned{
		Seed: 1, Chunks: []kvindex.ChunkHash{marker}, Bytes: 64, BlockSize: 16,
	})}})
	s.await("marker", func(rs []kvindex.Record) bool {
		return has(rs, func(r *kvindex.Record) bool {
			return r.Kind == kvindex.KindLearned && r.Learned.Chunks[0] == marker
		})
	})
}

// ask compares the credit of every worker, with the prompt as ids, and who wins.
func (s *stage) ask(i int, st step) {
	s.t.Helper()
	root := kvindex.Namespace{Model: "base", BlockSize: 16}.Root()
	chain := kvindex.AppendChain(nil, root, tokensOf(st.Text), 16)
	for picker, w := range s.watches {
		got := map[string]uint32{}
		best, winner := uint32(0), kvindex.WorkerID("")
		for _, m := range w.index.Overlap(chain, nil) {
			name := string(m.Worker)
			if m.Rank > 0 {
				name = fmt.Sprintf("%s/%d", name, m.Rank)
			}
			d := m.Depth[kvindex.External]
			got[name] = d
			if d > best {
				best, winner = d, m.Worker
			}
		}
		for name, want := range st.Blocks {
			worker, rank, ranked := strings.Cut(name, "/")
			key := string(idOf(worker))
			if ranked {
				key += "/" + rank
			}
			if got[key] != want {
				s.t.Errorf("step %d (%s): picker %d: %s has %d blocks of %q, want %d", i, st.Why, picker, name, got[key], st.Text, want)
			}
		}
		if winner != idOf(st.Want) {
			s.t.Errorf("step %d (%s): picker %d: %q wins, want %q", i, st.Why, picker, winner, st.Want)
		}
	}
}

// TestC15EventEncodings sends every row as a batch of its own. A row is counted as
// the case says, gives the credit that it says, and harms no other.
func TestC15EventEncodings(t *testing.T) {
	t.Parallel()
	for _, l := range setups(t) {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			playRows(t, l)
		})
	}
}

func playRows(t *testing.T, l logs) {
	type row struct {
		Name, Hex string
		Want      struct{ Applied, Bad float64 }
		Ask       *struct {
			Text   string
			Blocks uint32
		}
	}
	s := newStage(t, l, true)
	s.hire("w1", 1)
	a := s.agents["w1"]
	// An event of a medium that is left out, or behind an unknown parent, was
	// understood all the same.
	counts := func() (applied, bad float64) {
		for _, label := range []string{"applied", "skipped", "unknown_parent"} {
			applied += a.metric("kv_events_total", label)
		}
		return applied, a.metric("kv_events_total", "bad") + a.metric("kv_batches_total", "bad")
	}
	rows := lines[row](t, "C15-forms.jsonl")
	if len(rows) != 70 {
		t.Fatalf("%d rows", len(rows))
	}
	for i, r := range rows {
		appliedBefore, badBefore := counts()
		s.step(i, step{Do: "publish", From: "w1", Seq: uint64(i), Hex: r.Hex})
		applied, bad := counts()
		if applied -= appliedBefore; applied != r.Want.Applied {
			t.Errorf("row %d, %s: %v events applied, want %v", i, r.Name, applied, r.Want.Applied)
		}
		if bad -= badBefore; bad != r.Want.Bad {
			t.Errorf("row %d, %s: %v events bad, want %v", i, r.Name, bad, r.Want.Bad)
		}
		if r.Ask == nil {
			continue
		}
		want := step{Text: r.Ask.Text, Blocks: map[string]uint32{"w1": r.Ask.Blocks}, Why: r.Name}
		if r.Ask.Blocks > 0 {
			want.Want = "w1"
		}
		s.ask(i, want)
	}
}

// TestForeignMessages: what is not a batch of this engine is counted and changes
// nothing.
func TestForeignMessages(t *testing.T) {
	s := newStage(t, logs{"", 1, embedded}, false)
	s.hire("w1", 1)
	var first, last step
	for _, st := range lines[step](t, "C11-restart.map.jsonl")[1:] {
		if st.Do == "publish" && st.From == "w1" && st.Seq == 0 && first.Do == "" {
			first = st
		}
		if st.Do == "publish" && st.From == "w1" && st.Seq == 1 {
			last = st
		}
	}
	p := s.sockets["w1"]
	s.step(0, first)
	p.send(0, nil, []byte("t"), []byte("short"))
	p.send(0, nil, []byte("kv@127.0.0.1@other"), binary.BigEndian.AppendUint64(nil, 0), []byte{0x93})
	p.send(0, nil, []byte("kv@127.0.0.1@base"), []byte{1}, []byte{0x93})
	s.step(1, last)
	a := s.agents["w1"]
	if f, tp := a.metric("kv_bad_messages_total", "frames"), a.metric("kv_bad_messages_total", "topic"); f != 2 || tp != 1 {
		t.Errorf("%v bad frames and %v foreign topics, want 2 and 1", f, tp)
	}
	p.send(2, []byte("not msgpack"))
	s.settle("w1", 2, func() {})
	if n := a.metric("kv_batches_total", "bad"); n != 1 {
		t.Errorf("%v bad batches, want 1", n)
	}
	if a.metric("engine_lives_total") != 0 {
		t.Error("taken for a new life")
	}
}

// TestAgentRestart: a new agent of a living engine rebuilds its content from the
// replay socket; nothing stays of what it does not rebuild.
func TestAgentRestart(t *testing.T) {
	l := memlog.New(memlog.Options{})
	w := newWatch(t, l)
	e, p := newFakeEngine(t), newPublisherSocket(t, true)
	var batches []batch
	for _, st := range lines[step](t, "C11-restart.map.jsonl")[1:] {
		if st.Do == "restart" {
			break
		}
		if st.Do == "publish" && st.From == "w1" {
			batches = append(batches, batch{st.Seq, unhex(t, st.Hex)})
		}
	}
	p.router.set(batches, nil)
	change := func(c *Config) {
		c.WorkerID, c.KVEvents, c.KVReplay = "w1", []string{p.events}, []string{p.replay}
	}
	blocks := func() int { return len(w.index.Blocks(kvindex.Owner{Worker: "w1"})) }
	for life := range 3 {
		fl := newFaultyLog(l)
		a := startAgent(t, e.URL, fl, change)
		w.await("the engine's blocks", func([]kvindex.Record) bool { return blocks() == 20 })
		if life == 1 { // killed: nobody says bye
			fl.set(l, errAway)
		}
		if err := a.stop(); err != nil {
			t.Fatal(err)
		}
		if life == 0 {
			w.await("bye", func([]kvindex.Record) bool { return blocks() == 0 })
		}
	}
	if len(w.refused) > 0 {
		t.Errorf("refused: %v", w.refused)
	}
}

func TestParseReplay(t *testing.T) {
	n := binary.BigEndian.AppendUint64(nil, 7)
	for name, frames := range map[string][][]byte{
		"new":             {{}, []byte("topic"), n, []byte("p")},
		"new, no topic":   {{}, {}, n, []byte("p")},
		"old":             {{}, n, []byte("p")},
		"old, not routed": {n, []byte("p")},
	} {
		b, err := parseReplay(frames)
		if err != nil || b.seq != 7 || string(b.payload) != "p" {
			t.Errorf("%s: %+v, %v", name, b, err)
		}
	}
	for _, frames := range [][][]byte{nil, {{}}, {{}, {}, {}, {}, {}}, {{}, {1}, {2}}} {
		if _, err := parseReplay(frames); err == nil {
			t.Errorf("%v: no error", frames)
		}
	}
}
