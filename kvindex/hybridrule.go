package kvindex

import (
	"fmt"
	"strconv"
	"strings"
)

// maxSpecGroups bounds the different kinds of groups of a worker; engines have two
// to four.
const maxSpecGroups = 16

// groupRules are a Hello's groups as queries use them: those that need the same
// are one, full attention first. Lengths are in the worker's blocks.
type groupRules struct {
	list   []groupRule
	align  int // a prefix is a multiple of it: of every group's blocks
	eagle  bool
	simple bool // one of full attention and one other
}

type groupRule struct {
	kind   GroupKind
	ratio  int // the group's block in the worker's blocks
	window int // in the group's blocks: of a window what must be there before the end, of a chunk its length
	groups []uint16
}

// rules makes the rules of a Hello; nil if a prefix is simply what group 0 holds.
func rules(h *Hello) *groupRules {
	r := &groupRules{align: 1, eagle: h.Eagle}
	add := func(g GroupSpec, number uint16) {
		ratio := 1
		if g.BlockSize > 0 && h.BlockSize > 0 {
			ratio = int(g.BlockSize / h.BlockSize)
		}
		if g.Kind >= GroupUnused || ratio < 1 || h.BlockSize > 0 && g.BlockSize%h.BlockSize != 0 {
			return
		}
		rule := groupRule{kind: g.Kind, ratio: ratio, groups: []uint16{number}}
		tokens := max(1, int(h.BlockSize)*ratio)
		switch g.Kind {
		case GroupWindow:
			rule.window = (max(int(g.Window), 1) - 1 + tokens - 1) / tokens
		case GroupChunk:
			rule.window = max(1, int(g.Window)/tokens)
		default:
		}
		for i := range r.list {
			if o := &r.list[i]; o.kind == rule.kind && o.ratio == ratio && o.window == rule.window {
				o.groups = append(o.groups, number)
				return
			}
		}
		if len(r.list) == maxSpecGroups {
			return
		}
		r.align = r.align / gcd(r.align, ratio) * ratio
		r.list = append(r.list, rule)
	}
	add(GroupSpec{}, 0)
	for n, g := range h.Groups {
		if n > 0 && g.Kind == GroupFull {
			add(g, uint16(n))
		}
	}
	for n, g := range h.Groups {
		if n > 0 && g.Kind != GroupFull {
			add(g, uint16(n))
		}
	}
	r.simple = len(r.list) == 2 && r.list[1].kind != GroupFull
	if !r.eagle && len(r.list) == 1 && len(r.list[0].groups) == 1 {
		return nil
	}
	return r
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// coverage is what a rank holds of a chain in a tier or a faster one.
type coverage struct {
	chain []BlockHash
	sets  []*[NumTiers]blockSet
	tier  Tier
	full  int // what group 0 holds of the beginning
}

// has reports whether all of the rule's groups hold their i-th block; of group 0
// that is known by full.
func (c *coverage) has(r *groupRule, i int) bool {
	end := (i + 1) * r.ratio
	h := c.chain[end-1]
	for _, g := range r.groups {
		if g == 0 {
			if end > c.full {
				return false
			}
			continue
		}
		if int(g) >= len(c.sets) || c.sets[g] == nil {
			return false
		}
		held := false
		for t := Tier(0); t <= c.tier && !held; t++ {
			held = c.sets[g][t].has(h)
		}
		if !held {
			return false
		}
	}
	return true
}

// hit is the longest prefix, in blocks, that every group has what it needs of.
// Each rule takes the candidate or lowers it, until all take it. With EAGLE a
// group must hold one block more, which is computed anew.
func (r *groupRules) hit(c *coverage) int {
	limit := len(c.chain)
	var found [maxSpecGroups]int
	for i := range found {
		found[i] = -1
	}
	verified, hit := uint32(0), limit
	for {
		now := hit
		for i := range r.list {
			g := &r.list[i]
			if g.kind == GroupFull && found[i] >= 0 { // every part of a prefix is one
				now = min(now, found[i])
				continue
			}
			drop := r.eagle && verified&(1<<i) == 0
			most := now
			if drop && g.kind != GroupState {
				most = min(now+g.ratio, limit)
			}
			n := c.find(g, most, drop, r.align)
			if drop {
				verified |= 1 << i
			} else if n < now {
				verified = 0
			}
			now, found[i] = n, n
		}
		if now >= hit {
			return hit
		}
		hit = now
		if r.simple || hit == 0 {
			return hit
		}
	}
}

// find is the longest prefix of at most so many blocks that suits one rule.
func (c *coverage) find(g *groupRule, most int, drop bool, align int) int {
	n := most / g.ratio
	switch g.kind {
	case GroupState:
		for ; n > 0; n-- {
			if n*g.ratio%align == 0 && c.has(g, n-1) {
				break
			}
		}
		return n * g.ratio
	case GroupWindow:
		return c.findWindow(g, n, drop, align)
	case GroupChunk:
		at := n / g.window * g.window
		for at < n && c.has(g, at) {
			at++
		}
		return c.settle(g, at, 0, align)
	default:
	}
	at := 0
	for at < n && c.has(g, at) {
		at++
	}
	if drop && at > 0 {
		at--
	}
	return at * g.ratio / align * align
}

// findWindow looks from the end for as many blocks in a row as the window needs,
// ending at a multiple of align; fewer do at the beginning of the prompt.
func (c *coverage) findWindow(g *groupRule, n int, drop bool, align int) int {
	need, dropped := g.window, 0
	if drop {
		need, dropped = need+1, 1
	}
	row, end := 0, 0 // blocks in a row, and the number after the last of them
	for i := n - 1; i >= 0; i-- {
		if !c.has(g, i) {
			row = 0
			continue
		}
		if row == 0 {
			if (i+1-dropped)*g.ratio%align != 0 {
				continue
			}
			end = i + 1
		}
		row++
		if row >= need {
			return c.settle(g, end, dropped, align)
		}
	}
	return c.settle(g, row, dropped, align)
}

// settle takes off the block that is dropped, and what is over a multiple of align.
func (c *coverage) settle(g *groupRule, n, dropped, align int) int {
	n = max(0, n-dropped)
	for n*g.ratio%align != 0 {
		n--
	}
	return n * g.ratio
}

// ParseGroups reads groups as operators write them, in the engine's order and
// separated by commas: the kind, after a colon the window or chunk in tokens, after
// another one the block size: "full,window:128,state::528".
func ParseGroups(s string) ([]GroupSpec, error) {
	if s == "" {
		return nil, nil
	}
	var list []GroupSpec
	for word := range strings.SplitSeq(s, ",") {
		fields := strings.Split(word, ":")
		g := GroupSpec{Kind: GroupUnused + 1}
		for k := GroupFull; k <= GroupUnused; k++ {
			if k.String() == fields[0] {
				g.Kind = k
			}
		}
		if g.Kind > GroupUnused || len(fields) > 3 {
			return nil, fmt.Errorf("group %q: want full, window:TOKENS, chunk:TOKENS, state or unused, each with :BLOCKSIZE if it has its own", word)
		}
		for i, text := range fields[1:] {
			if text == "" {
				continue
			}
			n, err := strconv.ParseUint(text, 10, 31)
			if err != nil {
				return nil, fmt.Errorf("group %q: %q is no number of tokens", word, text)
			}
			if i == 0 {
				g.Window = uint32(n)
			} else {
				g.BlockSize = uint32(n)
			}
		}
		if (g.Kind == GroupWindow || g.Kind == GroupChunk) && g.Window == 0 {
			return nil, fmt.Errorf("group %q: how many tokens is it long?", word)
		}
		list = append(list, g)
	}
	return list, nil
}
