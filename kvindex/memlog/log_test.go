package memlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog/logpb"
)

// serve runs a gRPC server for l until the test ends and returns a client.
func serve(t *testing.T, l *Log) *Client {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	srv := grpc.NewServer()
	Register(srv, l)
	var done sync.WaitGroup
	done.Go(func() {
		if err := srv.Serve(lis); err != nil {
			t.Error(err)
		}
	})
	c, err := Dial("passthrough:///log", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return lis.DialContext(ctx)
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		srv.Stop()
		done.Wait()
	})
	return c
}

// held counts the copies of each block: the naive model of an owner.
type held map[kvindex.BlockHash]int

func (h held) blocks() []kvindex.BlockHash {
	var list []kvindex.BlockHash
	for b, n := range h {
		if n > 0 {
			list = append(list, b)
		}
	}
	slices.Sort(list)
	return list
}

// agent writes a random history of one owner, restarts and lost batches
// included, the way the contract of kvindex.Log asks for.
type agent struct {
	log   kvindex.Log
	rng   *rand.Rand
	owner kvindex.Owner
	epoch uint64
	term  uint64
	seq   uint64
	held  held
}

func (a *agent) record(k kvindex.Kind) kvindex.Record {
	r := kvindex.Record{Owner: a.owner, Epoch: a.epoch, Term: a.term, Kind: k}
	if k.Sequenced() {
		a.seq++
		r.Seq = a.seq
	}
	return r
}

// event makes one record and applies it to the model.
func (a *agent) event() kvindex.Record {
	var hashes []kvindex.BlockHash
	for b, n := a.rng.IntN(200), 1+a.rng.IntN(10); n > 0; n-- {
		hashes = append(hashes, kvindex.BlockHash(b+n))
	}
	switch p := a.rng.IntN(100); {
	case p < 2:
		a.held = held{}
		return a.record(kvindex.KindCleared)
	case p < 5:
		r := a.record(kvindex.KindLearned)
		r.Learned = &kvindex.Learned{Chunks: []kvindex.ChunkHash{kvindex.ChunkHash(a.seq)}, BlockSize: 16, Bytes: 64}
		return r
	case p < 60:
		for _, b := range hashes {
			a.held[b]++
		}
		r := a.record(kvindex.KindStored)
		r.Stored = &kvindex.Stored{Parent: hashes[0] + 1, Hashes: hashes}
		return r
	default:
		for _, b := range hashes {
			a.held[b] = max(0, a.held[b]-1)
		}
		r := a.record(kvindex.KindRemoved)
		r.Removed = &kvindex.Removed{Hashes: hashes}
		return r
	}
}

// snapshot is a Cleared and all that the owner holds.
func (a *agent) snapshot() []kvindex.Record {
	out := []kvindex.Record{a.record(kvindex.KindCleared)}
	for b, n := range a.held {
		for range n {
			r := a.record(kvindex.KindStored)
			r.Stored = &kvindex.Stored{Hashes: []kvindex.BlockHash{b}}
			out = append(out, r)
		}
	}
	return out
}

// run writes n batches and then a Hello that says it was the last.
func (a *agent) run(ctx context.Context, n int) error {
	for range n {
		switch a.rng.IntN(100) {
		case 0:
			a.epoch++
			a.seq, a.held = 0, held{}
		case 1: // restarted: it knows what the engine holds, not the numbering
			a.term++
			a.seq = uint64(a.rng.IntN(5))
		}
		var batch []kvindex.Record
		for range 1 + a.rng.IntN(8) {
			batch = append(batch, a.event())
		}
		if a.rng.IntN(50) == 0 {
			continue // lost on the way
		}
		err := a.log.Append(ctx, batch)
		var gap *kvindex.GapError
		for errors.As(err, &gap) {
			err = a.log.Append(ctx, a.snapshot())
		}
		if err != nil {
			return err
		}
	}
	if err := a.log.Append(ctx, a.snapshot()); err != nil {
		return err
	}
	last := a.record(kvindex.KindHello)
	last.Hello = &kvindex.Hello{Deployment: "last"}
	return a.log.Append(ctx, []kvindex.Record{last})
}

var errRestart, errDone = errors.New("restart"), errors.New("done")

// read tails into an index until all workers have said their last Hello,
// breaking off at random and going on with the same index or a new one.
func read(ctx context.Context, log kvindex.Log, rng *rand.Rand, workers int) (*kvindex.Index, error) {
	x := kvindex.NewIndex()
	for {
		ended := map[kvindex.WorkerID]bool{}
		left := 1 + rng.IntN(200)
		if rng.IntN(4) == 0 {
			x = kvindex.NewIndex()
		}
		err := log.Tail(ctx, func(batch []kvindex.Record) error {
			for i := range batch {
				if err := x.Apply(&batch[i]); err != nil {
					return err
				}
				if h := batch[i].Hello; h != nil && h.Deployment == "last" {
					ended[batch[i].Owner.Worker] = true
				}
			}
			if len(ended) == workers {
				return errDone
			}
			left--
			if left == 0 {
				return errRestart
			}
			return nil
		})
		if errors.Is(err, errDone) {
			return x, nil
		}
		if !errors.Is(err, errRestart) && !errors.Is(err, ErrBehind) && status.Code(errors.Unwrap(err)) != codes.ResourceExhausted {
			return nil, err
		}
	}
}

