package workers

import (
	"context"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/workers/teach"
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

// pupil is what one request can teach.
type pupil struct {
	learner *learner
	request *teach.Pupil
	taught  bool
	// known is how many tokens of the prompt the picker knew, -1 if it did not say.
	// forgotten: it was told more than that before.
	known     int64
	forgotten bool
}

// begin prepares to learn from the answer to a request, of whose prompt the
// picker knew so many tokens (-1: it did not say). It returns nil if there is
// nothing to learn.
func (l *learner) begin(req *openai.Request, known int64) *pupil {
	if !teach.Wants(req) {
		return nil
	}
	s := l.state()
	if s.Metrics.BlockSize < 1 {
		l.metrics.Unlearned.WithLabelValues("no_block_size").Inc()
		return nil
	}
	return &pupil{learner: l, request: teach.New(req, l.secret, namespaceOf(s, req)), known: known}
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
	if p == nil || p.taught {
		return
	}
	list := p.request.Prompts(a)
	p.taught = len(list) > 0
	for _, d := range list {
		p.forgotten = len(list) == 1 && p.learner.forgotten(d, p.known)
		p.learner.learn(ctx, d, p.forgotten)
	}
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
	if d := p.request.Reply(a); d != nil {
		p.learner.learn(ctx, d, p.forgotten)
	}
}

// learn publishes a lesson unless it says nothing new; again does so all the
// same.
func (l *learner) learn(ctx context.Context, d *kvindex.Learned, again bool) {
	if teach.Empty(d) {
		return
	}
	if 8*(len(d.Chunks)+len(d.Blocks)) > maxLesson {
		l.metrics.Unlearned.WithLabelValues("too_long").Inc()
		return
	}
	l.mu.Lock()
	known := !again && teach.Known(l.published, d)
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
