package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
)

// testNext makes the text of an engine for tests: one token in ten stops.
func testNext(state uint64) (uint32, bool) {
	return uint32(state % 50), mix(state, 3)%10 == 0
}

// randomConfig is a small engine, mostly too small for what it gets.
func randomConfig(rng *rand.Rand) Config {
	return Config{
		Timing: timing.Model{
			Prefill: timing.Prefill{A: 3 * rng.Float64(), B: rng.Float64() / 10, G: rng.Float64() / 1000},
			Decode:  timing.Decode{D: 2 * rng.Float64(), E: rng.Float64() / 10, F: rng.Float64() / 100},
		},
		Transfer: timing.Transfer{SetupMs: rng.Float64(), BytesPerSecond: 1e5}, KVBytesPerToken: rng.IntN(20),
		BlockSize: 1 + rng.IntN(5), Blocks: 12 + rng.IntN(60), MaxBatchedTokens: 1 + rng.IntN(40),
		MaxSeqs: 1 + rng.IntN(8), MaxModelLen: 20 + rng.IntN(60), PrefixCaching: rng.IntN(8) > 0, Next: testNext,
		HostBlocks: max(0, rng.IntN(80)-40), HostBytesPerSecond: 1e4,
	}
}

// content is what a block holds.
type content struct {
	parent     BlockID
	hasParent  bool
	tokens     string
	lora, salt string
}

// cacheModel follows the events as an index would.
type cacheModel struct {
	size    int
	present map[BlockID]content
	ever    map[BlockID]content
	ids     map[content]BlockID
	// host is what the other tier has.
	host map[BlockID]bool
}

// applyHost follows the events of the host tier: blocks that the device had, each
// after the one that it was stored after there.
func (m *cacheModel) applyHost(e Event) error {
	parent, hasParent := e.Parent, e.HasParent
	for _, id := range e.Blocks {
		if e.Kind == Removed {
			if !m.host[id] {
				return fmt.Errorf("removed %x from the host, which does not have it", id)
			}
			delete(m.host, id)
			continue
		}
		if c, ok := m.ever[id]; !ok || c.parent != parent || c.hasParent != hasParent || m.host[id] {
			return fmt.Errorf("stored %x after %x (%v) in the host; the device had %+v, the host has it: %v", id, parent, hasParent, c, m.host[id])
		}
		m.host[id] = true
		parent, hasParent = id, true
	}
	if e.Kind == Cleared {
		clear(m.host)
	}
	return nil
}

func (m *cacheModel) apply(e Event) error {
	switch e.Kind {
	case Cleared:
		clear(m.present)
		return nil
	case Removed:
		for _, id := range e.Blocks {
			if _, ok := m.present[id]; !ok {
				return fmt.Errorf("removed %x, which is not stored", id)
			}
			delete(m.present, id)
		}
		return nil
	case Stored:
		return m.stored(e)
	}
	return fmt.Errorf("event of kind %d", e.Kind)
}

func (m *cacheModel) stored(e Event) error {
	if len(e.Tokens) != len(e.Blocks)*m.size {
		return fmt.Errorf("%d tokens for %d blocks of %d", len(e.Tokens), len(e.Blocks), m.size)
	}
	parent, hasParent := e.Parent, e.HasParent
	for i, id := range e.Blocks {
		c := content{parent, hasParent, fmt.Sprint(e.Tokens[i*m.size : (i+1)*m.size]), e.LoRA, e.Salt}
		if _, dup := m.present[id]; dup {
			return fmt.Errorf("stored %x twice", id)
		}
		if before, known := m.ever[id]; known && before != c {
			return fmt.Errorf("block %x was %v and is %v", id, before, c)
		}
		if other, known := m.ids[c]; known && other != id {
			return fmt.Errorf("%v is block %x and %x", c, other, id)
		}
		m.present[id], m.ever[id], m.ids[c] = c, c, id
		parent, hasParent = id, true
	}
	return nil
}

