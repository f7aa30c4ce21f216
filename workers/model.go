package workers

import (
	"context"
	"slices"
	"strconv"
	"sync"

	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/workers/teach"
)

// modelBlocks is the capacity of a model while the engine does not say its own: a
// large GPU's with a small model. What the engine reports corrects it.
const modelBlocks = 1 << 16

// cacheModel stands in for the KV events of an engine that has none: it follows
// the requests that pass, and publishes what a cache like vLLM's would hold by
// them (see [kvindex.Approx]).
//
// Invariant: what was put is what the model holds; mu is held from a change until
// it is put, so that changes follow each other in the log as in the model.
type cacheModel struct {
	publisher *publisher
	state     func() *engineState

	mu    sync.Mutex
	model *kvindex.Approx // guarded by mu
	names uint64          // guarded by mu; of leases
}

func newCacheModel(state func() *engineState) *cacheModel {
	return &cacheModel{state: state, model: kvindex.NewApprox(modelBlocks)}
}

// modelled is a request in the model.
type modelled struct {
	cache   *cacheModel
	ns      kvindex.Namespace
	prompts []modelledPrompt
	output  int // tokens generated so far
}

type modelledPrompt struct {
	name   string
	ids    []uint32
	blocks int // complete ones of the prompt
}

// begin notes a request whose prompts' ids are known, as they are when the first
// token comes. It returns nil if there is nothing to follow.
func (c *cacheModel) begin(ctx context.Context, req *openai.Request, a *openai.Answer) *modelled {
	if c == nil || req == nil {
		return nil
	}
	s := c.state()
	if s.Metrics.BlockSize < 1 {
		return nil
	}
	r := &modelled{cache: c, ns: namespaceOf(s, req)}
	prompts := req.TokenPrompts
	for i := range req.TextPrompts {
		prompts = append(slices.Clip(prompts), teach.PromptIDs(req, a, i))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.Metrics.KVBlocks > 0 {
		c.model.Resize(s.Metrics.KVBlocks)
	}
	for _, ids := range prompts {
		chain := kvindex.AppendChain(nil, r.ns.Root(), ids, r.ns.BlockSize)
		c.names++
		p := modelledPrompt{strconv.FormatUint(c.names, 36), ids, len(chain)}
		c.model.Begin(p.name, r.ns.Root(), chain, r.blocks(len(ids)))
		r.prompts = append(r.prompts, p)
	}
	c.publish(ctx)
	return r
}

// blocks is how many blocks so many tokens take.
func (r *modelled) blocks(tokens int) int { return (tokens + r.ns.BlockSize - 1) / r.ns.BlockSize }

// grow notes generated tokens, counted over all prompts.
func (r *modelled) grow(ctx context.Context, tokens int) {
	if r == nil || len(r.prompts) == 0 || tokens <= 0 {
		return
	}
	before := r.output
	r.output += tokens
	if len(r.prompts) > 1 || r.blocks(before) == r.blocks(r.output) {
		return
	}
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	p := &r.prompts[0]
	r.cache.model.Grow(p.name, r.blocks(len(p.ids)+r.output))
	r.cache.publish(ctx)
}

// end notes the end of a request, with what the engine says of it.
func (r *modelled) end(ctx context.Context, a *openai.Answer, cached int) {
	if r == nil {
		return
	}
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	for i := range r.prompts {
		p := &r.prompts[i]
		if len(r.prompts) == 1 {
			r.one(p, a, cached)
		}
		r.cache.model.End(p.name)
	}
	r.cache.publish(ctx)
}

// one brings in what is known where there is one prompt: how much of it was
// cached, and the blocks that the answer filled. The last token's KV is never
// computed.
func (r *modelled) one(p *modelledPrompt, a *openai.Answer, cached int) {
	if cached >= 0 && len(p.ids) > 0 {
		r.cache.model.Found(p.name, cached/r.ns.BlockSize, (len(p.ids)-1)/r.ns.BlockSize)
	}
	if a == nil || len(a.Choices) != 1 || len(a.Choices[0].TokenIDs) == 0 {
		return
	}
	out := a.Choices[0].TokenIDs
	chain := kvindex.AppendChain(nil, r.ns.Root(), slices.Concat(p.ids, out[:len(out)-1]), r.ns.BlockSize)
	r.cache.model.Extend(p.name, chain[p.blocks:])
}

// publish puts what changed. A request that was given up still counts. Where the
// writer takes nothing any more, the model begins anew.
func (c *cacheModel) publish(ctx context.Context) {
	records := c.model.Changes()
	if len(records) == 0 {
		return
	}
	for i := range records {
		records[i].Owner = c.publisher.device()
	}
	pctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), appendTimeout)
	defer cancel()
	if !c.publisher.put(pctx, update{records: records}) {
		c.model.Clear()
	}
}

// restart empties the model for a new life of the engine. The caller calls the
// result when it has put the new epoch: nothing must come before that.
func (c *cacheModel) restart() func() {
	c.mu.Lock()
	c.model.Clear()
	c.model.Changes() // the epoch says it
	return c.mu.Unlock
}
