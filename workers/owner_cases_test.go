package workers

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/redistest"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
	"github.com/kvlane/kvlane/kvindex/redislog"
)

// pod is one life of a worker of case C16.
type pod struct{ Pod, Namespace, UID, Address string }

func (p pod) id() kvindex.WorkerID { return kvindex.WorkerID(p.Namespace + "/" + p.Pod) }

// owners is a Redis with agents that have connections of their own, and two
// pickers.
type owners struct {
	t       *testing.T
	server  *redistest.Server
	watches []*watch
}

// hired is a pod's agent with its engine's sockets.
type hired struct {
	*running

	pod    pod
	log    *faultyLog
	socket *publisherSocket
	chain  []kvindex.BlockHash // that it was told of
}

func (o *owners) open() *redislog.Log {
	l, err := redislog.New(redislog.Options{URL: o.server.URL()})
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { _ = l.Close() }) // nothing is left to write
	return l
}

// hire starts a pod's agent.
func (o *owners) hire(p pod) *hired {
	o.t.Helper()
	h := &hired{pod: p, log: newFaultyLog(o.open()), socket: newPublisherSocket(o.t, true)}
	h.running = startAgent(o.t, newFakeEngine(o.t).URL, h.log, func(c *Config) {
		c.WorkerID, c.Advertise, c.Lease = p.id(), p.Address, 3*heartbeatEvery
		c.KVEvents, c.KVReplay = []string{h.socket.events}, []string{h.socket.replay}
	})
	for _, w := range o.watches {
		w.awaitReady(p.id(), true)
	}
	h.socket.awaitSubscriber()
	return h
}

// warm lets the engine announce n blocks of a prompt of its own, and waits until
// both pickers credit them all.
func (o *owners) warm(h *hired, n int) {
	o.t.Helper()
	e := enginewire.Event{Kind: enginewire.Stored, BlockSize: 16}
	for i := range n {
		e.Hashes = append(e.Hashes, enginewire.IntHash(uint64(i+1)))
	}
	e.Tokens = tokensOf(strings.Repeat(fmt.Sprintf("%-16.16s", h.pod.UID[24:]), n))
	h.chain = kvindex.AppendChain(nil, kvindex.Namespace{Model: "base", BlockSize: 16}.Root(), e.Tokens, 16)
	payload := enginewire.Encode(enginewire.Batch{Events: []enginewire.Event{e}}, enginewire.Map)
	h.socket.router.set([]batch{{0, payload}}, nil)
	o.await("credit of "+string(h.pod.id()), func() error {
		h.socket.send(0, payload) // a subscriber that joins may miss it, and a repeat changes nothing
		return o.credit(h.chain, h.pod.id(), n)
	})
}

// credit wants both pickers to credit a worker, and nobody else, with so many
// blocks of a chain.
func (o *owners) credit(chain []kvindex.BlockHash, w kvindex.WorkerID, blocks int) error {
	for i, watch := range o.watches {
		got := map[kvindex.WorkerID]int{}
		for _, m := range watch.index.Overlap(chain, nil) {
			got[m.Worker] = int(m.Depth[kvindex.External])
		}
		if got[w] != blocks || len(got) != min(1, blocks) {
			return fmt.Errorf("picker %d: %v, want %d blocks of %s", i, got, blocks, w)
		}
	}
	return nil
}

func (o *owners) await(what string, ok func() error) {
	o.t.Helper()
	deadline := time.After(6 * patience) // a million blocks take a race detector on a busy machine half a minute
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			o.t.Fatalf("%s: %v", what, err)
		}
	}
}

// keysOf are the keys that a worker's name is part of, and the hashes that have it.
func (o *owners) keysOf(w kvindex.WorkerID) []string {
	o.t.Helper()
	ctx := o.t.Context()
	all, err := o.server.Client.Keys(ctx, "*").Result()
	if err != nil {
		o.t.Fatal(err)
	}
	var out []string
	for _, key := range all {
		if strings.HasSuffix(key, ":"+string(w)) {
			out = append(out, key)
		}
		if strings.HasSuffix(key, ":hello") {
			if there, err := o.server.Client.HExists(ctx, key, string(w)).Result(); err != nil || there {
				out = append(out, fmt.Sprint(key, err))
			}
		}
	}
	slices.Sort(out)
	return out
}

