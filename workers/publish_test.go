package workers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// writer is a publisher under test, without an engine.
type writer struct {
	*publisher
	unready atomic.Bool
	ended   chan error
	stop    context.CancelFunc
}

func startWriter(ctx context.Context, l kvindex.Log, term uint64) *writer {
	w := &writer{ended: make(chan error, 1)}
	w.publisher = newPublisher(l, "w", term, func() kvindex.Hello { return kvindex.Hello{Ready: !w.unready.Load(), LeaseMs: 5000} },
		newLoad(), NewMetrics(prometheus.NewRegistry()))
	ctx, w.stop = context.WithCancel(ctx)
	go func() { w.ended <- w.Run(ctx) }()
	return w
}

// sleep lets the virtual time of a synctest bubble pass.
func sleep(d time.Duration) { <-time.After(d) }

func device() kvindex.Owner { return kvindex.Owner{Worker: "w"} }

func stored(parent kvindex.BlockHash, hashes ...kvindex.BlockHash) kvindex.Record {
	return kvindex.Record{Owner: device(), Kind: kvindex.KindStored, Stored: &kvindex.Stored{Parent: parent, Hashes: hashes}}
}

// TestCadence: heartbeats, the pace of load reports, and a change of readiness.
func TestCadence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memlog.New(memlog.Options{})
		c := &recording{began: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go l.Tail(ctx, c.apply)
		w := startWriter(ctx, l, 1)
		w.put(ctx, update{epoch: 7})
		sleep(3100 * time.Millisecond)
		synctest.Wait()
		if h := c.count(kvindex.KindHello); h != 4 {
			t.Errorf("%d hellos in 3.1 s, want 4", h)
		}
		if n := c.count(kvindex.KindLoad); n < 7 || n > 8 {
			t.Errorf("%d loads in 3.1 quiet seconds, want one per 500 ms", n)
		}
		if n := c.count(kvindex.KindRemoved); n != 2 {
			t.Errorf("%d anchors, want one with each heartbeat that nothing numbered came before", n)
		}
		c.reset()
		for range 1000 { // a change each millisecond
			w.load.begin(time.Now(), "", 1, true).end(time.Now(), kvindex.Sample{})
			sleep(time.Millisecond)
		}
		if n := c.count(kvindex.KindLoad); n < 45 || n > 51 {
			t.Errorf("%d loads in a busy second, want about 50", n)
		}
		c.reset()
		w.unready.Store(true)
		w.announce()
		synctest.Wait()
		if !c.has(sent{time.Since(c.began), kvindex.KindHello, false}) {
			t.Errorf("no hello at once: %v", c.sent)
		}
		w.stop()
		if err := <-w.ended; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if last := c.sent[len(c.sent)-1]; last.kind != kvindex.KindBye {
			t.Errorf("last record %v, want bye", last)
		}
	})
}

// recording notes when which record arrived.
type recording struct {
	mu    sync.Mutex
	began time.Time
	sent  []sent
}

type sent struct {
	at    time.Duration
	kind  kvindex.Kind
	ready bool
}

func (c *recording) apply(rs []kvindex.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range rs {
		c.sent = append(c.sent, sent{time.Since(c.began), rs[i].Kind, rs[i].Kind == kvindex.KindHello && rs[i].Hello.Ready})
	}
	return nil
}

func (c *recording) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = nil
}

func (c *recording) count(k kvindex.Kind) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sent {
		if s.kind == k {
			n++
		}
	}
	return n
}

func (c *recording) has(want sent) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.sent, want)
}

// TestFenced: a writer whose name was taken over ends.
func TestFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memlog.New(memlog.Options{})
		old := startWriter(t.Context(), l, 1)
		old.put(t.Context(), update{epoch: 7})
		synctest.Wait()
		next := startWriter(t.Context(), l, 2)
		next.put(t.Context(), update{epoch: 8})
		err := <-old.ended
		if err == nil || !strings.Contains(err.Error(), `write as worker "w"`) {
			t.Errorf("the old writer ended with %v", err)
		}
		next.stop()
		if err := <-next.ended; err != nil {
			t.Error(err)
		}
	})
}

