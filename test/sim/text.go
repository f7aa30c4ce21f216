package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/workers/engine/bpe"
	"github.com/kvlane/kvlane/workers/engine/simserver"
)

// TextPlan says what a workload of texts is like: conversations of several turns
// over shared system prompts, from clients that write JSON differently.
type TextPlan struct {
	// Systems is the number of system prompts; a fourth of them come with tools.
	Systems int
	// SystemTokens is about how long they are, from a half to one and a half of it.
	SystemTokens int
	// Chats is the number of conversations, Turns the most that one has.
	Chats, Turns int
	// ChatsPerSecond is how many begin in a second on average.
	ChatsPerSecond float64
	// Styles is how many kinds of clients there are, 1 to [TextStyles].
	Styles    int
	BlockSize int // tokens
}

// DefaultTexts is 20 system prompts and prompts of about 5,000 tokens.
func DefaultTexts() TextPlan {
	return TextPlan{Systems: 20, SystemTokens: 4500, Chats: 300, Turns: 6, ChatsPerSecond: 10, Styles: TextStyles, BlockSize: 16}
}

// TextTurn is one request of a text workload and its answer.
type TextTurn struct {
	// Body is the request as its client sends it.
	Body []byte
	// Prompt is what the engine's template and tokenizer make of it.
	Prompt []uint32
	// Reply is the answer's text and Answer its tokens, the one that ends it included
	// where it is not cut off at a limit (Cut).
	Reply  string
	Answer []uint32
	Cut    bool
}

func (p TextPlan) validate() error {
	for _, v := range []struct {
		name        string
		value, most int
	}{
		{"systems", p.Systems, 1 << 16}, {"system tokens", p.SystemTokens, 1 << 20}, {"chats", p.Chats, 1 << 20},
		{"turns", p.Turns, 1 << 10}, {"styles", p.Styles, TextStyles}, {"block size", p.BlockSize, 1 << 16},
	} {
		if v.value < 1 || v.value > v.most {
			return fmt.Errorf("texts: %s is %d: want 1 to %d", v.name, v.value, v.most)
		}
	}
	if !(p.ChatsPerSecond > 0) {
		return fmt.Errorf("texts: %v chats a second: want more than 0", p.ChatsPerSecond)
	}
	return nil
}

// Make writes the workload that a seed stands for: equal plans and seeds give
// equal texts.
func (p TextPlan) Make(seed uint64) (Trace, []TextTurn, error) {
	if err := p.validate(); err != nil {
		return Trace{}, nil, err
	}
	tok, err := bpe.Load()
	if err != nil {
		return Trace{}, nil, fmt.Errorf("load tokenizer: %w", err)
	}
	w := writer{rng: rand.New(rand.NewPCG(seed, 3)), tok: tok}
	systems := make([]system, p.Systems)
	for i := range systems {
		systems[i] = w.system(p.SystemTokens/2+w.rng.IntN(p.SystemTokens), i%4 == 3)
	}
	type timed struct {
		at   time.Duration
		turn TextTurn
	}
	var list []timed
	start := time.Duration(0)
	for range p.Chats {
		start += time.Duration(w.rng.ExpFloat64() / p.ChatsPerSecond * float64(time.Second))
		c := conversation{system: &systems[w.rng.IntN(p.Systems)], style: style(w.rng.IntN(p.Styles))}
		at := start
		for range 1 + w.rng.IntN(p.Turns) {
			t, err := c.next(&w)
			if err != nil {
				return Trace{}, nil, err
			}
			list = append(list, timed{at, t})
			// The client reads the answer (30 ms a token), thinks and types.
			at += time.Duration(len(t.Answer))*30*time.Millisecond + 2*time.Second + time.Duration(w.rng.ExpFloat64()*float64(8*time.Second))
		}
	}
	slices.SortStableFunc(list, func(a, b timed) int { return int(a.at - b.at) })
	trace := Trace{Name: "texts", BlockSize: p.BlockSize, Entries: make([]Entry, len(list))}
	turns := make([]TextTurn, len(list))
	for i := range list {
		t := &list[i].turn
		turns[i], trace.Entries[i] = *t, t.entry(list[i].at, p.BlockSize)
	}
	return trace, turns, nil
}

// space is where the simulated workers keep these texts' blocks.
func space(blockSize int) kvindex.Namespace {
	return kvindex.Namespace{Model: model, BlockSize: blockSize}
}