// hit is how many tokens of a request the stored blocks cover, those of the device
// first, then those of the host.
func (m *cacheModel) hit(r *Request) int {
	var parent BlockID
	n, behind := 0, false
	for (n+1)*m.size < len(r.Prompt) {
		c := content{parent, n > 0, fmt.Sprint(r.Prompt[n*m.size : (n+1)*m.size]), r.LoRA, r.Salt}
		id, known := m.ids[c]
		_, ok := m.present[id]
		behind = behind || !ok
		if !known || behind && !m.host[id] {
			break
		}
		parent = id
		n++
	}
	return n * m.size
}

// life is what a history knows of one request.
type life struct {
	Request

	tokens []uint32
	finish Reason
	held   bool
	// cached is the expected CachedTokens, -1 where it is not known.
	cached int
}

// history drives one engine with random calls and checks it after each.
type history struct {
	core  *Core
	rng   *rand.Rand
	now   time.Duration
	cache cacheModel
	lives map[string]*life
	// order are the ids in the order of submission.
	order    []string
	prefixes [][]uint32
	log      strings.Builder
}

func newHistory(rng *rand.Rand) (*history, error) {
	core, err := New(randomConfig(rng))
	if err != nil {
		return nil, err
	}
	h := &history{core: core, rng: rng, lives: make(map[string]*life)}
	h.cache = cacheModel{size: core.cfg.BlockSize, present: make(map[BlockID]content), ever: make(map[BlockID]content), ids: make(map[content]BlockID), host: make(map[BlockID]bool)}
	for range 4 {
		h.prefixes = append(h.prefixes, randomTokens(rng, 30))
	}
	return h, nil
}

func randomTokens(rng *rand.Rand, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = rng.Uint32N(50)
	}
	return tokens
}

// run makes n calls, then releases and finishes everything.
func (h *history) run(n int) error {
	for range n {
		if err := h.act(); err != nil {
			return err
		}
		if err := h.check(); err != nil {
			return err
		}
	}
	for i := 0; ; i++ {
		h.releaseAll()
		at, ok := h.core.NextAt()
		if !ok {
			break
		}
		if i > 200000 {
			return fmt.Errorf("no end in sight at %v: %+v", at, h.core.Stats())
		}
		if err := h.step(at); err != nil {
			return err
		}
		if err := h.check(); err != nil {
			return err
		}
	}
	return h.checkEnd()
}

func (h *history) act() error {
	switch h.rng.IntN(20) {
	case 0, 1, 2, 3:
		return h.submit()
	case 4:
		return h.abort()
	case 5:
		if h.rng.IntN(5) == 0 {
			return h.output(h.core.Clear(h.now))
		}
		return nil
	case 6:
		h.releaseAll()
		return nil
	case 7: // late
		return h.step(h.now + time.Duration(h.rng.IntN(20))*time.Millisecond)
	default:
		at, ok := h.core.NextAt()
		if !ok {
			return h.submit()
		}
		return h.step(at)
	}
}

func (h *history) step(at time.Duration) error {
	if at < h.now {
		// A call may be later than what was due; a step then happens now.
		at = h.now
	}
	h.now = at
	return h.output(h.core.Step(at))
}

func (h *history) submit() error {
	cfg := &h.core.cfg
	prompt := slices.Clone(h.prefixes[h.rng.IntN(4)][:h.rng.IntN(31)])
	if len(h.order) > 0 && h.rng.IntN(3) == 0 {
		past := h.lives[h.order[h.rng.IntN(len(h.order))]]
		prompt = slices.Concat(past.Prompt, past.tokens)
	}
	prompt = append(prompt, randomTokens(h.rng, h.rng.IntN(4))...)
	r := Request{
		ID: fmt.Sprint("r", len(h.order)), Prompt: prompt, MaxTokens: 1 + h.rng.IntN(20), MinTokens: h.rng.IntN(4),
		IgnoreEOS: h.rng.IntN(3) == 0, Seed: h.rng.Uint64N(2), HoldKV: h.rng.IntN(6) == 0,
		LoRA: []string{"", "", "", "x"}[h.rng.IntN(4)], Salt: []string{"", "", "", "s"}[h.rng.IntN(4)],
	}
	if h.rng.IntN(5) == 0 {
		r.RemoteTokens = h.rng.IntN(40)
	}
	fits := len(prompt) > 0 && len(prompt)+r.MaxTokens <= cfg.MaxModelLen && blocksFor(len(prompt)+r.MaxTokens-1, cfg.BlockSize) <= cfg.Blocks
	_, busy := h.core.NextAt()
	before := h.core.Stats()
	err := h.core.Submit(h.now, r)
	fmt.Fprintln(&h.log, h.now, "submit", r, err)
	if fits != (err == nil) {
		return fmt.Errorf("submit of %d+%d tokens: fits %v, error %w", len(prompt), r.MaxTokens, fits, err)
	}
	if err != nil {
		if after := h.core.Stats(); after != before {
			return fmt.Errorf("a refused request changed %+v to %+v", before, after)
		}
		return nil
	}
	l := &life{Request: r, cached: -1}
	if !busy && before.HeldRequests == 0 && before.Waiting == 0 {
		// Alone in an idle engine: what an index of its events predicts holds.
		l.cached = 0
		if cfg.PrefixCaching {
			l.cached = h.cache.hit(&r)
		}
		l.cached = max(l.cached, min(r.RemoteTokens, len(prompt)-1))
	}
	h.lives[r.ID], h.order = l, append(h.order, r.ID)
	return nil
}

