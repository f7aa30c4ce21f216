package redislog

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
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/internal/redistest"
	"github.com/kvlane/kvlane/kvindex"
)

// lives writes with one agent and checks that a reader that was there and a fresh one
// hold the same.
func lives(t *testing.T, url string) {
	t.Helper()
	a := newNaiveAgent(open(t, url, nil), 0)
	rng := rand.New(rand.NewPCG(1, 5))
	one := follow(t, open(t, url, nil))
	for i := range 60 {
		a.write(t.Context(), a.step(rng))
		if i == 30 {
			if err := a.log.Checkpoint(t.Context(), a.content(false)); err != nil && !a.resync {
				t.Errorf("checkpoint: %v", err)
			}
		}
	}
	agreed(t, []*naiveAgent{a}, one)
	agreed(t, []*naiveAgent{a}, follow(t, open(t, url, nil)))
}

func TestCluster(t *testing.T) {
	c := redistest.StartCluster(t, redistest.Options{})
	lives(t, c.URL())
	// All keys of a pool lie in one node.
	holders := 0
	for _, n := range c.Nodes {
		if len(n.Keys()) > 0 {
			holders++
		}
	}
	if holders != 1 {
		t.Errorf("%d nodes hold keys of the pool, want 1", holders)
	}
}

func TestTLS(t *testing.T) {
	s := redistest.Start(t, redistest.Options{TLS: true, Password: "geheim"})
	lives(t, s.URL())
	stranger := open(t, "rediss://:geheim@"+s.Addr, nil) // does not know the authority
	for range 20 {                                       // a busy machine may not get to the certificate in time
		err := stranger.Append(t.Context(), []kvindex.Record{hello("w", time.Second)})
		if err == nil || strings.Contains(err.Error(), "certificate") {
			if err == nil {
				t.Error("it wrote without the authority")
			}
			return
		}
	}
	t.Error("no append without the authority named the certificate")
}

// TestACL: a user needs the pool's keys, scripts and these commands; nothing else.
func TestACL(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	s.Do("acl", "setuser", "kv", "on", ">p@ss/word", "~kvlane:1:{test}:*", "resetchannels", "-@all",
		"+@read", "+@write", "+@scripting", "+@transaction", "+time", "-@dangerous")
	lives(t, "redis://kv:p%40ss%2Fword@"+s.Addr)
	other := open(t, "redis://kv:p%40ss%2Fword@"+s.Addr, func(o *Options) { o.Pool = "another" })
	if err := other.Append(t.Context(), []kvindex.Record{hello("w", time.Second)}); err == nil {
		t.Error("a user without the right wrote to another pool")
	}
}

func TestUnixSocket(t *testing.T) {
	path := t.TempDir() + "/redis.sock"
	redistest.Start(t, redistest.Options{Config: []string{"unixsocket " + path}})
	lives(t, "unix://"+path)
}

// TestPools: two pools in one server do not see each other.
func TestPools(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	a := open(t, s.URL(), func(o *Options) { o.Pool = "a" })
	b := follow(t, open(t, s.URL(), func(o *Options) { o.Pool = "b" }))
	b.until("the present state", func() bool { return b.complete == 1 })
	mustAppend(t, a, hello("w", time.Minute), stored(device("w"), 1, 5))
	mustAppend(t, open(t, s.URL(), func(o *Options) { o.Pool = "b" }), hello("v", time.Minute))
	b.until("a worker of its own", func() bool { return b.hellos["v"] > 0 })
	b.stop()
	if b.hellos["w"] > 0 || b.index.Stats().Blocks > 0 {
		t.Error("a pool saw another one's records")
	}
}