// TestC16OwnershipOfBlocksInRedis: what a worker owns ends with its life, and
// touches no worker whose name is like its own. Both pickers agree at each step.
func TestC16OwnershipOfBlocksInRedis(t *testing.T) {
	t.Parallel()
	pods := lines[pod](t, "C16-workers.jsonl")
	if len(pods) != 5 || pods[0].id() != pods[1].id() {
		t.Fatalf("pods %+v", pods)
	}
	o := &owners{t: t, server: redistest.Start(t, redistest.Options{})}
	for range 2 {
		o.watches = append(o.watches, newWatch(t, o.open()))
	}
	first := o.hire(pods[0])
	o.warm(first, 3)
	var others []*hired
	for i, p := range pods[2:] {
		h := o.hire(p)
		o.warm(h, i+1) // one block counts, too
		others = append(others, h)
	}
	unharmed := func(of []*hired) {
		t.Helper()
		for _, h := range of {
			if err := o.credit(h.chain, h.pod.id(), len(h.chain)); err != nil {
				t.Error(err)
			}
		}
	}
	unharmed(append(others, first))
	if len(o.keysOf(pods[0].id())) == 0 {
		t.Error("no key of a worker that lives")
	}

	// Killed: nobody says bye, the lease ends.
	first.log.set(nil, errAway)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	o.await("the end of the lease", func() error { return o.credit(first.chain, pods[0].id(), 0) })
	o.await("the end of the keys", func() error {
		if left := o.keysOf(pods[0].id()); len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		return nil
	})
	t.Logf("forgotten %v after the kill, with a lease of %v", time.Since(killed).Round(time.Millisecond), 3*heartbeatEvery)
	unharmed(others)

	// A new life under the old name and at the old address.
	second := o.hire(pods[1])
	if err := o.credit(first.chain, pods[1].id(), 0); err != nil {
		t.Errorf("a new life: %v", err)
	}
	o.warm(second, 2)
	unharmed(append(others, second))
	if err := o.credit(first.chain, pods[1].id(), 0); err != nil {
		t.Errorf("a new life with blocks of its own: %v", err)
	}

	// llm-1 is deleted: llm-1-0 begins like it.
	i := slices.IndexFunc(others, func(h *hired) bool { return h.pod.Pod == "llm-1" })
	gone := others[i]
	if err := gone.stop(); err != nil {
		t.Fatal(err)
	}
	o.await("the end of llm-1", func() error { return o.credit(gone.chain, gone.pod.id(), 0) })
	unharmed(append(slices.Delete(slices.Clone(others), i, i+1), second))
	if left := o.keysOf(gone.pod.id()); len(left) > 0 {
		t.Errorf("keys of llm-1 are left: %q", left)
	}
	for _, w := range o.watches {
		if len(w.refused) > 0 {
			t.Errorf("refused: %v", w.refused)
		}
	}
}