func (h *history) abort() error {
	if len(h.order) == 0 {
		return nil
	}
	id := h.order[h.rng.IntN(len(h.order))]
	out := h.core.Abort(h.now, id)
	if err := h.output(out); err != nil {
		return err
	}
	l := h.lives[id]
	l.held = false
	if l.finish == Running {
		l.finish = Aborted
	}
	return nil
}

func (h *history) releaseAll() {
	for _, id := range h.order {
		if l := h.lives[id]; l.held {
			l.held = !h.core.Release(h.now, id)
		}
	}
}

// output checks what the engine returned against the requests and the cache.
func (h *history) output(out Output) error {
	fmt.Fprintln(&h.log, h.now, out)
	for _, e := range out.Events {
		if err := h.cache.apply(e); err != nil {
			return err
		}
	}
	for _, e := range out.HostEvents {
		if err := h.cache.applyHost(e); err != nil {
			return err
		}
	}
	for _, t := range out.Tokens {
		l, ok := h.lives[t.ID]
		if !ok || l.finish != Running {
			return fmt.Errorf("token %+v of a request that is unknown or over", t)
		}
		if t.Index != len(l.tokens) {
			return fmt.Errorf("token %+v after %d tokens", t, len(l.tokens))
		}
		if t.Index == 0 && l.cached >= 0 && t.CachedTokens != l.cached {
			return fmt.Errorf("token %+v: %d cached tokens expected", t, l.cached)
		}
		l.tokens = append(l.tokens, t.Token)
		want, reason := naiveNext(l)
		if t.Token != want || t.Finish != reason {
			return fmt.Errorf("token %+v, want %d %q", t, want, reason)
		}
		l.finish = t.Finish
		l.held = l.HoldKV && t.Finish != Running
	}
	return nil
}

// naiveNext is the newest token of l and its reason, from the whole text.
func naiveNext(l *life) (uint32, Reason) {
	text := slices.Concat(l.Prompt, l.tokens[:len(l.tokens)-1])
	state := uint64(stateRoot)
	for _, t := range text {
		state = mix(state, uint64(t))
	}
	token, stop := testNext(mix(state, l.Seed))
	switch n := len(l.tokens); {
	case stop && !l.IgnoreEOS && n >= l.MinTokens:
		return token, Stop
	case n == l.MaxTokens:
		return token, Length
	}
	return token, Running
}

