package teach

import (
	"slices"

	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/kvindex"
)

// Pupil is what one request can teach: its prompts' streams, under the seed in
// force when it came. It is not safe for concurrent use.
type Pupil struct {
	request *openai.Request
	ns      kvindex.Namespace
	seed    kvindex.Seed
	streams []*kvindex.ChunkHasher
}

// Wants reports whether the token ids of a request's prompt can teach anything:
// prompts that are ids already cannot.
func Wants(req *openai.Request) bool { return req.TextPrompts > 0 }

// New prepares to learn from the answer to a request that [Wants] accepts. secret
// is the pool's, ns where the engine keeps the request's blocks.
func New(req *openai.Request, secret string, ns kvindex.Namespace) *Pupil {
	return &Pupil{request: req, ns: ns, seed: req.Seed(secret, ns.Model, ns.LoRA)}
}

// Prompts are the lessons of the prompts, one each; nil while their ids are not
// there.
func (p *Pupil) Prompts(a *openai.Answer) []*kvindex.Learned {
	if len(PromptIDs(p.request, a, 0)) == 0 {
		return nil
	}
	p.streams = p.request.Hashers(p.seed)
	list := make([]*kvindex.Learned, len(p.streams))
	for i, h := range p.streams {
		list[i] = p.lesson(h, PromptIDs(p.request, a, i))
	}
	return list
}

// Reply is the lesson of prompt and answer as the next turn's prefix, after
// [Pupil.Prompts] gave its own; nil where the text that the client has does not
// stand for exactly the generated ids.
func (p *Pupil) Reply(a *openai.Answer) *kvindex.Learned {
	if len(p.streams) != 1 || p.request.N != 1 || len(a.Choices) != 1 {
		return nil
	}
	c := &a.Choices[0]
	if !c.Plain || len(c.TokenIDs) == 0 || (c.Finish != "stop" && c.Finish != "length") || p.rewrites(c) {
		return nil
	}
	h := p.streams[0].Clone()
	p.request.Reply(h, c.Text)
	return p.lesson(h, slices.Concat(PromptIDs(p.request, a, 0), c.TokenIDs))
}

// PromptIDs are the ids of the i-th prompt: chat gives them in the answer,
// completions in the prompt's first choice.
func PromptIDs(req *openai.Request, a *openai.Answer, i int) []uint32 {
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

// rewrites reports whether the request makes the engine return a text that is
// not the one of the generated ids: it cuts at stop strings, repeats the prompt,
// or appends a suffix.
func (p *Pupil) rewrites(c *openai.Choice) bool {
	given := func(name string) bool {
		switch string(p.request.Member(name)) {
		case "", "null", "false", "[]", `""`:
			return false
		}
		return true
	}
	return (c.Finish == "stop" && given("stop")) || given("echo") || given("suffix")
}

func (p *Pupil) lesson(h *kvindex.ChunkHasher, ids []uint32) *kvindex.Learned {
	return &kvindex.Learned{
		Seed:      p.seed,
		Chunks:    slices.Clone(h.Chunks()),
		Bytes:     uint32(h.Len()),
		Tokens:    uint32(len(ids)),
		BlockSize: uint32(p.ns.BlockSize),
		Blocks:    kvindex.AppendChain(nil, p.ns.Root(), ids, p.ns.BlockSize),
	}
}

// Empty reports whether there is nothing to tell: the text fills no chunk.
func Empty(d *kvindex.Learned) bool { return len(d.Chunks) == 0 || d.Tokens == 0 }

// Known reports whether all chunks of a lesson are in m with the same blocks. A
// map rounds depths down to a chunk, so a block that begins in the last chunk may
// be missing from it.
func Known(m *kvindex.PrefixMap, d *kvindex.Learned) bool {
	k := m.Lookup(d.Chunks, nil)
	if k.Chunks != len(d.Chunks) || k.BlockSize != int(d.BlockSize) || len(k.Blocks) > len(d.Blocks) {
		return false
	}
	whole := int(uint64(d.Tokens) * uint64(len(d.Chunks)*kvindex.ChunkSize) / uint64(d.Bytes))
	return len(k.Blocks) >= whole/int(d.BlockSize)-1 && slices.Equal(k.Blocks, d.Blocks[:len(k.Blocks)])
}
