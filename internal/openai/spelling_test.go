package openai

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// chat is a naive model of a conversation, to be spelt in many ways.
type chat struct {
	tools    string // raw JSON, as compact wants it; empty for none
	messages []chatMessage
}

type chatMessage struct {
	role, name, reasoning string
	content               []piece
	call, extra           string // arguments of a tool call; value of an unknown member
}

// piece is a run of text, or an image.
type piece struct{ text, image string }

// normal is what the canonical stream stands for.
func (c chat) normal() string {
	var sb strings.Builder
	fmt.Fprintf(&sb, "%q", c.tools)
	for _, m := range c.messages {
		fmt.Fprintf(&sb, "[%q %q %q %q %q", m.role, m.name, m.reasoning, m.call, m.extra)
		run := ""
		for _, p := range m.content {
			if p.image == "" {
				run += p.text
				continue
			}
			if run != "" {
				fmt.Fprintf(&sb, " %q", run)
			}
			fmt.Fprintf(&sb, " image %q", p.image)
			run = ""
		}
		if run != "" {
			fmt.Fprintf(&sb, " %q", run)
		}
		sb.WriteString("]")
	}
	return sb.String()
}

// randomChat is small and made of few characters, so that two of them are
// often nearly the same.
func randomChat(rng *rand.Rand) chat {
	var c chat
	if rng.IntN(3) == 0 {
		c.tools = `[{"f":"` + strconv.Itoa(rng.IntN(2)) + `"}]`
	}
	for range 1 + rng.IntN(2) {
		m := chatMessage{role: word(rng), content: randomContent(rng)}
		for _, s := range []*string{&m.name, &m.reasoning, &m.call, &m.extra} {
			if rng.IntN(4) == 0 {
				*s = "n" + word(rng)
			}
		}
		c.messages = append(c.messages, m)
	}
	return c
}

func randomContent(rng *rand.Rand) []piece {
	var ps []piece
	for range rng.IntN(3) {
		p := piece{text: word(rng)}
		if rng.IntN(4) == 0 {
			p = piece{image: "i" + word(rng)}
		}
		ps = append(ps, p)
	}
	return ps
}

// word is up to three characters, among them those of frames and escapes.
func word(rng *rand.Rand) string {
	const letters = "\x00\x00MCXVPHO\"\\/\n\x1faé🙂"
	rs := []rune(letters)
	var out []rune
	for range rng.IntN(4) {
		out = append(out, rs[rng.IntN(len(rs))])
	}
	return string(out)
}

// speller writes JSON in one of many spellings.
type speller struct{ rng *rand.Rand }

func (s speller) space() string {
	return []string{"", "", " ", "\n\t", "\r\n "}[s.rng.IntN(5)]
}

func (s speller) str(v string) string {
	var sb strings.Builder
	for _, r := range v {
		switch {
		case r > 0xffff && s.rng.IntN(2) == 0:
			r -= 0x10000
			fmt.Fprintf(&sb, `\u%04x\u%04X`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		case r < ' ' && r != '\n' || r <= 0xffff && s.rng.IntN(4) == 0:
			fmt.Fprintf(&sb, `\u%04x`, r)
		case r == '\n':
			sb.WriteString(`\n`)
		case r == '"' || r == '\\' || r == '/' && s.rng.IntN(2) == 0:
			sb.WriteString(`\` + string(r))
		default:
			sb.WriteRune(r)
		}
	}
	return `"` + sb.String() + `"`
}

// object takes names and raw values by turns and shuffles them.
func (s speller) object(kv ...string) string {
	var ms []string
	for i := 0; i < len(kv); i += 2 {
		ms = append(ms, s.str(kv[i])+s.space()+":"+s.space()+kv[i+1])
	}
	s.rng.Shuffle(len(ms), func(i, j int) { ms[i], ms[j] = ms[j], ms[i] })
	return s.list("{", "}", ms)
}

func (s speller) list(before, after string, items []string) string {
	return before + s.space() + strings.Join(items, s.space()+","+s.space()) + s.space() + after
}

func (s speller) body(c chat) string {
	var ms []string
	for _, m := range c.messages {
		ms = append(ms, s.message(m))
	}
	kv := []string{"messages", s.list("[", "]", ms), "model", s.str("m")}
	if c.tools != "" {
		kv = append(kv, "tools", s.space()+strings.ReplaceAll(c.tools, ":", s.space()+":"+s.space()))
	}
	return s.space() + s.object(kv...) + s.space()
}

func (s speller) message(m chatMessage) string {
	kv := []string{"role", s.str(m.role)}
	for _, f := range []struct{ name, value string }{{"name", m.name}, {"reasoning", m.reasoning}, {"x_extra", m.extra}} {
		switch {
		case f.value != "":
			kv = append(kv, f.name, s.str(f.value))
		case s.rng.IntN(3) == 0:
			kv = append(kv, f.name, "null")
		}
	}
	if m.call != "" {
		kv = append(kv, "tool_calls", s.list("[", "]", []string{s.list("{", "}", []string{`"arguments"` + s.space() + ":" + s.str(m.call)})}))
	}
	if content := s.content(m.content); content != "" {
		kv = append(kv, "content", content)
	}
	return s.object(kv...)
}

// content is a string where it can be, or parts, or nothing.
func (s speller) content(ps []piece) string {
	all, media := "", false
	var items []string
	for _, p := range ps {
		media = media || p.image != ""
		all += p.text
		if p.image != "" {
			items = append(items, s.object("type", s.str("image_url"), "image_url", s.object("url", s.str(p.image))))
			continue
		}
		items = append(items, s.object("type", s.str("text"), "text", s.str(p.text)))
	}
	switch {
	case all == "" && !media:
		return []string{"", "null", `""`, "[ ]", s.list("[", "]", items)}[s.rng.IntN(5)]
	case !media && s.rng.IntN(2) == 0:
		return s.str(all)
	}
	return s.list("[", "]", items)
}

// TestSpelling spells random conversations in random ways: two bodies have
// equal streams if, and only if, they say the same.
func TestSpelling(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := speller{rng}
	normals := map[string]string{} // stream to normal form
	for range 10_000 {
		c := randomChat(rng)
		body := s.body(c)
		r := mustParse(t, APIChat, body)
		stream, normal := streams(r)[0], c.normal()
		if other := streams(mustParse(t, APIChat, s.body(c)))[0]; other != stream {
			t.Fatalf("two spellings of %s: %q and %q", normal, stream, other)
		}
		if was, ok := normals[stream]; ok && was != normal {
			t.Fatalf("%s and %s have the stream %q", was, normal, stream)
		}
		normals[stream] = normal
	}
	seen := map[string]bool{}
	for _, n := range normals {
		if seen[n] {
			t.Fatalf("%s has two streams", n)
		}
		seen[n] = true
	}
}