// TestLearnedBeforeTheEngine: a request that comes before the agent knows anything
// of its engine, under a name that another writer had before, teaches all the same.
func TestLearnedBeforeTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memlog.New(memlog.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := &recording{began: time.Now()}
		go l.Tail(ctx, c.apply)
		old := startWriter(t.Context(), l, 1)
		old.put(t.Context(), update{epoch: 7, records: []kvindex.Record{stored(0, 1, 2)}})
		synctest.Wait() // and it is killed: nobody says bye
		next := startWriter(t.Context(), l, 2)
		next.put(t.Context(), update{records: []kvindex.Record{next.learnedRecord(&kvindex.Learned{
			Seed: 1, Chunks: []kvindex.ChunkHash{5}, Bytes: 64, Tokens: 16, BlockSize: 16, Blocks: []kvindex.BlockHash{9},
		})}})
		sleep(2 * heartbeatEvery)
		next.put(t.Context(), update{epoch: 8})
		sleep(heartbeatEvery)
		synctest.Wait()
		if n := c.count(kvindex.KindLearned); n != 1 {
			t.Errorf("%d lessons in the log, want 1", n)
		}
		next.stop()
		if err := <-next.ended; err != nil {
			t.Error(err)
		}
		old.stop()
		<-old.ended // fenced or not, as it happens
	})
}

// TestLogFaults: whatever happens to the log in between, its readers end with
// what the worker holds. Random histories against a set; the seed is printed.
func TestLogFaults(t *testing.T) {
	for range 20 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testLogFaults(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func testLogFaults(t *testing.T, rng *rand.Rand) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	inner := memlog.New(memlog.Options{})
	l := newFaultyLog(inner)
	w := startWriter(ctx, l, 1)
	epoch := uint64(7)
	w.put(ctx, update{epoch: epoch})
	want := map[kvindex.BlockHash]bool{}
	var learned []*kvindex.Learned
	for i := range 400 {
		switch n := rng.IntN(100); {
		case n < 50:
			h := kvindex.BlockHash(rng.IntN(60) + 1)
			if !want[h] {
				want[h] = true
				w.put(ctx, update{records: []kvindex.Record{stored(h-1, h)}})
			}
		case n < 75:
			h := kvindex.BlockHash(rng.IntN(60) + 1)
			if want[h] {
				delete(want, h)
				w.put(ctx, update{records: []kvindex.Record{{Owner: device(), Kind: kvindex.KindRemoved, Removed: &kvindex.Removed{Hashes: []kvindex.BlockHash{h}}}}})
			}
		case n < 80:
			d := &kvindex.Learned{Seed: 1, Chunks: []kvindex.ChunkHash{kvindex.ChunkHash(i + 1)}, Bytes: 64, Tokens: 16, BlockSize: 16, Blocks: []kvindex.BlockHash{9}}
			learned = append(learned, d)
			w.put(ctx, update{records: []kvindex.Record{w.learnedRecord(d)}})
		case n < 82:
			epoch++
			clear(want)
			w.put(ctx, update{epoch: epoch})
		case n < 86:
			l.set(inner, errAway)
		case n < 92:
			l.set(inner, nil)
		case n < 94: // the log restarts empty
			inner = memlog.New(memlog.Options{})
			l.set(inner, nil)
		default:
			sleep(time.Duration(rng.IntN(700)) * time.Millisecond)
		}
	}
	l.set(inner, nil)
	sleep(3 * time.Second) // a heartbeat's anchor finds a log that lost its memory, a retry one that was away
	synctest.Wait()

	index, texts := kvindex.NewIndex(), kvindex.NewPrefixMap(1<<20)
	rctx, rcancel := context.WithCancel(ctx)
	go inner.Tail(rctx, func(rs []kvindex.Record) error {
		for i := range rs {
			if err := index.Apply(&rs[i]); err != nil {
				t.Errorf("reader refused %s: %v", rs[i].Kind, err)
			}
			if rs[i].Kind == kvindex.KindLearned {
				texts.Learn(rs[i].Learned)
			}
		}
		return nil
	})
	synctest.Wait()
	got := index.Blocks(device())
	var all []kvindex.BlockHash
	for h := range want {
		all = append(all, h)
	}
	slices.Sort(all)
	if !slices.Equal(got, all) {
		t.Errorf("readers have %v, want %v", got, all)
	}
	for _, d := range learned {
		if texts.Lookup(d.Chunks, nil).Chunks != 1 {
			t.Errorf("lesson %v is lost", d.Chunks)
		}
	}
	rcancel()
	w.stop()
	if err := <-w.ended; err != nil {
		t.Error(err)
	}
	if w.load.lost() != 0 {
		t.Error("reports were dropped")
	}
}

// TestMirrorSnapshot: any content comes back from its snapshot, parents first.
func TestMirrorSnapshot(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 1))
		m := newMirror()
		for i := 1; i < 2+rng.IntN(80); i++ {
			r := stored(kvindex.BlockHash(rng.IntN(i)), kvindex.BlockHash(i))
			r.Stored.Group = uint16(rng.IntN(2))
			for range 1 + rng.IntN(5)/4 {
				m.apply(&r)
			}
			if rng.IntN(4) == 0 {
				gone := kvindex.Record{Kind: kvindex.KindRemoved, Removed: &kvindex.Removed{Group: uint16(rng.IntN(2)), Hashes: []kvindex.BlockHash{kvindex.BlockHash(rng.IntN(i))}}}
				m.apply(&gone)
			}
		}
		again := newMirror()
		for s := range m.holds() {
			if m.holding(s.Group, s.Parent) && !again.holding(s.Group, s.Parent) {
				t.Fatalf("seed %d: block %d comes before its parent %d", seed, s.Hashes[0], s.Parent)
			}
			again.apply(&kvindex.Record{Kind: kvindex.KindStored, Stored: &s})
		}
		if got, want := listMirror(again), listMirror(m); got != want {
			t.Fatalf("seed %d: got %v, want %v", seed, got, want)
		}
	}
}

