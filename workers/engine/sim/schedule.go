package sim

import (
	"slices"
	"time"
)

// startStep decides what the next step computes: first the sequences in the
// batch in the order of their admission, then pulled ones, then the queue, as
// tokens, places and blocks allow. Without anything to compute the engine is
// idle.
func (c *Core) startStep() {
	c.work = c.work[:0]
	budget, preempted := c.scheduleBatch(c.cfg.MaxBatchedTokens)
	// Where a preemption left nothing to compute, blocks are held outside the
	// batch, and something smaller may still fit.
	if !preempted || len(c.work) == 0 {
		c.admit(budget)
	}
	if len(c.work) == 0 {
		if len(c.queue) > 0 && c.queue[0].arrived > c.now {
			c.wake(c.queue[0].arrived)
		}
		return
	}
	c.stepping, c.stepStart, c.stepEnd = true, c.now, c.now+c.stepTime()
}

// stepTime is the duration of the step that computes work.
func (c *Core) stepTime() time.Duration {
	if c.cfg.StepMs != nil {
		return duration(c.cfg.StepMs(c.step()))
	}
	var prefill float64
	var decoding, context int
	for _, w := range c.work {
		if w.seq.decoding {
			decoding++
			context += w.seq.length()
			continue
		}
		prefill += c.cfg.Timing.ChunkMs(w.tokens, w.seq.computed)
	}
	if len(c.work) > decoding {
		prefill += c.cfg.Timing.Prefill.A
	}
	return duration(prefill + c.cfg.Timing.DecodeMs(decoding, context))
}

// step sums up work.
func (c *Core) step() Step {
	var st Step
	for _, w := range c.work {
		if !w.seq.decoding {
			st.Tokens += w.tokens
			continue
		}
		st.Decodes++
		st.Context += w.seq.length()
	}
	return st
}

// scheduleBatch schedules the sequences in the batch and returns the tokens
// left. Where blocks run out the sequence admitted last is preempted.
func (c *Core) scheduleBatch(budget int) (left int, preempted bool) {
	for i := 0; i < len(c.batch) && budget > 0; i++ {
		s := c.batch[i]
		n := min(s.length()-s.computed, budget)
		for !c.reserve(s, nil, s.computed+n) {
			last := c.batch[len(c.batch)-1]
			c.preempt(last)
			preempted = true
			if last == s {
				return budget, true
			}
		}
		c.schedule(s, n)
		budget -= n
	}
	return budget, preempted
}

// admit takes pulled and waiting sequences into the batch, or starts their
// transfers, until the first that does not fit.
func (c *Core) admit(budget int) {
	for budget > 0 && len(c.batch) < c.cfg.MaxSeqs {
		if len(c.ready) > 0 {
			s := c.ready[0]
			c.ready = slices.Delete(c.ready, 0, 1)
			budget -= c.enter(s, budget)
			continue
		}
		// Every sequence needs a block of its own: its last token is computed.
		if len(c.queue) == 0 || c.queue[0].arrived > c.now || c.pool.free == 0 {
			return
		}
		s := c.queue[0]
		hits := c.lookup(s)
		cached := len(hits) * c.cfg.BlockSize
		load := c.pool.host.run(c.behind(s, len(hits))) * c.cfg.BlockSize
		pull := s.RemoteTokens - cached
		if pull <= load { // the host's memory is nearer
			pull = 0
		}
		want := cached + min(s.length()-cached, budget)
		if pull > 0 {
			// All blocks of the prompt, so that a pulled sequence never has to
			// wait for another's.
			want = s.prompt
		} else if load > 0 {
			want = s.length()
		}
		if !c.reserve(s, hits, want) {
			return
		}
		c.queue = slices.Delete(c.queue, 0, 1)
		s.computed, s.stored = cached, len(hits)
		if s.hit < 0 {
			c.totals.QueryTokens += uint64(s.prompt)
			c.totals.HitTokens += uint64(cached)
		}
		if pull > 0 {
			c.startPull(s, pull)
			continue
		}
		if load > 0 {
			c.startLoad(s, cached, load)
			continue
		}
		c.setQueued(s, s.length()-cached)
		budget -= c.enter(s, budget)
	}
}

// enter puts a sequence that has its blocks into the batch and schedules up to
// budget tokens, whose number it returns.
func (c *Core) enter(s *sequence, budget int) int {
	if s.hit < 0 {
		s.hit = s.computed
	}
	s.phase = running
	c.batch = append(c.batch, s)
	n := min(s.length()-s.computed, budget)
	c.schedule(s, n)
	return n
}

// schedule adds n tokens of s to the step. The blocks they fill are cached now.
func (c *Core) schedule(s *sequence, n int) {
	c.work = append(c.work, chunk{seq: s, tokens: n})
	c.store(s, s.computed+n)
}

