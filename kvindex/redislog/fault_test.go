package redislog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/redistest"
	"github.com/kvlane/kvlane/kvindex"
)

// naiveAgent is a worker's agent as simple as it gets: it writes what happens at once, and
// after any error everything that it holds, before anything else. What it holds is
// the truth.
type naiveAgent struct {
	log    *Log
	owners []kvindex.Owner
	epoch  uint64
	term   uint64
	seq    map[kvindex.Owner]uint64
	held   map[kvindex.Owner][]kvindex.BlockHash
	next   kvindex.BlockHash
	resync bool
	errors int
}

func newNaiveAgent(l *Log, n int) *naiveAgent {
	w := kvindex.WorkerID(fmt.Sprintf("10.0.0.%d:8000", n))
	return &naiveAgent{
		log: l, epoch: 1, term: 1, next: kvindex.BlockHash(n) << 32,
		owners: []kvindex.Owner{{Worker: w}, {Worker: w, Rank: 1}, {Worker: w, Tier: kvindex.Host}},
		seq:    map[kvindex.Owner]uint64{}, held: map[kvindex.Owner][]kvindex.BlockHash{},
	}
}

func (a *naiveAgent) record(o kvindex.Owner, k kvindex.Kind) kvindex.Record {
	r := kvindex.Record{Owner: o, Epoch: a.epoch, Term: a.term, Kind: k}
	if k.Sequenced() {
		a.seq[o]++
		r.Seq = a.seq[o]
	}
	return r
}

// step lets something happen.
func (a *naiveAgent) step(rng *rand.Rand) []kvindex.Record {
	o := a.owners[rng.IntN(len(a.owners))]
	held := a.held[o]
	switch n := rng.IntN(100); {
	case n == 0: // a restart of the engine
		a.epoch++
		var out []kvindex.Record
		for _, o := range a.owners {
			a.held[o] = nil
			out = append(out, a.record(o, kvindex.KindCleared))
		}
		return out
	case n == 1: // a restart of the agent: it does not know what the old one wrote
		a.term++
		a.resync = true
		for _, o := range a.owners {
			a.seq[o] = a.term << 32
		}
		return nil
	case n < 5:
		a.held[o] = nil
		return []kvindex.Record{a.record(o, kvindex.KindCleared)}
	case n < 40 && len(held) > 10:
		k := 1 + rng.IntN(8)
		r := a.record(o, kvindex.KindRemoved)
		r.Removed = &kvindex.Removed{Hashes: slices.Clone(held[:k])}
		a.held[o] = slices.Clone(held[k:])
		return []kvindex.Record{r}
	}
	r := a.record(o, kvindex.KindStored)
	r.Stored = &kvindex.Stored{Parent: a.next}
	for range 1 + rng.IntN(16) {
		a.next++
		r.Stored.Hashes = append(r.Stored.Hashes, a.next)
	}
	a.held[o] = append(held, r.Stored.Hashes...)
	return []kvindex.Record{r}
}

// write appends records, or all there is if that is due.
func (a *naiveAgent) write(ctx context.Context, records []kvindex.Record) {
	batch := []kvindex.Record{a.record(a.owners[0], kvindex.KindHello)}
	batch[0].Hello = &kvindex.Hello{Address: string(a.owners[0].Worker), LeaseMs: 20000}
	if a.resync {
		records = a.content(true)
	} else if len(records) == 0 { // as agents do: finds a log that lost its memory
		r := a.record(a.owners[0], kvindex.KindRemoved)
		r.Removed = &kvindex.Removed{}
		records = []kvindex.Record{r}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err := a.log.Append(ctx, append(batch, records...))
	a.resync = err != nil
	if err != nil {
		a.errors++
	}
}

// content is what the owners hold, as a resync or as a checkpoint.
func (a *naiveAgent) content(numbered bool) []kvindex.Record {
	var out []kvindex.Record
	for _, o := range a.owners {
		head := kvindex.Record{Owner: o, Epoch: a.epoch, Term: a.term, Kind: kvindex.KindCleared, Seq: a.seq[o]}
		if numbered {
			head = a.record(o, kvindex.KindCleared)
		}
		if head.Seq == 0 {
			continue
		}
		out = append(out, head)
		for part := range slices.Chunk(a.held[o], 50) {
			r := kvindex.Record{Owner: o, Epoch: a.epoch, Term: a.term, Kind: kvindex.KindStored}
			if numbered {
				r = a.record(o, kvindex.KindStored)
			}
			r.Stored = &kvindex.Stored{Hashes: slices.Clone(part)}
			out = append(out, r)
		}
	}
	return out
}

func (a *naiveAgent) checkpoint(ctx context.Context) {
	if !a.resync {
		_ = a.log.Checkpoint(ctx, a.content(false)) // costs nothing but the asking again
	}
}

// agreed waits until the reader's index holds what the agents do. The agents go on
// with their heartbeats meanwhile, as they do when nothing happens.
func agreed(t *testing.T, agents []*naiveAgent, r *reader) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		wrong := ""
		for _, a := range agents {
			a.write(t.Context(), nil)
			for _, o := range a.owners {
				want := slices.Clone(a.held[o])
				slices.Sort(want)
				if got := r.index.Blocks(o); !slices.Equal(got, want) {
					wrong = fmt.Sprintf("%s: %d blocks of %d", o, len(got), len(want))
				}
			}
		}
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no agreement within %v: %s; reader %+v", patience, wrong, r.log.Status())
		}
		pauseFor(t, 50*time.Millisecond)
	}
}

