package replay

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/kvlane/kvlane/workers/engine/bpe"
)

// Prompter makes prompt text for hash ids: the same id always gives the same
// text, and every id exactly BlockTokens tokens of it, so that blocks of a trace
// fall on blocks of the engine. The text mixes words of one token, longer
// words, numbers and punctuation: its density varies, as in real prompts.
type Prompter struct {
	tokens *bpe.Tokenizer
	words  []string // one token each, with the leading space
}

// NewPrompter prepares the word list of a tokenizer.
func NewPrompter(tokens *bpe.Tokenizer) (*Prompter, error) {
	ids := tokens.Words()
	if len(ids) < 256 {
		return nil, fmt.Errorf("tokenizer has %d one-token words, want at least 256", len(ids))
	}
	p := &Prompter{tokens: tokens, words: make([]string, len(ids))}
	for i, id := range ids {
		p.words[i] = tokens.Decode([]uint32{id})
	}
	return p, nil
}

// Prompt is the text of an entry: ISL tokens when a tokenizer reads it.
func (p *Prompter) Prompt(e Entry) string {
	var b strings.Builder
	b.Grow(e.ISL * 5)
	left := e.ISL
	for _, id := range e.Blocks {
		n := min(left, BlockTokens)
		p.block(&b, id, n)
		left -= n
	}
	return b.String()
}

// block writes n tokens of the text of one hash id.
func (p *Prompter) block(b *strings.Builder, id uint64, n int) {
	// The second seed only has to differ from other uses of the generator.
	rng := rand.New(rand.NewPCG(id, 0x6b766c616e65))
	for n > 0 {
		piece, cost := p.piece(rng)
		if cost > n {
			piece, cost = p.words[rng.IntN(len(p.words))], 1
		}
		b.WriteString(piece)
		n -= cost
	}
}

// piece is some text that starts a new word, and its length in tokens.
func (p *Prompter) piece(rng *rand.Rand) (text string, tokens int) {
	word := p.words[zipf(rng, len(p.words))]
	switch k := rng.IntN(100); {
	case k < 70:
		return word, 1
	case k < 80:
		text = word + ","
	case k < 88: // a word that no vocabulary has whole
		text = word + strings.TrimSpace(p.words[rng.IntN(len(p.words))]) + strings.TrimSpace(p.words[rng.IntN(len(p.words))])
	case k < 96:
		text = fmt.Sprintf(" %d", rng.IntN(1_000_000))
	default:
		text = word + "."
	}
	return text, len(p.tokens.Encode(text))
}

// zipf picks small numbers more often, like words of a language.
func zipf(rng *rand.Rand, n int) int {
	f := rng.Float64()
	return int(f * f * f * float64(n))
}
