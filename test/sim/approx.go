package sim

import "github.com/kvlane/kvlane/kvindex"

// The agent of an engine that publishes no cache changes keeps a model of its
// cache and publishes that (workers, kvindex.Approx). It sees what passes through
// it: prompts and answers, and how many tokens were cached, at the end.

// blocksOf is how many blocks so many tokens take.
func (f *Fleet) blocksOf(tokens int) int {
	size := f.cfg.Trace.BlockSize
	return (tokens + size - 1) / size
}

// modelFirst notes a request whose first token came: its prompt is known then.
func (e *engine) modelFirst(c *call) {
	if !e.fleet.cfg.Modelled {
		return
	}
	if e.model == nil {
		e.model = kvindex.NewApprox(e.fleet.cfg.Blocks)
	}
	e.model.Begin(c.ID, 0, c.Blocks, e.fleet.blocksOf(c.ISL))
	e.publishModel()
}

// modelGrow notes a generated token.
func (e *engine) modelGrow(c *call) {
	if e.model == nil || e.fleet.blocksOf(c.ISL+c.tokens) == e.fleet.blocksOf(c.ISL+c.tokens-1) {
		return
	}
	e.model.Grow(c.ID, e.fleet.blocksOf(c.ISL+c.tokens))
	e.publishModel()
}

// modelEnd notes the end of a request, with what the engine says was cached.
func (e *engine) modelEnd(c *call) {
	if e.model == nil {
		return
	}
	size := e.fleet.cfg.Trace.BlockSize
	e.model.Found(c.ID, c.cached/size, (c.ISL-1)/size)
	// The last token's KV is never computed.
	full := (c.ISL+c.tokens-1)/size - len(c.Blocks)
	if answer := e.fleet.cfg.Trace.Entries[c.Index].Answer; full > 0 && len(answer) > 0 {
		e.model.Extend(c.ID, answer[:min(full, len(answer))])
	}
	e.model.End(c.ID)
	e.publishModel()
}

func (e *engine) publishModel() {
	records := e.model.Changes()
	if len(records) == 0 {
		return
	}
	for i := range records {
		r := &records[i]
		e.seq++
		r.Owner, r.Epoch, r.Term, r.Seq = e.owner, e.epoch, 1, e.seq
		e.mirror(r)
	}
	e.fleet.send(e, records, e.fleet.cfg.EventLag, true)
}