// check holds the invariants of the package comment.
func (h *history) check() error {
	c := h.core
	if err := h.checkBlocks(); err != nil {
		return err
	}
	// Returned events and those of the running step are the content.
	model := cacheModel{size: h.cache.size, present: make(map[BlockID]content), ever: h.cache.ever, ids: h.cache.ids}
	maps.Copy(model.present, h.cache.present)
	for _, e := range c.pool.events {
		if err := model.apply(e); err != nil {
			return err
		}
	}
	if !c.stepping && len(c.pool.events) > 0 {
		return fmt.Errorf("idle with %d events not returned", len(c.pool.events))
	}
	if len(model.present) != len(c.pool.byID) {
		return fmt.Errorf("%d blocks by events, %d can be hit", len(model.present), len(c.pool.byID))
	}
	for id, content := range model.present {
		if _, ok := c.pool.byID[id]; !ok {
			return fmt.Errorf("block %x by events cannot be hit", id)
		}
		if _, ok := model.present[content.parent]; content.hasParent && !ok {
			return fmt.Errorf("block %x is stored without its parent", id)
		}
	}
	queued := 0
	for _, s := range c.byID {
		queued += s.queued
	}
	if host := c.pool.host; host != nil && len(host.events) == 0 {
		if len(host.byID) != len(h.cache.host) || len(host.byID) > c.cfg.HostBlocks {
			return fmt.Errorf("%d blocks in the host, %d by events", len(host.byID), len(h.cache.host))
		}
		for id := range h.cache.host {
			if host.byID[id] == nil {
				return fmt.Errorf("block %x is in the host by events only", id)
			}
		}
	}
	if st := c.Stats(); st.QueuedTokens != queued || queued < 0 || st.Running > c.cfg.MaxSeqs {
		return fmt.Errorf("stats %+v, queued %d", st, queued)
	}
	if at, ok := c.NextAt(); ok && at < c.now {
		return fmt.Errorf("next at %v, now %v", at, c.now)
	}
	return nil
}

// checkBlocks counts the users of every block and walks the free queue.
func (h *history) checkBlocks() error {
	p := h.core.pool
	users := make([]int32, len(p.blocks))
	for _, s := range h.core.byID {
		for _, i := range s.blocks {
			users[i]++
		}
	}
	free := make(map[int32]bool)
	for i := p.blocks[0].next; i != 0; i = p.blocks[i].next {
		if free[i] {
			return fmt.Errorf("block %d is twice in the free queue", i)
		}
		if p.blocks[p.blocks[i].next].prev != i {
			return fmt.Errorf("block %d and its next do not agree", i)
		}
		free[i] = true
	}
	if len(free) != p.free {
		return fmt.Errorf("%d blocks in the free queue, %d counted", len(free), p.free)
	}
	chained := make(map[int32]bool)
	for id, i := range p.byID {
		for ; i != none; i = p.blocks[i].twin {
			if !p.blocks[i].cached || p.blocks[i].id != id || chained[i] {
				return fmt.Errorf("block %d is wrong among those of %x", i, id)
			}
			chained[i] = true
		}
	}
	for i := int32(1); int(i) < len(p.blocks); i++ {
		b := p.blocks[i]
		if b.ref != users[i] || free[i] != (b.ref == 0) || b.cached != chained[i] {
			return fmt.Errorf("block %d: %+v with %d users, free %v, chained %v", i, b, users[i], free[i], chained[i])
		}
	}
	return nil
}

// checkEnd holds when nothing is left to do.
func (h *history) checkEnd() error {
	for _, id := range h.order {
		if h.lives[id].finish == Running {
			return fmt.Errorf("request %s never ended: %+v", id, h.core.Stats())
		}
	}
	st := h.core.Stats()
	if st.Running+st.Waiting+st.UsedBlocks+st.QueuedTokens+st.ContextTokens+st.HeldRequests != 0 {
		return fmt.Errorf("at the end %+v", st)
	}
	return nil
}

func TestRandomHistories(t *testing.T) {
	preemptions := uint64(0)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range uint64(150) {
		h, err := newHistory(rand.New(rand.NewPCG(seed, i)))
		if err != nil {
			t.Fatal(err)
		}
		if err := h.run(400); err != nil {
			t.Fatalf("history %d, %+v: %v", i, h.core.cfg, err)
		}
		preemptions += h.core.Stats().Preemptions
	}
	if preemptions < 100 {
		t.Errorf("%d preemptions: the histories are too tame", preemptions)
	}
}

// TestDeterministic runs the same history twice.
func TestDeterministic(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var logs [2]string
	for i := range logs {
		h, err := newHistory(rand.New(rand.NewPCG(seed, 0)))
		if err != nil {
			t.Fatal(err)
		}
		if err := h.run(1000); err != nil {
			t.Fatal(err)
		}
		logs[i] = h.log.String()
	}
	if logs[0] != logs[1] {
		t.Error("two runs of the same history differ")
	}
}
