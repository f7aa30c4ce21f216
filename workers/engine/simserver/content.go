package simserver

import (
	"slices"

	"github.com/kvlane/kvlane/kvindex/enginewire"
	"github.com/kvlane/kvlane/workers/engine/sim"
)

// block is one cached block as the core announced it.
type block struct {
	parent    sim.BlockID
	hasParent bool
	tokens    []uint32
	lora      string
	salt      string
}

// content is what the cache holds by the core's events, before they are
// encoded, numbered, dropped or sent.
type content map[sim.BlockID]block

func (c content) apply(events []sim.Event) {
	for i := range events {
		ev := &events[i]
		switch ev.Kind {
		case sim.Stored:
			parent, has := ev.Parent, ev.HasParent
			size := len(ev.Tokens) / len(ev.Blocks)
			for j, id := range ev.Blocks {
				c[id] = block{parent, has, ev.Tokens[j*size : (j+1)*size], ev.LoRA, ev.Salt}
				parent, has = id, true
			}
		case sim.Removed:
			for _, id := range ev.Blocks {
				delete(c, id)
			}
		case sim.Cleared:
			clear(c)
		}
	}
}

// contentBlock is one line of /sim/content.
type contentBlock struct {
	// Hash and Parent are the published hashes in hex; no Parent at a prompt's start.
	Hash   string `json:"hash"`
	Parent string `json:"parent,omitempty"`
	Tokens int    `json:"tokens"`
	// IDs are the token ids, if they were asked for.
	IDs  []uint32 `json:"ids,omitempty"`
	LoRA string   `json:"lora,omitempty"`
	Salt string   `json:"salt,omitempty"`
}

// list is the content sorted by hash.
func (c content) list(withIDs bool) []contentBlock {
	out := make([]contentBlock, 0, len(c))
	for id, b := range c {
		cb := contentBlock{Hash: wireHash(id).String(), Tokens: len(b.tokens), LoRA: b.lora, Salt: b.salt}
		if withIDs {
			cb.IDs = b.tokens
		}
		if b.hasParent {
			cb.Parent = wireHash(b.parent).String()
		}
		out = append(out, cb)
	}
	slices.SortFunc(out, func(a, b contentBlock) int {
		if a.Hash < b.Hash {
			return -1
		}
		if a.Hash > b.Hash {
			return 1
		}
		return 0
	})
	return out
}

func wireHash(id sim.BlockID) enginewire.Hash { return enginewire.IntHash(uint64(id)) }