func hasty(o *Options) { o.Timeout = 500 * time.Millisecond }

// TestReplicasAgree lets three agents live while Redis is killed, emptied, paused
// and cut off, with and without its file; after each fault both replicas and a
// fresh one come to hold what the agents hold.
func TestReplicasAgree(t *testing.T) {
	for _, aof := range []bool{false, true} {
		t.Run(fmt.Sprint("aof=", aof), func(t *testing.T) {
			s := redistest.Start(t, redistest.Options{AOF: aof})
			proxy := redistest.NewProxy(t, s.Addr)
			cut := redistest.NewProxy(t, s.Addr) // of one reader
			faults := map[string]func(){
				"kill":       func() { s.Restart() },
				"flush":      func() { s.FlushAll() },
				"pause":      func() { s.Pause(); pauseFor(t, time.Second); s.Continue() },
				"cut reader": func() { cut.Set(redistest.Refuse, 0); pauseFor(t, time.Second); cut.Set(redistest.Pass, 0) },
				"cut agents": func() { proxy.Set(redistest.CutAnswers, 0); pauseFor(t, time.Second/2); proxy.Set(redistest.Pass, 0) },
				"trim":       func() { trimAll(s) },
				"scripts":    func() { s.Do("script", "flush") },
			}
			runFaults(t, s.URL(), proxy.Addr, cut.Addr, faults)
		})
	}
}

// trimAll takes entries away that nobody may have read.
func trimAll(s *redistest.Server) {
	for i := range shards {
		s.Do("xtrim", newKeys("kvlane", "test").events(i), "maxlen", 0)
	}
}

func runFaults(t *testing.T, url, agentsAt, cutAt string, faults map[string]func()) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	var agents []*naiveAgent
	for n := range 3 {
		agents = append(agents, newNaiveAgent(open(t, "redis://"+agentsAt, hasty), n))
	}
	one, two := follow(t, open(t, url, hasty)), follow(t, open(t, "redis://"+cutAt, hasty))
	live := func(steps int) {
		for range steps {
			a := agents[rng.IntN(len(agents))]
			a.write(t.Context(), a.step(rng))
			if rng.IntN(40) == 0 {
				a.checkpoint(t.Context())
			}
		}
	}
	for name := range faults {
		live(150)
		done := make(chan struct{})
		go func() { defer close(done); faults[name]() }()
		for ended := false; !ended; {
			live(5)
			select {
			case <-done:
				ended = true
			case <-time.After(20 * time.Millisecond):
			}
		}
		live(20)
		agreed(t, agents, one)
		agreed(t, agents, two)
		fresh := follow(t, open(t, url, hasty))
		agreed(t, agents, fresh)
		fresh.stop()
		t.Logf("%s: one %+v", name, one.log.Status())
	}
}

// TestFailover lets the Sentinel make a replica the master that lacks the last
// records.
func TestFailover(t *testing.T) {
	g := redistest.StartGroup(t, redistest.Options{})
	a := newNaiveAgent(open(t, g.URL(), hasty), 0)
	agents := []*naiveAgent{a}
	one := follow(t, open(t, g.URL(), hasty))
	rng := rand.New(rand.NewPCG(1, 4))
	for range 100 {
		a.write(t.Context(), a.step(rng))
	}
	agreed(t, agents, one)
	g.Replica.Pause()
	for range 50 {
		a.write(t.Context(), a.step(rng))
	}
	agreed(t, agents, one)
	g.Master.Kill()
	g.Replica.Continue()
	g.AwaitMaster()
	agreed(t, agents, one)
	agreed(t, agents, follow(t, open(t, g.URL(), hasty)))
	if a.errors == 0 {
		t.Error("the agent met no error: the replica lacked nothing")
	}
}