func (m *mirror) holding(group uint16, h kvindex.BlockHash) bool {
	return m.group(group).Copies(enginewire.IntHash(uint64(h)), kvindex.Device) > 0
}

// listMirror writes a mirror's blocks with parents and copies, in order.
func listMirror(m *mirror) string {
	var list []string
	for g := range m.groups {
		for _, l := range m.links(g) {
			list = append(list, fmt.Sprintf("%d/%03d after %d", g, l.hash, l.parent))
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// TestLargeSnapshot: the snapshot of a worker with more blocks than may wait for the
// log is sent all the same.
func TestLargeSnapshot(t *testing.T) {
	p := newPublisher(memlog.New(memlog.Options{}), "w", 1, nil, newLoad(), NewMetrics(prometheus.NewRegistry()))
	p.maxPending = 1 << 20
	p.absorb(update{rank: 0, epoch: 1})
	last := kvindex.BlockHash(1)
	for range p.maxPending/8/8192 + 2 {
		hashes := make([]kvindex.BlockHash, 8192)
		for i := range hashes {
			hashes[i] = last + 1
			last++
		}
		p.absorb(update{rank: 0, records: []kvindex.Record{stored(hashes[0]-1, hashes...)}})
	}
	p.resync()
	p.snapshot()
	p.absorb(update{rank: 0, records: []kvindex.Record{stored(last, last+1)}})
	if p.dirty || p.pendingBytes <= p.maxPending {
		t.Errorf("dirty %v, %d bytes wait: the snapshot was given up", p.dirty, p.pendingBytes)
	}
}

func TestLessonsAreBounded(t *testing.T) {
	s := newLessons(10 * learnedSize(&kvindex.Learned{Chunks: make([]kvindex.ChunkHash, 3)}))
	turn := func(conversation, n int) *kvindex.Learned {
		d := &kvindex.Learned{}
		for i := range n {
			d.Chunks = append(d.Chunks, kvindex.ChunkHash(conversation*1000+i))
		}
		return d
	}
	for c := range 100 {
		for n := range 4 {
			s.add(turn(c, n))
		}
	}
	all := s.all()
	if len(all) != 10 {
		t.Errorf("%d lessons kept, want 10", len(all))
	}
	for i, d := range all {
		if len(d.Chunks) != 3 || d.Chunks[0] != kvindex.ChunkHash((90+i)*1000) {
			t.Errorf("lesson %d: %v, want the last turn of a late conversation", i, d.Chunks)
		}
	}
	if len(s.order) > 2*len(s.last)+16 {
		t.Errorf("%d entries for %d lessons", len(s.order), len(s.last))
	}
}

// TestSequence plays scripts of batches: what is applied, in which order, and
// what is given up. Payloads are words.
func TestSequence(t *testing.T) {
	datadriven.Walk(t, "testdata/sequence", func(t *testing.T, path string) {
		var s sequence
		var pending *batch
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			switch d.Cmd {
			case "live":
				for _, b := range parseBatches(t, d) {
					v := s.see(b)
					fmt.Fprintf(&out, "%d: %s\n", b.seq, [...]string{"apply", "repeat", "late", "gap", "new life"}[v])
					switch v {
					case verdictApply:
						s.applied(b)
					case verdictNewLife:
						s.restart()
						if b.seq == 0 {
							s.applied(b)
							continue
						}
						pending = &b
					case verdictGap:
						pending = &b
					default: // nothing changes
					}
					if pending != nil {
						fmt.Fprintf(&out, "ask from %d\n", s.askFrom())
					}
				}
			case "replay":
				live := pending
				if d.HasArg("connect") {
					fmt.Fprintf(&out, "ask from %d\n", s.askFrom())
					live = nil
				}
				r := s.recover(parseBatches(t, d), live)
				if r.newLife {
					s.restart()
					return out.String() + "new life, ask from 0\n"
				}
				if r.doubt {
					out.WriteString("doubt\n")
					switch {
					case len(r.apply) > 0:
						s.skipTo(r.apply[0].seq)
					case live != nil:
						s.skipTo(live.seq)
					}
				}
				for _, b := range r.apply {
					fmt.Fprintf(&out, "%d: apply %s\n", b.seq, b.payload)
					s.applied(b)
				}
				if live != nil {
					fmt.Fprintf(&out, "%d: apply %s\n", live.seq, live.payload)
					s.applied(*live)
					pending = nil
				}
				fmt.Fprintf(&out, "next %d\n", s.next)
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			return out.String()
		})
	})
}

// parseBatches reads "3=word" from the input's lines.
func parseBatches(t *testing.T, d *datadriven.TestData) []batch {
	var out []batch
	for f := range strings.FieldsSeq(d.Input) {
		var b batch
		var word string
		if _, err := fmt.Sscanf(strings.Replace(f, "=", " ", 1), "%d %s", &b.seq, &word); err != nil {
			d.Fatalf(t, "%q: %v", f, err)
		}
		b.payload = []byte(word)
		out = append(out, b)
	}
	return out
}

// TestParts: a record of any length goes out in parts that say the same, each
// stored part behind the one before.
func TestParts(t *testing.T) {
	for _, n := range []int{0, 1, maxHashes, maxHashes + 1, 3*maxHashes + 5} {
		hashes := make([]kvindex.BlockHash, n)
		for i := range hashes {
			hashes[i] = kvindex.BlockHash(i + 1)
		}
		w := newPublisher(memlog.New(memlog.Options{}), "w", 1, nil, newLoad(), NewMetrics(prometheus.NewRegistry()))
		w.epochs[0] = 1
		w.dirty = false
		w.queue(kvindex.Record{Owner: kvindex.Owner{Worker: "w"}, Kind: kvindex.KindStored, Stored: &kvindex.Stored{Parent: 77, Hashes: hashes}})
		w.queue(kvindex.Record{Owner: kvindex.Owner{Worker: "w"}, Kind: kvindex.KindRemoved, Removed: &kvindex.Removed{Hashes: hashes}})
		var stored, removed []kvindex.BlockHash
		parent := kvindex.BlockHash(77)
		for i := range w.pending {
			r := &w.pending[i]
			if r.Seq != w.pending[0].Seq+uint64(i) {
				t.Fatalf("%d hashes: record %d has seq %d", n, i, r.Seq)
			}
			if r.Stored == nil {
				removed = append(removed, r.Removed.Hashes...)
				continue
			}
			if r.Stored.Parent != parent || len(r.Stored.Hashes) > maxHashes {
				t.Fatalf("%d hashes: a part of %d behind %d, want %d", n, len(r.Stored.Hashes), r.Stored.Parent, parent)
			}
			if stored = append(stored, r.Stored.Hashes...); len(stored) > 0 {
				parent = stored[len(stored)-1]
			}
		}
		if !slices.Equal(stored, hashes) || !slices.Equal(removed, hashes) {
			t.Errorf("%d hashes: %d stored, %d removed", n, len(stored), len(removed))
		}
	}
}