// TestC16ClearOfAMillionBlocks: no command on the way, and none of the clear, keeps
// Redis busy for 10 ms. What decides is what a command can touch, which is counted,
// and the processor time of the clear with all that it sets off. The slow log has the
// time on the clock: on a busy machine that includes what others took meanwhile, so
// its bound is ten times as large.
func TestC16ClearOfAMillionBlocks(t *testing.T) {
	const (
		runs   = 128
		length = 8192
		limit  = 10 * time.Millisecond
	)
	o := &owners{t: t, server: redistest.Start(t, redistest.Options{Config: []string{"slowlog-log-slower-than 1000", "slowlog-max-len 10000"}})}
	for range 2 {
		o.watches = append(o.watches, newWatch(t, o.open()))
	}
	writer := o.open()
	owner := kvindex.Owner{Worker: "[2001:db8::10]:8000"}
	seq := uint64(0)
	put := func(r kvindex.Record) {
		t.Helper()
		r.Owner, r.Epoch, r.Term = owner, 1, 1
		if r.Kind.Sequenced() {
			seq++
			r.Seq = seq
		}
		if err := writer.Append(t.Context(), []kvindex.Record{r}); err != nil {
			t.Fatal(err)
		}
	}
	put(kvindex.Record{Kind: kvindex.KindHello, Hello: &kvindex.Hello{Address: string(owner.Worker), Ready: true, LeaseMs: 60_000}})
	for run := range runs {
		stored := &kvindex.Stored{Hashes: make([]kvindex.BlockHash, length)}
		for i := range stored.Hashes {
			stored.Hashes[i] = kvindex.BlockHash(binary.LittleEndian.Uint64(binary.BigEndian.AppendUint64(nil, uint64(run*length+i+1))))
		}
		put(kvindex.Record{Kind: kvindex.KindStored, Stored: stored})
	}
	blocks := func(want int) func() error {
		return func() error {
			for i, w := range o.watches {
				if n := w.index.Stats().Blocks; n != want {
					return fmt.Errorf("picker %d has %d blocks, want %d", i, n, want)
				}
			}
			return nil
		}
	}
	o.await("a million blocks", blocks(runs*length))
	o.elements(runs + 1) // one of each Append: not of each block

	before := o.busy()
	put(kvindex.Record{Kind: kvindex.KindCleared})
	took := o.busy() - before
	o.await("the clear", blocks(0))
	o.elements(runs + 2)
	t.Logf("the clear took %v of Redis's processor", took)
	if took > limit {
		t.Errorf("the clear took %v of Redis's processor, want at most %v", took, limit)
	}
	o.slowest(10 * limit)
}

// elements wants every key to have at most so many entries, items, fields or
// members: a command that touches all of a key touches no more.
func (o *owners) elements(most int64) {
	o.t.Helper()
	ctx, c := o.t.Context(), o.server.Client
	for _, key := range o.server.Keys() {
		var n int64
		var err error
		switch kind := c.Type(ctx, key).Val(); kind {
		case "stream":
			n, err = c.XLen(ctx, key).Result()
		case "list":
			n, err = c.LLen(ctx, key).Result()
		case "hash":
			n, err = c.HLen(ctx, key).Result()
		case "zset":
			n, err = c.ZCard(ctx, key).Result()
		default:
			o.t.Errorf("key %s is a %s", key, kind)
		}
		if err != nil || n > most {
			o.t.Errorf("key %s has %d elements (%v), want at most %d", key, n, err, most)
		}
	}
}

// busy is the processor time of the thread on which Redis runs commands.
func (o *owners) busy() time.Duration {
	o.t.Helper()
	seconds := 0.0
	for line := range strings.Lines(o.server.Do("info", "cpu")) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); strings.HasSuffix(name, "_main_thread") {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				o.t.Fatalf("%s: %v", line, err)
			}
			seconds += v
		}
	}
	if seconds == 0 {
		o.t.Fatal("Redis does not say what processor time it took")
	}
	return time.Duration(seconds * float64(time.Second))
}

// slowest wants no command to have taken longer.
func (o *owners) slowest(limit time.Duration) {
	o.t.Helper()
	slow, err := o.server.Client.SlowLogGet(o.t.Context(), -1).Result()
	if err != nil {
		o.t.Fatal(err)
	}
	longest, command := time.Millisecond, "none"
	for _, s := range slow {
		if s.Duration > longest {
			longest, command = s.Duration, strconv.Quote(strings.Join(s.Args, " "))
		}
	}
	o.t.Logf("longest command: %v, %.100s", longest, command)
	if longest > limit {
		o.t.Errorf("a command took %v: %.200s", longest, command)
	}
}
