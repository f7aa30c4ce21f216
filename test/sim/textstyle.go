package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"unicode/utf16"
)

// style is how one kind of client writes a request.
type style int

// TextStyles is the number of styles.
const TextStyles = 6

// The styles, by what writes like that.
const (
	python   style = iota // a space after , and :, everything beyond ASCII escaped
	browser               // no space, nothing escaped that need not be; content before role
	golang                // no space, <, > and & escaped; messages before the model
	pretty                // indented, content as parts
	php                   // no space, slashes and everything beyond ASCII escaped; parts with the text first
	shuffled              // members in any order, each time anew
)

// member is a name with its written value.
type member struct{ name, value string }

// body writes a chat request.
func (s style) body(rng *rand.Rand, tools []tool, said []saying) []byte {
	messages := make([]string, len(said))
	for i, m := range said {
		messages[i] = s.message(rng, m)
	}
	list := []member{{"model", s.str(model)}, {"messages", s.list(messages)}, {"temperature", "0.7"}, {"stream", "true"}}
	if s == golang {
		list[0], list[1] = list[1], list[0]
	}
	if len(tools) > 0 {
		offered := make([]string, len(tools))
		for i, t := range tools {
			offered[i] = s.tool(t)
		}
		list = append(list, member{"tools", s.list(offered)})
	}
	return []byte(s.object(rng, list))
}

func (s style) message(rng *rand.Rand, m saying) string {
	content := s.str(m.text)
	if s == pretty || s == php {
		part := []member{{"type", s.str("text")}, {"text", content}}
		if s == php {
			part[0], part[1] = part[1], part[0]
		}
		content = s.list([]string{s.object(rng, part)})
	}
	list := []member{{"role", s.str(m.role)}, {"content", content}}
	if s == browser {
		list[0], list[1] = list[1], list[0]
	}
	return s.object(rng, list)
}

// tool writes a function in the order that its template wants: clients share the
// schema, not the spacing.
func (s style) tool(t tool) string {
	plain := func(list ...member) string { return s.object(nil, list) }
	return plain(member{"type", `"function"`}, member{"function", plain(
		member{"name", `"` + t.name + `"`}, member{"description", `"` + t.what + `"`},
		member{"parameters", plain(
			member{"type", `"object"`},
			member{"properties", plain(member{t.argument, plain(member{"type", `"string"`})})},
			member{"required", s.list([]string{`"` + t.argument + `"`})},
		)},
	)})
}

// object writes members; rng is for styles that shuffle, nil keeps the order.
func (s style) object(rng *rand.Rand, list []member) string {
	if s == shuffled && rng != nil {
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	colon := ":"
	if s == python || s == pretty {
		colon = ": "
	}
	written := make([]string, len(list))
	for i, m := range list {
		written[i] = s.str(m.name) + colon + m.value
	}
	return s.join("{", written, "}")
}

func (s style) list(items []string) string { return s.join("[", items, "]") }

func (s style) join(open string, items []string, end string) string {
	switch s {
	case python:
		return open + strings.Join(items, ", ") + end
	case pretty:
		return open + "\n  " + strings.Join(items, ",\n  ") + "\n" + end
	default:
		return open + strings.Join(items, ",") + end
	}
}

// str writes a string.
func (s style) str(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '/' && s == php:
			b.WriteString(`\/`)
		case r < ' ', s == golang && (r == '<' || r == '>' || r == '&'), (s == python || s == php) && r > '~' && r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		case (s == python || s == php) && r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
