package workers

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
)

// TestContent plays batches of events and shows the records they amount to.
// Blocks are words; two tokens each, made of the word unless "word=text" says
// otherwise. Our hashes are shown as the words whose blocks they are.
func TestContent(t *testing.T) { contentScript(t, "testdata/content.txt") }

// TestContentGroups does so for hybrid models: blocks of two tokens in the first
// group, "a+b" is a block of two of them.
func TestContentGroups(t *testing.T) { contentScript(t, "testdata/groups.txt") }

func contentScript(t *testing.T, path string) {
	c := newContent("w", 0, "m", nil)
	names := map[kvindex.BlockHash]string{}
	words := map[blockKey]bool{} // that ever occurred
	seq := uint64(0)
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "said":
			said, err := kvindex.ParseGroups(strings.TrimSpace(d.Input))
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			c = newContent("w", 0, "m", said)
			return ""
		case "batch":
		default:
			d.Fatalf(t, "unknown command %s", d.Cmd)
		}
		var b enginewire.Batch
		for line := range strings.Lines(d.Input) {
			b.Events = append(b.Events, parseEvent(t, d, line))
		}
		for i := range b.Events {
			for _, h := range b.Events[i].Hashes {
				words[blockKey{uint16(b.Events[i].Group), h}] = true
			}
		}
		records, n := c.apply(b, seq)
		seq++
		for k := range words {
			if h, _, ok := c.group(k.group).Lookup(k.hash); ok && names[h] == "" {
				names[h] = string(k.hash)
			}
		}
		var out strings.Builder
		for i := range records {
			fmt.Fprintln(&out, describe(&records[i], names))
		}
		var held []int
		for t := range kvindex.Tier(kvindex.NumTiers) {
			sum := 0
			for _, m := range c.groups {
				sum += m.Len(t)
			}
			held = append(held, sum)
		}
		if c.layout.changed {
			c.layout.changed = false
			fmt.Fprintf(&out, "groups %+v\n", c.layout.hello())
		}
		fmt.Fprintf(&out, "events=%d orphans=%d strangers=%d held=%v\n", n.events, n.orphans, n.strangers, held)
		return out.String()
	})
}

func parseEvent(t *testing.T, d *datadriven.TestData, line string) enginewire.Event {
	fields := strings.Fields(line)
	e := enginewire.Event{BlockSize: 2}
	switch fields[0] {
	case "stored", "moved":
		e.Kind = enginewire.Stored
	case "removed":
		e.Kind = enginewire.Removed
	case "cleared":
		e.Kind = enginewire.Cleared
	default:
		d.Fatalf(t, "event %q", fields[0])
	}
	gaps := false
	for _, f := range fields[1:] {
		switch key, value, _ := strings.Cut(f, ":"); key {
		case "after":
			h := enginewire.Hash(value)
			e.Parent = &h
		case "tier":
			e.Tier = map[string]kvindex.Tier{"host": kvindex.Host, "disk": kvindex.Disk}[value]
		case "lora":
			e.LoRA = value
		case "group":
			e.Group = int(value[0] - '0')
		case "kind":
			e.GroupKind = value
		case "window":
			fmt.Sscan(value, &e.Window)
		case "gaps": // tokens that do not fit
			e.Tokens, e.BlockSize, gaps = nil, 0, true
		default:
			word, text, given := strings.Cut(f, "=")
			if !given {
				text = word
			}
			e.Hashes = append(e.Hashes, enginewire.Hash(word))
			if fields[0] != "stored" || gaps {
				continue
			}
			parts := strings.Split(text, "+")
			e.BlockSize = 2 * len(parts)
			for _, p := range parts {
				e.Tokens = append(e.Tokens, uint32(p[0]), uint32(len(p)))
			}
		}
	}
	return e
}

func describe(r *kvindex.Record, names map[kvindex.BlockHash]string) string {
	list := func(hashes []kvindex.BlockHash) string {
		var words []string
		for _, h := range hashes {
			words = append(words, names[h])
		}
		return strings.Join(words, " ")
	}
	out := fmt.Sprintf("%s %s", r.Owner.Tier, r.Kind)
	if r.Kind == kvindex.KindStored && r.Stored.Group > 0 {
		out += fmt.Sprintf(" group %d", r.Stored.Group)
	}
	if r.Kind == kvindex.KindRemoved && r.Removed.Group > 0 {
		out += fmt.Sprintf(" group %d", r.Removed.Group)
	}
	switch r.Kind {
	case kvindex.KindStored:
		out += " " + list(r.Stored.Hashes)
		if parent, named := names[r.Stored.Parent]; named {
			out += " after " + parent
		} else if r.Stored.Parent == 0 {
			out += " after ?"
		}
	case kvindex.KindRemoved:
		out += " " + list(r.Removed.Hashes)
	default: // no blocks
	}
	return out
}

// TestContentIsBounded: names of blocks that are gone do not pile up.
func TestContentIsBounded(t *testing.T) {
	c := newContent("w", 0, "m", nil)
	for i := range 100_000 {
		h := []enginewire.Hash{enginewire.IntHash(uint64(i))}
		c.apply(enginewire.Batch{Events: []enginewire.Event{
			{Kind: enginewire.Stored, Hashes: h, Tokens: []uint32{uint32(i)}, BlockSize: 1},
			{Kind: enginewire.Removed, Hashes: h},
		}}, uint64(i))
	}
	if n := c.bytes(); n > 48<<10 {
		t.Errorf("%d bytes for nothing", n)
	}
}

func FuzzParseReplay(f *testing.F) {
	f.Add([]byte("||12345678|payload"))
	f.Add([]byte("|12345678|"))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := parseReplay(bytes.Split(data, []byte("|")))
		if err == nil && len(b.payload) > len(data) {
			t.Error("more than there is")
		}
	})
}