func TestURLs(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"redis://h", "{redis [h:6379]     0 false}"},
		{"redis://:pw@h:1/3", "{redis [h:1]   pw  3 false}"},
		{"redis://[::1]", "{redis [[::1]:6379]     0 false}"},
		{"redis://u:p%40@[::1]:7?db=2", "{redis [[::1]:7]  u p@  2 false}"},
		{"rediss://h:1?servername=x", "{redis [h:1]     0 true}"},
		{"unix:///run/redis.sock?db=1", "{unix [/run/redis.sock]     1 false}"},
		{"redis-cluster://u:p@a:1,b:2", "{cluster [a:1 b:2]  u p  0 false}"},
		{"rediss-cluster://a:1,b:2", "{cluster [a:1 b:2]     0 true}"},
		{"redis-sentinel://a:1,b:2/pool?sentinel-user=su", "{sentinel [a:1 b:2] pool   su 0 false}"},
		{"redis-sentinel://a:1", "a Sentinel URL"},
		{"redis-cluster://a:1/1", ""},
		{"redis-cluster://a:1?db=1", "only database 0"},
		{"http://h:1", "scheme"},
		{"h:1", "no scheme"},
		{"redis://h:1?maxwait=3", `unknown parameter "maxwait"`},
		{"redis-cluster://a,b", "not host:port"},
		{"redis://h:1/x", "not a number"},
		{"redis://a:1,b:2", "redis-cluster"},
		{"redis://h:port", "port"},
		{"redis://h:0", "not within"},
		{"redis://h:1/-3", "negative"},
		{"redis://u:#secret@h:1", "%23"},
		{"unix://", "no path"},
		{"redis://user:secret@h:port:1", "not host:port"},
	} {
		s, err := parseURL(c.url)
		got := fmt.Sprintf("{%s %s %s %s %s %s %d %t}", s.kind, s.addrs, s.master, s.user, s.password, s.sentinelUser, s.db, s.tls != nil)
		if err != nil {
			got = err.Error()
			if strings.Contains(got, "secret") {
				t.Errorf("%s: the error tells the password: %s", c.url, got)
			}
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.url, got, c.want)
		}
	}
	if _, err := New(Options{URL: "redis://h", Pool: "a{b"}); err == nil {
		t.Error("a pool with a brace was taken")
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("redis-sentinel://u:p@a:1,b:2/pool?db=3")
	f.Add("unix:///a?db=1")
	f.Fuzz(func(_ *testing.T, s string) {
		if _, err := parseURL(s); err == nil {
			l, err := New(Options{URL: s})
			if err == nil {
				_ = l.Close() // it has not connected
			}
		}
	})
}

// TestLease is C16: what a worker owned goes with its lease, on every reader, with
// its keys, and with nobody else's.
func TestLease(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	const lease = 400 * time.Millisecond
	names := []kvindex.WorkerID{"llm-1", "llm-1-0", "team-a/llm-0", "team-b/llm-0", "[2001:db8::10]:8000", "2001:db8::10", "::", "1:s:1:llm-1"}
	one, two := follow(t, open(t, s.URL(), nil)), follow(t, open(t, s.URL(), nil))
	l := open(t, s.URL(), func(o *Options) { o.Margin = time.Hour }) // the keys must not go by their TTL alone
	for i, w := range names {
		o := device(w)
		mustAppend(t, l, hello(w, time.Hour), stored(o, 1, kvindex.BlockHash(i), 100))
		if err := l.Checkpoint(t.Context(), []kvindex.Record{cleared1(o, 1), stored(o, 0, kvindex.BlockHash(i), 100)}); err != nil {
			t.Fatal(err)
		}
	}
	gone := names[0]
	mustAppend(t, l, hello(gone, lease))
	for _, r := range []*reader{one, two} {
		r.until("the end of the lease", func() bool { return slices.Contains(r.byes, gone) })
		for i, w := range names {
			want := []kvindex.BlockHash{kvindex.BlockHash(i), 100}
			if w == gone {
				want = nil
			}
			r.until("the blocks of "+string(w), func() bool { return slices.Equal(r.index.Blocks(device(w)), want) })
		}
	}
	for _, k := range s.Keys() {
		if strings.HasSuffix(k, ":"+string(gone)) && !strings.HasSuffix(k, names7(names)) {
			t.Errorf("key %s is left", k)
		}
	}
	// A new life at the same name begins with nothing.
	next := cleared1(device(gone), 1)
	next.Term = 2
	mustAppend(t, open(t, s.URL(), nil), func() kvindex.Record { r := hello(gone, time.Hour); r.Term = 2; return r }(), next)
	one.until("the new life", func() bool { return one.hellos[gone] > 0 })
	if got := one.index.Blocks(device(gone)); len(got) > 0 {
		t.Errorf("the new life inherited %v", got)
	}
	// And the old one cannot write any more.
	if err := l.Append(t.Context(), []kvindex.Record{stored(device(gone), 2, 7)}); err == nil {
		t.Error("the old writer was not fenced")
	}
	if err := l.Drop(t.Context(), names[1]); err != nil {
		t.Fatal(err)
	}
	two.until("the drop", func() bool {
		return slices.Contains(two.byes, names[1]) && len(two.index.Blocks(device(names[1]))) == 0
	})
	two.stop()
	if !slices.Equal(two.lapsed, []kvindex.WorkerID{gone}) {
		t.Errorf("lapsed: %v, want %s alone", two.lapsed, gone)
	}
	for _, k := range s.Keys() {
		if s.Do("pttl", k) == "-1" {
			t.Errorf("key %s lives for ever", k)
		}
	}
}

