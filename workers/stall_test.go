package workers

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/kvlane/kvlane/internal/redistest"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
	"github.com/kvlane/kvlane/kvindex/redislog"
)

// busyEngine makes the events of an engine whose cache is full: prompts of 50 new
// blocks, then 50 decoded ones that come singly, and as many evictions of the oldest.
type busyEngine struct {
	room  int
	next  uint64   // name of the next block
	held  []uint64 // names, oldest first
	batch uint64
}

// step is one batch of n blocks that follow the last one, or begin a prompt.
func (b *busyEngine) step(n int, first bool) *events {
	stored := enginewire.Event{Kind: enginewire.Stored, BlockSize: 16}
	if !first {
		parent := enginewire.IntHash(b.next - 1)
		stored.Parent = &parent
	}
	for range n {
		stored.Hashes = append(stored.Hashes, enginewire.IntHash(b.next))
		for range stored.BlockSize {
			stored.Tokens = append(stored.Tokens, uint32(b.next))
		}
		b.held = append(b.held, b.next)
		b.next++
	}
	out := []enginewire.Event{stored}
	if over := len(b.held) - b.room; over > 0 {
		removed := enginewire.Event{Kind: enginewire.Removed}
		for _, name := range b.held[:over] {
			removed.Hashes = append(removed.Hashes, enginewire.IntHash(name))
		}
		b.held = b.held[over:]
		out = append(out, removed)
	}
	b.batch++
	return &events{batch: enginewire.Batch{Events: out}, seq: b.batch, model: "m", seen: func(*content, applied) {}}
}

// TestC17MemoryOfAStall: Redis accepts and does not answer while the engine makes as
// many blocks as in ten minutes of 8,000 new tokens a second, as fast as they can be
// taken. What waits for Redis never takes more than its bound. Then Redis answers
// again, and the reader's index is what the engine holds.
func TestC17MemoryOfAStall(t *testing.T) {
	const (
		blocks = 10 * 60 * 8000 / 16
		room   = 20_000
	)
	server := redistest.Start(t, redistest.Options{})
	proxy := redistest.NewProxy(t, server.Addr)
	open := func(addr string) *redislog.Log {
		l, err := redislog.New(redislog.Options{URL: "redis://" + addr})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() }) // nothing is left to write
		return l
	}
	w := newWatch(t, open(server.Addr))
	p := newPublisher(open(proxy.Addr), "w", 1, func() kvindex.Hello { return kvindex.Hello{Ready: true, LeaseMs: 600_000} },
		newLoad(), NewMetrics(prometheus.NewRegistry()))
	engine := &busyEngine{room: room, next: 1}
	// The test is the writer's goroutine, so it may look at what waits at any time.
	turn := func(u update) {
		t.Helper()
		p.absorb(u)
		select {
		case err := <-p.results:
			if err := p.landed(err); err != nil {
				t.Fatal(err)
			}
		default:
		}
		p.send(t.Context())
	}
	turn(update{epoch: 1})
	w.awaitReady("w", true)

	proxy.Set(redistest.Stall, 0)
	// A snapshot and what came while it was under way, and one Append that failed.
	worst, flight := 0, maxAppendRecords*int(unsafe.Sizeof(kvindex.Record{})+unsafe.Sizeof(kvindex.Stored{}))+8*maxAppendHashes
	for made := 0; made < blocks; {
		for i := range 51 {
			n := 1
			if i == 0 {
				n = 50
			}
			turn(update{events: engine.step(n, i == 0)})
			made += n
		}
		worst = max(worst, p.pendingBytes)
		if limit := p.whole + maxPendingBytes + flight; p.pendingBytes > limit || len(p.pending) > limit/int(unsafe.Sizeof(kvindex.Record{})) {
			t.Fatalf("after %d blocks %d bytes wait in %d records, want at most %d", made, p.pendingBytes, len(p.pending), limit)
		}
		if made%100_000 < 50 {
			sum := 0
			for i := range p.pending {
				sum += heap(&p.pending[i])
			}
			if sum != p.pendingBytes {
				t.Fatalf("after %d blocks %d bytes wait, counted %d", made, sum, p.pendingBytes)
			}
		}
	}
	overflows := counterOf(t, p.metrics.LogOverflow)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("%d blocks stored and evicted: at most %d bytes waited, given up %v times; heap %d MiB", blocks, worst, overflows, m.HeapAlloc>>20)
	if overflows == 0 {
		t.Error("nothing was given up: the stall was too short to show a bound")
	}

	proxy.Set(redistest.Pass, 0)
	var want []kvindex.BlockHash
	for s := range p.holds(device()) {
		want = append(want, s.Hashes...)
	}
	slices.Sort(want)
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { ended <- p.Run(ctx) }()
	back := time.Now()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for !slices.Equal(w.index.Blocks(device()), want) {
		<-look.C
		if time.Since(back) > 6*patience {
			t.Fatalf("%d blocks %v after the stall, want %d", w.index.Stats().Blocks, time.Since(back), len(want))
		}
	}
	t.Logf("%d blocks were right %v after the stall", len(want), time.Since(back).Round(time.Millisecond))
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(want) != room {
		t.Errorf("%d blocks, want %d", len(want), room)
	}
}

func counterOf(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}