func (t *TextTurn) entry(at time.Duration, blockSize int) Entry {
	chain := kvindex.AppendChain(nil, space(blockSize).Root(), slices.Concat(t.Prompt, t.Answer), blockSize)
	full := len(t.Prompt) / blockSize
	return Entry{At: at, ISL: len(t.Prompt), OSL: len(t.Answer), Blocks: chain[:full:full], Answer: chain[full:]}
}

// conversation is one client's, with what was said so far.
type conversation struct {
	system *system
	style  style
	said   []saying
}

// saying is one message of a conversation.
type saying struct{ role, text string }

// next is the conversation's next request and its answer.
func (c *conversation) next(w *writer) (TextTurn, error) {
	if len(c.said) == 0 {
		c.said = append(c.said, saying{"system", c.system.text})
	}
	c.said = append(c.said, saying{"user", w.text(15 + w.rng.IntN(350))})
	t := TextTurn{Body: c.style.body(w.rng, c.system.tools, c.said), Reply: w.text(15 + w.rng.IntN(200)), Cut: w.rng.IntN(10) == 0}
	var err error
	if t.Prompt, err = simserver.ChatTokens(w.tok, t.Body); err != nil {
		return t, err
	}
	t.Answer = w.tok.Encode(t.Reply)
	if !t.Cut {
		t.Answer = append(t.Answer, w.tok.ImEnd())
	}
	c.said = append(c.said, saying{"assistant", t.Reply})
	return t, nil
}

// system is a system prompt.
type system struct {
	text  string
	tools []tool
}

// tool is a function that a client offers.
type tool struct{ name, what, argument string }

// writer makes texts of real words: English ones of the vocabulary, and what it
// has no token for.
type writer struct {
	rng *rand.Rand
	tok *bpe.Tokenizer
}

// foreign are words of more than one token, and of characters that clients may
// escape.
func foreign() []string {
	return []string{
		"naïve", "café", "größer", "Übermaß", "señor", "façade", "こんにちは", "привет", "🙂", "🚀", "“quoted”", "<b>bold</b>",
		"AT&T", "C:\\temp", "\"so\"", "a/b/c", "https://example.com/a?b=1&c=2", "€ 4,50", "Wörterbuch", "élève", "tab\there",
	}
}

func (w *writer) system(tokens int, tools bool) system {
	s := system{text: "You are a helpful assistant." + w.text(tokens)}
	for i := 0; tools && i < 4; i++ {
		s.tools = append(s.tools, tool{w.name(), w.sentence(), w.name()})
	}
	return s
}

// text is about so many tokens in stretches of prose, lists, numbers and code.
// It begins with a letter: tokenizers join what follows a line break.
func (w *writer) text(tokens int) string {
	var b strings.Builder
	b.WriteString(strings.ToUpper(w.name()[:1]))
	for n := 0; n < tokens; {
		before := b.Len()
		switch w.rng.IntN(8) {
		case 0:
			for range 3 + w.rng.IntN(8) {
				fmt.Fprintf(&b, " %d", w.rng.IntN(1_000_000))
			}
		case 1:
			fmt.Fprintf(&b, "\n\tif %s.%s(%s) != nil {\n\t\treturn %d\n\t}\n", w.name(), w.name(), w.name(), w.rng.IntN(100))
		case 2:
			fmt.Fprintf(&b, "\n- %s\n- %s\n", w.sentence(), w.sentence())
		case 3:
			list := foreign()
			for range 1 + w.rng.IntN(6) {
				b.WriteString(" " + list[w.rng.IntN(len(list))] + w.word())
			}
		default:
			for range 1 + w.rng.IntN(4) {
				b.WriteString(" " + w.sentence())
			}
		}
		n += (b.Len() - before) / 4
	}
	b.WriteString(".")
	return b.String()
}

func (w *writer) word() string {
	words := w.tok.Words()
	return w.tok.Text(words[w.rng.IntN(len(words))])
}

// name is an identifier of two or three words.
func (w *writer) name() string {
	var name strings.Builder
	name.WriteString(strings.ToLower(strings.TrimSpace(w.word())))
	for range 1 + w.rng.IntN(2) {
		next := strings.TrimSpace(w.word())
		name.WriteString(strings.ToUpper(next[:1]) + next[1:])
	}
	return name.String()
}

func (w *writer) sentence() string {
	first := strings.TrimSpace(w.word())
	var s strings.Builder
	s.WriteString(strings.ToUpper(first[:1]) + first[1:])
	for range 4 + w.rng.IntN(16) {
		s.WriteString(w.word())
		if w.rng.IntN(9) == 0 {
			s.WriteByte(',')
		}
	}
	s.WriteByte('.')
	return s.String()
}