// names7 is the name that ends like another one's key.
func names7(names []kvindex.WorkerID) string { return string(names[7]) }

// TestMercy: when Redis itself was away for longer than all leases, nobody is taken
// for gone before there was time to come back, whoever is heard first.
func TestMercy(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	l := open(t, s.URL(), nil)
	r := follow(t, open(t, s.URL(), nil))
	mustAppend(t, l, hello("a", 100*time.Millisecond), stored(device("a"), 1, 1))
	r.until("the worker", func() bool { return r.hellos["a"] > 0 })
	s.Pause()
	pauseFor(t, 4*time.Second)
	s.Continue()
	mustAppend(t, l, hello("b", time.Hour))
	log := newKeys("kvlane", "test").log()
	r.until("the newcomer", func() bool { return r.hellos["b"] > 0 })
	if s.Do("hget", log, "mercy") == "<nil>" {
		t.Fatal("no mercy after Redis was away")
	}
	r.until("the end of the lease", func() bool { return slices.Contains(r.byes, "a") })
	if mercy, beat := s.Do("hget", log, "mercy"), s.Do("hget", log, "beat"); beat < mercy {
		t.Errorf("a lease ended at %s, before the mercy did at %s", beat, mercy)
	}
}

// TestLeaseAmongWriters: with no reader there, the workers that are left end the
// leases of those that are not.
func TestLeaseAmongWriters(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	l := open(t, s.URL(), func(o *Options) { o.Margin = time.Hour })
	mustAppend(t, l, hello("gone", 10*time.Millisecond), stored(device("gone"), 1, 5))
	mustAppend(t, l, hello("here", time.Hour), stored(device("here"), 1, 5))
	s.Await("the keys to go", func() bool {
		if err := l.Checkpoint(t.Context(), []kvindex.Record{cleared1(device("here"), 1), stored(device("here"), 0, 5)}); err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(s.Keys(), func(k string) bool { return strings.HasSuffix(k, ":gone") })
	})
	for _, k := range s.Keys() {
		if s.Do("pttl", k) == "-1" {
			t.Errorf("key %s lives for ever", k)
		}
	}
}

// TestLeaseWithoutReaders: with nobody there to end it, a worker's keys go all the
// same.
func TestLeaseWithoutReaders(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	l := open(t, s.URL(), func(o *Options) { o.Margin = 100 * time.Millisecond })
	o := device("w")
	mustAppend(t, l, hello("w", 100*time.Millisecond), stored(o, 1, 5))
	if err := l.Checkpoint(t.Context(), []kvindex.Record{cleared1(o, 1), stored(o, 0, 5)}); err != nil {
		t.Fatal(err)
	}
	s.Await("the keys to go", func() bool {
		return !slices.ContainsFunc(s.Keys(), func(k string) bool { return strings.HasSuffix(k, ":w") })
	})
	// The writer finds that it has to begin anew.
	if err := l.Append(t.Context(), []kvindex.Record{stored(o, 2, 6)}); err == nil {
		t.Error("a record was taken behind ones that are gone")
	}
}

// sizes is a hook that notes the largest command and the largest answer.
type sizes struct {
	mu              sync.Mutex
	command, answer int
	name            string
}

func (*sizes) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *sizes) note(cmd redis.Cmder) {
	out, in := 0, 0
	for _, a := range cmd.Args() {
		out += len(fmt.Sprint(a))
		if b, ok := a.([]byte); ok {
			out += len(b) - len(fmt.Sprint(a))
		}
	}
	switch c := cmd.(type) {
	case *redis.XStreamSliceCmd:
		for _, s := range c.Val() {
			for _, m := range s.Messages {
				for _, v := range m.Values {
					in += len(fmt.Sprint(v))
				}
			}
		}
	case *redis.StringSliceCmd:
		for _, v := range c.Val() {
			in += len(v)
		}
	default:
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if in > h.answer {
		h.answer, h.name = in, cmd.Name()
	}
	h.command = max(h.command, out)
}

func (h *sizes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		h.note(cmd)
		return err
	}
}

