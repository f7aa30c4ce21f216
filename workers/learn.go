package workers

import (
	"context"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/kvindex"
)

// maxLesson is the largest lesson that is published, bytes of hashes; a log takes
// 3 MiB. A text of 2 MiB takes half of it.
const maxLesson = 2 << 20

// learner turns what an engine made of a prompt into Learned records.
type learner struct {
	secret    string
	state     func() *engineState
	publisher *publisher
	metrics   *Metrics

	mu        sync.Mutex
	published *kvindex.PrefixMap // guarded by mu
}

// pupil is what one request can teach: its prompts' streams, under the seed in
// force when it came.
type pupil struct {
	learner *learner
	request *openai.Request
	ns      kvindex.Namespace
	seed    kvindex.Seed
	streams []*kvindex.ChunkHasher
	taught  bool
	// known is how many tokens of the prompt the picker knew, -1 if it did not say.
	// forgotten: it was told more than that before.
	known     int64
	forgotten bool
}

// wants reports whether the token ids of a request's prompt can teach anything:
// prompts that are ids already cannot.
func wants(req *openai.Request) bool { return req.TextPrompts > 0 }

// begin prepares to learn from the answer to a request, of whose prompt the
// picker knew so many tokens (-1: it did not say). It returns nil if there is
// nothing to learn.
func (l *learner) begin(req *openai.Request, known int64) *pupil {
	if !wants(req) {
		return nil
	}
	s := l.state()
	if s.Metrics.BlockSize < 1 {
		l.metrics.Unlearned.WithLabelValues("no_block_size").Inc()
		return nil
	}
	p := &pupil{learner: l, request: req, known: known, ns: namespaceOf(s, req)}
	p.seed = req.Seed(l.secret, p.ns.Model, p.ns.LoRA)
	return p
}

// namespaceOf is where an engine keeps a request's blocks.
func namespaceOf(s *engineState, req *openai.Request) kvindex.Namespace {
	ns := kvindex.Namespace{Model: s.Models.Base, Salt: req.CacheSalt, BlockSize: s.Metrics.BlockSize}
	if slices.Contains(s.Models.Adapters, req.Model) {
		ns.LoRA = req.Model
	}
	return ns
}

// prompts learns the prompts once their ids are there. It may be called again
// while an answer grows; it acts once.
func (p *pupil) prompts(ctx context.Context, a *openai.Answer) {
	if p == nil || p.taught || len(promptIDs(p.request, a, 0)) == 0 {
		return
	}
	p.taught = true
	p.streams = p.request.Hashers(p.seed)
	for i, h := range p.streams {
		d := p.lesson(h, promptIDs(p.request, a, i))
		p.forgotten = len(p.streams) == 1 && p.learner.forgotten(d, p.known)
		p.learner.learn(ctx, d, p.forgotten)
	}
}

// promptIDs are the ids of the i-th prompt: chat gives them in the answer,
// completions in the prompt's first choice.
func promptIDs(req *openai.Request, a *openai.Answer, i int) []uint32 {
	for j := range a.Choices {
		if a.Choices[j].Index == i*req.N && a.Choices[j].PromptTokenIDs != nil {
			return a.Choices[j].PromptTokenIDs
		}
	}
	if i == 0 && req.TextPrompts == 1 {
		return a.PromptTokenIDs
	}
	return nil
}

// reply learns prompt and answer as the next turn's prefix, where the text that
// the client has stands for exactly the generated ids.
func (p *pupil) reply(ctx context.Context, a *openai.Answer) {
	if p == nil {
		return
	}
	p.prompts(ctx, a)
	if !p.taught {
		p.learner.metrics.Unlearned.WithLabelValues("no_ids").Inc()
		return
	}
	if len(p.streams) != 1 || p.request.N != 1 || len(a.Choices) != 1 {
		return
	}
	c := &a.Choices[0]
	if !c.Plain || len(c.TokenIDs) == 0 || (c.Finish != "stop" && c.Finish != "length") || p.rewrites(c) {
		return
	}
	h := p.streams[0].Clone()
	p.request.Reply(h, c.Text)
	p.learner.learn(ctx, p.lesson(h, slices.Concat(promptIDs(p.request, a, 0), c.TokenIDs)), p.forgotten)
}

// rewrites reports whether the request makes the engine return a text that is
// not the one of the generated ids: it cuts at stop strings, repeats the prompt,
// or appends a suffix.
func (p *pupil) rewrites(c *openai.Choice) bool {
	given := func(name string) bool {
		switch string(p.request.Member(name)) {
		case "", "null", "false", "[]", `""`:
			return false
		}
		return true
	}
	return (c.Finish == "stop" && given("stop")) || given("echo") || given("suffix")
}

func (p *pupil) lesson(h *kvindex.ChunkHasher, ids []uint32) *kvindex.Learned {
	return &kvindex.Learned{
		Seed:      p.seed,
		Chunks:    slices.Clone(h.Chunks()),
		Bytes:     uint32(h.Len()),
		Tokens:    uint32(len(ids)),
		BlockSize: uint32(p.ns.BlockSize),
		Blocks:    kvindex.AppendChain(nil, p.ns.Root(), ids, p.ns.BlockSize),
	}
}

// learn publishes a lesson unless it says nothing new; again does so all the
// same.
func (l *learner) learn(ctx context.Context, d *kvindex.Learned, again bool) {
	if len(d.Chunks) == 0 || d.Tokens == 0 {
		return
	}
	if 8*(len(d.Chunks)+len(d.Blocks)) > maxLesson {
		l.metrics.Unlearned.WithLabelValues("too_long").Inc()
		return
	}
	l.mu.Lock()
	known := !again && l.knows(d)
	l.mu.Unlock()
	if known {
		l.metrics.Unlearned.WithLabelValues("known").Inc()
		return
	}
	if !l.publisher.put(ctx, update{records: []kvindex.Record{l.publisher.learnedRecord(d)}}) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.published.Learn(d)
}

// forgotten reports whether the picker knew less than half of what was published
// of a prompt: it was restarted, or let go of the text for newer ones.
func (l *learner) forgotten(d *kvindex.Learned, picker int64) bool {
	if picker < 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.published.Lookup(d.Chunks, nil)
	return 2*picker+int64(d.BlockSize) < int64(k.Tokens)
}

// knows reports whether all chunks of a lesson are published with the same
// blocks. A map rounds depths down to a chunk, so a block that begins in the
// last chunk may be missing from it.
func (l *learner) knows(d *kvindex.Learned) bool {
	k := l.published.Lookup(d.Chunks, nil)
	if k.Chunks != len(d.Chunks) || k.BlockSize != int(d.BlockSize) || len(k.Blocks) > len(d.Blocks) {
		return false
	}
	whole := int(uint64(d.Tokens) * uint64(len(d.Chunks)*kvindex.ChunkSize) / uint64(d.Bytes))
	return len(k.Blocks) >= whole/int(d.BlockSize)-1 && slices.Equal(k.Blocks, d.Blocks[:len(k.Blocks)])
}
