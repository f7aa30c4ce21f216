package sim

// hittable is how many leading blocks of s a lookup may give: full ones, and at
// least one token is always computed, for its output.
func (c *Core) hittable(s *sequence) int {
	if !c.cfg.PrefixCaching {
		return 0
	}
	return (s.length() - 1) / c.cfg.BlockSize
}

// lookup is the cached blocks that s can start with, valid until the next
// lookup.
func (c *Core) lookup(s *sequence) []int32 {
	n := c.hittable(s)
	s.identify(n, c.cfg.BlockSize)
	c.hits = c.hits[:0]
	for _, id := range s.ids[:n] {
		i, ok := c.pool.byID[id]
		if !ok {
			break
		}
		c.hits = append(c.hits, i)
	}
	return c.hits
}

// behind are the blocks that would follow n cached ones of s, as far as a lookup may
// give them; lookup was called before.
func (c *Core) behind(s *sequence, n int) []BlockID { return s.ids[n:c.hittable(s)] }

// reserve gives s the blocks for its first tokens: hits, if it has none yet,
// and free ones. Without enough of them it changes nothing and reports false.
func (c *Core) reserve(s *sequence, hits []int32, tokens int) bool {
	need := blocksFor(tokens, c.cfg.BlockSize) - len(s.blocks) - len(hits)
	room := c.pool.free
	for _, i := range hits {
		if c.pool.blocks[i].ref == 0 {
			room--
		}
	}
	if need > room {
		return false
	}
	for _, i := range hits {
		c.pool.use(i)
	}
	s.blocks = append(s.blocks, hits...)
	for range need {
		s.blocks = append(s.blocks, c.pool.take())
	}
	return true
}

// store caches the blocks of s that its first tokens fill, with one event for
// each run of blocks that were not cached.
func (c *Core) store(s *sequence, tokens int) {
	full := tokens / c.cfg.BlockSize
	if !c.cfg.PrefixCaching || s.unrooted || full <= s.stored {
		return
	}
	s.identify(full, c.cfg.BlockSize)
	from := -1 // first block of the run that is open
	for i := s.stored; i < full; i++ {
		c.pool.follows(s, i)
		switch fresh := c.pool.store(s.blocks[i], s.ids[i]); {
		case fresh && from < 0:
			from = i
		case !fresh && from >= 0:
			c.storedEvent(s, from, i)
			from = -1
		}
	}
	if from >= 0 {
		c.storedEvent(s, from, full)
	}
	s.stored = full
}

// storedEvent reports the blocks of s from one index up to another.
func (c *Core) storedEvent(s *sequence, from, to int) {
	e := Event{
		Kind: Stored, LoRA: s.LoRA, Salt: s.Salt,
		Blocks: append([]BlockID(nil), s.ids[from:to]...),
	}
	if !s.named() {
		e.Tokens = s.appendTokens(make([]uint32, 0, (to-from)*c.cfg.BlockSize), from*c.cfg.BlockSize, to*c.cfg.BlockSize)
	}
	if from > 0 {
		e.Parent, e.HasParent = s.ids[from-1], true
	}
	c.pool.events = append(c.pool.events, e)
}