// preempt throws a sequence of the batch, its last, back to the front of the
// queue. It will be computed again, except for what is still cached then.
func (c *Core) preempt(s *sequence) {
	c.batch = c.batch[:len(c.batch)-1]
	c.pool.release(s.blocks)
	s.blocks = s.blocks[:0]
	s.computed, s.stored, s.unrooted, s.decoding = 0, 0, false, false
	s.RemoteTokens = 0
	s.phase = waiting
	s.preempted++
	c.totals.Preemptions++
	c.queue = slices.Insert(c.queue, 0, s)
	c.estimate(s)
}

// startPull starts the transfer of that many tokens into the blocks of s.
func (c *Core) startPull(s *sequence, tokens int) {
	ms := c.cfg.Transfer.SetupMs
	if c.cfg.KVBytesPerToken > 0 {
		ms = c.cfg.Transfer.Ms(tokens, c.cfg.KVBytesPerToken)
	}
	s.pullTokens, s.pullEnd, s.pullTo, s.loading = tokens, c.now+duration(ms), s.remote(), false
	c.await(s)
}

// startLoad starts bringing tokens of s behind its cached ones back from the host
// tier.
func (c *Core) startLoad(s *sequence, cached, tokens int) {
	ms := 1000 * float64(tokens) * float64(c.cfg.KVBytesPerToken) / c.cfg.HostBytesPerSecond
	c.hostBusy = max(c.now, c.hostBusy) + duration(ms)
	s.pullTokens, s.pullEnd, s.pullTo, s.loading = tokens, c.hostBusy, cached+tokens, true
	c.await(s)
}

// await puts s among those whose blocks are on their way.
func (c *Core) await(s *sequence) {
	s.phase = pulling
	c.setQueued(s, s.length()-s.pullTo)
	i, _ := slices.BinarySearchFunc(c.pulls, s.pullEnd, func(p *sequence, end time.Duration) int {
		if p.pullEnd <= end {
			return -1
		}
		return 1
	})
	c.pulls = slices.Insert(c.pulls, i, s)
}

// finishPulls makes the sequences ready whose transfer has ended. At least the
// prompt's last token is computed here, for its output.
func (c *Core) finishPulls() {
	for len(c.pulls) > 0 && c.pulls[0].pullEnd <= c.now {
		s := c.pulls[0]
		c.pulls = slices.Delete(c.pulls, 0, 1)
		s.phase = pulled
		s.computed = s.pullTo
		if s.loading {
			c.totals.LoadedTokens += uint64(s.pullTokens)
		} else {
			c.totals.TransferredTokens += uint64(s.pullTokens)
		}
		c.store(s, s.computed)
		c.ready = append(c.ready, s)
	}
}

// finishStep ends the running step: its chunks are computed, and sequences
// without anything left to compute have a new token.
func (c *Core) finishStep(out *Output) {
	c.stepping = false
	c.totals.Steps++
	c.totals.BusyTime += c.stepEnd - c.stepStart
	ended := false
	out.Tokens = slices.Grow(out.Tokens, len(c.work))
	for _, w := range c.work {
		s := w.seq
		if s.phase != running {
			continue
		}
		s.computed += w.tokens
		if !s.decoding {
			c.setQueued(s, s.length()-s.computed)
		}
		if s.computed < s.length() {
			continue
		}
		t := c.generate(s)
		out.Tokens = append(out.Tokens, t)
		if t.Finish != Running {
			ended = true
			c.finish(s)
		}
	}
	if ended {
		c.batch = slices.DeleteFunc(c.batch, func(s *sequence) bool { return s.phase != running })
	}
}

// generate appends the next token to a sequence.
func (c *Core) generate(s *sequence) Token {
	token, stop := c.cfg.Next(mix(s.state, s.Seed))
	s.out = append(s.out, token)
	s.state = mix(s.state, uint64(token))
	s.decoding = true
	t := Token{ID: s.ID, Tag: s.Tag, Token: token, Index: len(s.out) - 1, Finish: s.ends(stop), Preempted: s.preempted}
	if t.Index == 0 {
		t.CachedTokens = s.hit
		c.totals.PromptTokens += uint64(s.prompt)
	}
	c.totals.GeneratedTokens++
	return t
}

// finish ends a sequence of the batch that has its last token. The caller takes
// it out of the batch.
func (c *Core) finish(s *sequence) {
	if !s.HoldKV {
		c.end(s)
		return
	}
	s.phase = held
	c.heldN++
	keep := blocksFor(s.prompt, c.cfg.BlockSize)
	c.pool.release(s.blocks[keep:])
	s.blocks = s.blocks[:keep]
}