// Concurrent writers, readers that break off, small buffers: in the end every
// index holds what the writers say.
func TestLogConcurrent(t *testing.T) {
	const workers, readers, batches = 4, 4, 400
	for _, test := range []struct {
		name   string
		remote bool
		opts   Options
	}{
		{"in process", false, Options{}},
		{"in process, small buffers", false, Options{TailBytes: 20_000}},
		{"gRPC", true, Options{}},
		{"gRPC, small buffers", true, Options{TailBytes: 20_000}},
	} {
		t.Run(test.name, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			l := New(test.opts)
			var log kvindex.Log = l
			if test.remote {
				log = serve(t, l)
			}
			agents := make([]*agent, workers)
			indexes := make([]*kvindex.Index, readers)
			var wg sync.WaitGroup
			for i := range readers {
				wg.Go(func() {
					x, err := read(t.Context(), log, rand.New(rand.NewPCG(seed, uint64(100+i))), workers)
					if err != nil {
						t.Error(err)
					}
					indexes[i] = x
				})
			}
			for i := range agents {
				agents[i] = &agent{
					log: log, rng: rand.New(rand.NewPCG(seed, uint64(i))), epoch: 1, term: 1, held: held{},
					owner: kvindex.Owner{Worker: kvindex.WorkerID(fmt.Sprintf("w%d", i)), Tier: kvindex.Tier(i % 3)},
				}
				wg.Go(func() {
					if err := agents[i].run(t.Context(), batches); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for i, x := range indexes {
				for _, a := range agents {
					if got, want := x.Blocks(a.owner), a.held.blocks(); !slices.Equal(got, want) {
						t.Errorf("reader %d, %s: got %v, want %v", i, a.owner, got, want)
					}
				}
			}
			t.Logf("%+v", l.Stats())
		})
	}
}

// stored is one Stored of w0.
func stored(seq uint64, hashes ...kvindex.BlockHash) kvindex.Record {
	return kvindex.Record{
		Owner: kvindex.Owner{Worker: "w0", Rank: 3, Tier: kvindex.Disk}, Epoch: 1, Term: 5, Seq: seq,
		Kind: kvindex.KindStored, Stored: &kvindex.Stored{Hashes: hashes},
	}
}

// Errors that a caller decides on arrive as they left.
func TestErrorsOverTheWire(t *testing.T) {
	l := New(Options{})
	c := serve(t, l)
	ctx := t.Context()
	if got := c.LogID(); got != 0 {
		t.Errorf("id before the first answer: got %d, want 0", got)
	}
	err := c.Append(ctx, []kvindex.Record{stored(1, 1), stored(2, 2), stored(7, 3)})
	var gap *kvindex.GapError
	want := kvindex.GapError{Owner: stored(1).Owner, Want: 3, Got: 7}
	if !errors.As(err, &gap) || *gap != want {
		t.Errorf("gap: got %v, want %v", err, &want)
	}
	if c.LogID() != l.ID() {
		t.Errorf("id: got %d, want %d", c.LogID(), l.ID())
	}
	stale := stored(3, 3)
	stale.Term = 4
	if err := c.Append(ctx, []kvindex.Record{stale}); !errors.Is(err, kvindex.ErrFenced) {
		t.Errorf("stale: got %v, want %v", err, kvindex.ErrFenced)
	}
	bad := stored(3, 3)
	bad.Owner.Worker = ""
	if err := c.Append(ctx, []kvindex.Record{bad}); status.Code(errors.Unwrap(err)) != codes.InvalidArgument {
		t.Errorf("malformed: got %v, want %v", err, codes.InvalidArgument)
	}
	_, err = c.log.Append(ctx, &logpb.AppendRequest{Records: [][]byte{{1, 2}}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("no record: got %v, want %v", err, codes.InvalidArgument)
	}
	s := l.Stats()
	if s.Records != 2 || s.Gaps != 1 || s.Fenced != 1 || s.Malformed != 1 {
		t.Errorf("stats: got %+v", s)
	}
}

// Records too large for one message travel in several; one beyond the limit is
// refused.
func TestLargeRecords(t *testing.T) {
	l := New(Options{})
	c := serve(t, l)
	var batch []kvindex.Record
	for i := range 10 {
		r := stored(uint64(i + 1))
		for b := range 50_000 {
			r.Stored.Hashes = append(r.Stored.Hashes, kvindex.BlockHash(i*50_000+b))
		}
		batch = append(batch, r)
	}
	if err := c.Append(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	x := kvindex.NewIndex()
	err := c.Tail(t.Context(), func(records []kvindex.Record) error {
		for i := range records {
			if err := x.Apply(&records[i]); err != nil {
				return err
			}
		}
		if x.Stats().Blocks == 500_000 {
			return errDone
		}
		return nil
	})
	if !errors.Is(err, errDone) {
		t.Error(err)
	}
	huge := stored(11, make([]kvindex.BlockHash, MaxRecordBytes/8)...)
	if err := l.Append(t.Context(), []kvindex.Record{huge}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v, want %v", err, ErrTooLarge)
	}
}

// A tail that does not keep up is cut, and the log keeps no more for it.
func TestSlowTail(t *testing.T) {
	l := New(Options{TailBytes: 1000})
	hello := kvindex.Record{Owner: kvindex.Owner{Worker: "w0"}, Kind: kvindex.KindHello, Hello: &kvindex.Hello{}}
	if err := l.Append(t.Context(), []kvindex.Record{hello}); err != nil {
		t.Fatal(err)
	}
	err := l.Tail(t.Context(), func([]kvindex.Record) error {
		for seq := range uint64(20) { // while the reader is busy
			if err := l.Append(t.Context(), []kvindex.Record{stored(seq+1, 1)}); err != nil {
				return err
			}
		}
		return nil
	})
	if !errors.Is(err, ErrBehind) {
		t.Errorf("got %v, want %v", err, ErrBehind)
	}
	if s := l.Stats(); s.TailsCut != 1 || s.Tails != 0 {
		t.Errorf("stats: got %+v, want 1 tail cut and none left", s)
	}
}

// A log without a sign of life is given up; one with beats is not.
func TestSilentLog(t *testing.T) {
	silent := serve(t, New(Options{Beat: time.Hour}))
	silent.silence = 20 * time.Millisecond
	err := silent.Tail(t.Context(), func([]kvindex.Record) error { return nil })
	if !errors.Is(err, errSilent) {
		t.Errorf("got %v, want %v", err, errSilent)
	}

	l := New(Options{Beat: time.Millisecond})
	alive := serve(t, l)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	alive.silence = 10 * time.Second
	if err := alive.Tail(ctx, func([]kvindex.Record) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
}

// The log's end is the tail's end, in process and over the wire.
func TestTailEnds(t *testing.T) {
	l := New(Options{})
	if err := l.Append(t.Context(), []kvindex.Record{stored(1, 1)}); err != nil {
		t.Fatal(err)
	}
	for name, log := range map[string]kvindex.Log{"log": l, "client": serve(t, l)} {
		ctx, cancel := context.WithCancel(t.Context())
		err := log.Tail(ctx, func([]kvindex.Record) error {
			cancel()
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want %v", name, err, context.Canceled)
		}
		cancel()
	}
}

// Snapshots of many workers come in pages, whole.
func TestSnapshotPages(t *testing.T) {
	l := New(Options{})
	c := serve(t, l)
	for i := range 30 {
		r := stored(1)
		r.Owner.Worker = kvindex.WorkerID(fmt.Sprintf("w%02d", i))
		for b := range 10_000 {
			r.Stored.Hashes = append(r.Stored.Hashes, kvindex.BlockHash(b))
		}
		if err := c.Append(t.Context(), []kvindex.Record{r}); err != nil {
			t.Fatal(err)
		}
	}
	for _, worker := range []kvindex.WorkerID{"", "w07", "nobody"} {
		got, err := c.Snapshot(t.Context(), worker)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := showAll(got), showAll(l.Snapshot(worker)); got != want {
			t.Errorf("worker %q: got %d bytes of records, want %d", worker, len(got), len(want))
		}
	}
	if page, next := l.page("w03"); next == "" || page[0].Owner.Worker != "w04" {
		t.Errorf("page behind w03: begins with %s, ends with %q", page[0].Owner, next)
	}
}

func showAll(records []kvindex.Record) string {
	var b strings.Builder
	for i := range records {
		b.WriteString(show(&records[i]))
	}
	return b.String()
}

func TestDial(t *testing.T) {
	if _, err := Dial("bad\x00scheme://"); err == nil {
		t.Error("got no error for a bad target")
	}
}

// A client asks for a log that is away about once a second, however long it has
// been away.
func TestReconnectsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var dials []time.Time
		c, err := Dial("passthrough:///log", grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			dials = append(dials, time.Now())
			return nil, errors.New("refused")
		}))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); <-time.After(time.Second / 4) {
			if err := c.Append(t.Context(), []kvindex.Record{stored(1, 1)}); err == nil {
				t.Fatal("wrote to a log that is away")
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if pause := time.Since(dials[len(dials)-1]); pause > 2*reconnectMost {
			t.Errorf("after 5 minutes the last of %d attempts is %v ago", len(dials), pause)
		}
	})
}