func (h *sizes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, c := range cmds {
			h.note(c)
		}
		return err
	}
}

// TestCommandSizes is C16's bound: with a million blocks, no command and no answer
// is larger than what Redis moves in far less than 10 ms (it copies about 1 GB/s
// and faster), also while a worker is read, cleared and dropped.
func TestCommandSizes(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	h := &sizes{}
	l, r := open(t, s.URL(), nil), open(t, s.URL(), nil)
	l.client.AddHook(h)
	r.client.AddHook(h)
	const runs, run = 125, 8000
	o := device("w")
	live := follow(t, r)
	content := []kvindex.Record{cleared1(o, runs)}
	mustAppend(t, l, hello("w", time.Hour))
	for i := range uint64(runs) {
		hashes := make([]kvindex.BlockHash, run)
		for j := range hashes {
			hashes[j] = kvindex.BlockHash(i*run + uint64(j) + 1)
		}
		mustAppend(t, l, stored(o, i+1, hashes...))
		content = append(content, stored(o, 0, hashes...))
	}
	if err := l.Checkpoint(t.Context(), content); err != nil {
		t.Fatal(err)
	}
	whole := func(r *reader) func() bool { return func() bool { return r.index.Stats().Memberships == runs*run } }
	live.until("a million blocks", whole(live))
	fresh := follow(t, r)
	fresh.until("a million blocks", whole(fresh))
	mustAppend(t, l, cleared1(o, runs+1))
	fresh.until("none", func() bool { return fresh.index.Stats().Memberships == 0 })
	if err := l.Drop(t.Context(), "w"); err != nil {
		t.Fatal(err)
	}
	fresh.until("the drop", func() bool { return len(fresh.byes) == 1 })
	t.Logf("largest command %d bytes, largest answer %d bytes (%s)", h.command, h.answer, h.name)
	if h.command > 1<<20 || h.answer > 4<<20 {
		t.Errorf("a command of %d bytes, an answer of %d (%s)", h.command, h.answer, h.name)
	}
	slow, err := s.Client.SlowLogGet(t.Context(), -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range slow { // no fault: the machine may be busy
		t.Logf("took over 10 ms: %s %v", c.Args[0], c.Duration)
	}
}

// TestSlowRedis is C17: a reader's index stays as it is and says that the log is
// away, an Append ends by its deadline, and both go on when Redis does.
func TestSlowRedis(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	proxy := redistest.NewProxy(t, s.Addr)
	l, reading := open(t, "redis://"+proxy.Addr, hasty), open(t, "redis://"+proxy.Addr, hasty)
	r := follow(t, reading)
	o := device("w")
	r.until("the present state", func() bool { return r.complete == 1 })
	seq := uint64(1)
	mustAppend(t, l, hello("w", time.Hour), stored(o, seq, 1))
	r.until("the first block", func() bool { return len(r.index.Blocks(o)) == 1 })
	for _, c := range []struct {
		name  string
		mode  redistest.Mode
		delay time.Duration
		away  bool
	}{
		{"200 ms later", redistest.Delay, 200 * time.Millisecond, false},
		{"stalled", redistest.Stall, 0, true},
		{"refused", redistest.Refuse, 0, true},
		{"cut in mid-answer", redistest.CutAnswers, 0, true},
	} {
		proxy.Set(c.mode, c.delay)
		next := stored(o, seq+1, kvindex.BlockHash(seq+1))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		began := time.Now()
		err := l.Append(ctx, []kvindex.Record{next})
		took := time.Since(began)
		cancel()
		if (err != nil) != c.away {
			t.Errorf("%s: append: %v", c.name, err)
		}
		if took > 10*time.Second { // ten times its deadline; a stalled one would take forever
			t.Errorf("%s: append took %v", c.name, took)
		}
		if c.away {
			heard := r.heard("w")
			r.until(c.name+": the status to say so", func() bool {
				st := reading.Status()
				return !st.Connected && st.Err != "" && st.Lag > 0
			})
			r.until(c.name+": the last Hello to be repeated", func() bool { return r.hellos["w"] > heard+1 })
			if st := l.Status(); st.Connected || st.Dropped == 0 {
				t.Errorf("%s: the writer's status is %+v", c.name, st)
			}
			if got := len(r.index.Blocks(o)); got < int(seq) {
				t.Errorf("%s: the index holds %d blocks, want %d", c.name, got, seq)
			}
		}
		proxy.Set(redistest.Pass, 0)
		if err != nil { // it may have been written: sending it again is safe
			mustAppend(t, l, next)
		}
		seq++
		r.until(c.name+": the next block", func() bool { return len(r.index.Blocks(o)) == int(seq) })
		r.until(c.name+": the status to be well", func() bool { return reading.Status().Connected && l.Status().Connected })
	}
	r.stop()
	if len(r.refused) > 0 || r.complete != 1 {
		t.Errorf("refused %v, complete %d times", r.refused, r.complete)
	}
}

// TestReadOnly: the server has become a replica and connections to it were kept.
func TestReadOnly(t *testing.T) {
	s, other := redistest.Start(t, redistest.Options{}), redistest.Start(t, redistest.Options{})
	proxy := redistest.NewProxy(t, s.Addr)
	a := newNaiveAgent(open(t, "redis://"+proxy.Addr, hasty), 0)
	rng := rand.New(rand.NewPCG(1, 6))
	r := follow(t, open(t, "redis://"+proxy.Addr, hasty))
	for range 30 {
		a.write(t.Context(), a.step(rng))
	}
	agreed(t, []*naiveAgent{a}, r)
	host, port, _ := net.SplitHostPort(other.Addr)
	s.Do("replicaof", host, port)
	r.until("the reader to notice", func() bool { return !r.log.Status().Connected })
	a.write(t.Context(), a.step(rng))
	if st := a.log.Status(); st.Connected || !a.resync {
		t.Errorf("the writer's status is %+v", st)
	}
	proxy.Point(other.Addr)
	agreed(t, []*naiveAgent{a}, r)
}

// TestFull: a server at its memory limit is told apart, reading goes on, and writing
// when there is room.
func TestFull(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	l := open(t, s.URL(), nil)
	r := follow(t, open(t, s.URL(), nil))
	o := device("w")
	mustAppend(t, l, hello("w", time.Hour), stored(o, 1, 1))
	r.until("the first block", func() bool { return len(r.index.Blocks(o)) == 1 })
	s.Do("config", "set", "maxmemory", 1)
	err := l.Append(t.Context(), []kvindex.Record{stored(o, 2, 2)})
	if err == nil || !l.Status().Full || l.Status().Connected {
		t.Errorf("append: %v, status %+v", err, l.Status())
	}
	beats := s.Do("hget", newKeys("kvlane", "test").log(), "beat")
	r.until("the reader to go on", func() bool {
		return r.log.Status().Full && s.Do("hget", newKeys("kvlane", "test").log(), "beat") != beats
	})
	s.Do("config", "set", "maxmemory", 0)
	mustAppend(t, l, stored(o, 2, 2))
	r.until("the next block", func() bool { return len(r.index.Blocks(o)) == 2 && r.log.Status().Connected })
	if st := l.Status(); st.Full || !st.Connected || st.Dropped != 1 {
		t.Errorf("status %+v", st)
	}
}

// TestFullForLong: a server is at its memory limit for longer than the leases. They
// cannot be renewed, so they do not end; what cannot be written is written when there
// is room; and then a lease ends as ever.
func TestFullForLong(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	l, checkpoints := open(t, s.URL(), nil), 0
	r := follow(t, open(t, s.URL(), nil))
	o := device("w")
	mustAppend(t, l, hello("w", time.Second), stored(o, 1, 1))
	r.until("the first block", func() bool { return len(r.index.Blocks(o)) == 1 })
	s.Do("config", "set", "maxmemory", 1)
	for full := time.Now(); time.Since(full) < 4*time.Second; pauseFor(t, 100*time.Millisecond) {
		if err := l.Append(t.Context(), []kvindex.Record{hello("w", time.Second)}); err == nil {
			t.Fatal("a full server took a record")
		}
		if err := l.Checkpoint(t.Context(), []kvindex.Record{cleared1(o, 1), stored(o, 0, 1)}); err == nil {
			checkpoints++
		}
	}
	if st := r.log.Status(); !st.Full || st.Connected {
		t.Errorf("the reader's status is %+v", st)
	}
	s.Do("config", "set", "maxmemory", 0)
	mustAppend(t, l, hello("w", time.Second), stored(o, 2, 2))
	r.until("the next block", func() bool { return len(r.index.Blocks(o)) == 2 && r.log.Status().Connected })
	r.mu.Lock()
	byes := len(r.byes)
	r.mu.Unlock()
	if byes > 0 || checkpoints > 0 {
		t.Errorf("%d workers were taken for gone, %d checkpoints were taken", byes, checkpoints)
	}
	if err := l.Checkpoint(t.Context(), []kvindex.Record{cleared1(o, 2), stored(o, 0, 1, 2)}); err != nil {
		t.Errorf("a checkpoint with room again: %v", err)
	}
	r.until("the end of the lease", func() bool { return slices.Contains(r.lapsed, "w") })
}

// TestAbsent: Redis is not there at the start.
func TestAbsent(t *testing.T) {
	l := open(t, "redis://"+porttest.Address(t), hasty)
	r := follow(t, l)
	r.until("the status to say why", func() bool { return strings.Contains(l.Status().Err, "refused") })
	r.stop()
	if r.complete != 0 {
		t.Error("the present state was complete without Redis")
	}
	if err := l.Append(t.Context(), []kvindex.Record{hello("w", time.Second)}); err == nil {
		t.Error("an append went somewhere")
	}
}

// TestMembers follows who is there without content.
func TestMembers(t *testing.T) {
	s := redistest.Start(t, redistest.Options{})
	proxy := redistest.NewProxy(t, s.Addr)
	watcher := open(t, "redis://"+proxy.Addr, hasty)
	m := &reader{t: t, log: watcher, index: kvindex.NewIndex(), done: make(chan struct{}), news: make(chan struct{}), hellos: map[kvindex.WorkerID]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { defer close(m.done); _ = watcher.Members(ctx, m.apply) }() // ends with the test
	t.Cleanup(func() { cancel(); <-m.done })
	m.until("nobody", func() bool { return m.complete == 1 })
	l := open(t, s.URL(), nil)
	mustAppend(t, l, hello("a", time.Hour), stored(device("a"), 1, 5))
	mustAppend(t, l, hello("b", time.Hour))
	m.until("two", func() bool { return m.hellos["a"] > 0 && m.hellos["b"] > 0 })
	if err := l.Drop(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	m.until("one", func() bool { return slices.Contains(m.byes, "b") })
	proxy.Set(redistest.Refuse, 0)
	heard := m.heard("a")
	m.until("the Hello to be repeated", func() bool { return m.hellos["a"] > heard+2 && !watcher.Status().Connected })
	proxy.Set(redistest.Pass, 0)
	s.FlushAll()
	m.until("the log to be back", func() bool { return watcher.Status().Connected })
	mustAppend(t, l, hello("c", time.Hour))
	m.until("a newcomer", func() bool { return m.hellos["c"] > 0 })
	m.until("nobody to be taken for gone because Redis was emptied", func() bool { return !slices.Contains(m.byes, "a") })
	m.until("who did not come back", func() bool { return slices.Contains(m.byes, "a") })
	if m.index.Stats().Blocks > 0 {
		t.Error("content was read")
	}
}

// TestDenied: a wrong password is told apart from a server that is away, and ends
// when it is right.
func TestDenied(t *testing.T) {
	s := redistest.Start(t, redistest.Options{Password: "geheim"})
	for _, url := range []string{"redis://" + s.Addr, "redis://:falsch@" + s.Addr, "redis://nobody:geheim@" + s.Addr} {
		l := open(t, url, nil)
		err := l.Append(t.Context(), []kvindex.Record{hello("w", time.Second)})
		if st := l.Status(); !errors.Is(err, kvindex.ErrDenied) || !st.Denied || st.Connected || !strings.Contains(st.Err, "AUTH") {
			t.Errorf("%s: %v, %+v", url, err, st)
		}
		if err := l.Ping(t.Context()); !errors.Is(err, kvindex.ErrDenied) || !strings.Contains(err.Error(), s.Addr) || strings.Contains(err.Error(), "falsch") {
			t.Errorf("%s: ping: %v", url, err)
		}
	}
	l := open(t, s.URL(), nil)
	if err := errors.Join(l.Ping(t.Context()), l.Append(t.Context(), []kvindex.Record{hello("w", time.Second)})); err != nil || l.Status().Denied {
		t.Errorf("with the right one: %v", err)
	}
}
