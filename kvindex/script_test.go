package kvindex

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// The scripts name an owner "worker", "worker/tier" or "worker/rank/tier", and a
// block by a word.

func scriptOwner(t *testing.T, s string) Owner {
	t.Helper()
	parts := strings.Split(s, "/")
	o := Owner{Worker: WorkerID(parts[0])}
	if len(parts) == 3 {
		rank, err := strconv.ParseUint(parts[1], 10, 16)
		if err != nil {
			t.Fatalf("owner %s: %v", s, err)
		}
		o.Rank = uint16(rank)
	}
	if len(parts) > 1 {
		for o.Tier < NumTiers && o.Tier.String() != parts[len(parts)-1] {
			o.Tier++
		}
	}
	return o
}

// words gives block names to hashes and back.
type words struct {
	hashes map[string]BlockHash
	names  map[BlockHash]string
}

func newWords() words { return words{map[string]BlockHash{}, map[BlockHash]string{}} }

func (w words) hash(name string) BlockHash {
	h, ok := w.hashes[name]
	if !ok {
		h = BlockHash(len(w.hashes) + 1)
		w.hashes[name], w.names[h] = h, name
	}
	return h
}

func (w words) list(names []string) []BlockHash {
	var list []BlockHash
	for _, n := range names {
		list = append(list, w.hash(n))
	}
	return list
}

// scriptRecord reads "kind owner [epoch=1] [term=1] [seq=0] blocks...".
func scriptRecord(t *testing.T, w words, line string) Record {
	t.Helper()
	f := strings.Fields(line)
	r := Record{Owner: scriptOwner(t, f[1]), Epoch: 1, Term: 1}
	for ; len(f) > 2; f = append(f[:2:2], f[3:]...) {
		key, value, ok := strings.Cut(f[2], "=")
		if !ok {
			break
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		*map[string]*uint64{"epoch": &r.Epoch, "term": &r.Term, "seq": &r.Seq}[key] = n
	}
	for r.Kind = KindStored; r.Kind.String() != f[0]; r.Kind++ {
		if r.Kind > KindBye {
			t.Fatalf("kind of %q", line)
		}
	}
	blocks := w.list(f[2:])
	switch r.Kind {
	case KindStored:
		r.Stored = &Stored{Hashes: blocks}
	case KindRemoved:
		r.Removed = &Removed{Hashes: blocks}
	case KindLearned:
		r.Learned = &Learned{}
	case KindHello:
		r.Hello = &Hello{}
	case KindLoad:
		r.Load = &Load{}
	default:
	}
	return r
}

func TestIndexScript(t *testing.T) {
	x, w := NewIndex(), newWords()
	datadriven.RunTest(t, "testdata/index.txt", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		switch d.Cmd {
		case "new":
			x, w = NewIndex(), newWords()
		case "apply":
			for line := range strings.Lines(d.Input) {
				r := scriptRecord(t, w, line)
				if err := x.Apply(&r); err != nil {
					fmt.Fprintf(&out, "%s: %v\n", strings.TrimSpace(line), err)
				}
			}
		case "drop":
			x.Drop(WorkerID(d.CmdArgs[0].Key))
		case "blocks":
			for _, b := range x.Blocks(scriptOwner(t, d.CmdArgs[0].Key)) {
				fmt.Fprintf(&out, "%s ", w.names[b])
			}
		case "overlap":
			for _, m := range sorted(x.Overlap(w.list(strings.Fields(d.Input)), nil)) {
				fmt.Fprintf(&out, "%s/%d %v\n", m.Worker, m.Rank, m.Depth)
			}
		case "stats":
			s := x.Stats()
			fmt.Fprintf(&out, "owners=%d blocks=%d memberships=%d repeats=%d gaps=%d fenced=%d unknown=%d\n",
				s.Owners, s.Blocks, s.Memberships, s.Repeats, s.Gaps, s.Fenced, s.UnknownRemoved)
		default:
			t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
		}
		if out.Len() == 0 {
			return "ok\n"
		}
		return strings.TrimRight(out.String(), " \n") + "\n"
	})
}

// In the prefix map's script a letter of text stands for 64 equal bytes, a
// letter of blocks for a block after the ones before it.
func TestPrefixMapScript(t *testing.T) {
	m := NewPrefixMap(1 << 20)
	names := map[BlockHash]byte{}
	chain := func(s string) []BlockHash {
		var list []BlockHash
		var h BlockHash
		for i := range len(s) {
			h = h.Next([]uint32{uint32(s[i])}, nil)
			names[h] = s[i]
			list = append(list, h)
		}
		return list
	}
	chunks := func(text string) []ChunkHash {
		h := NewChunkHasher(1)
		for _, c := range text {
			_, _ = h.WriteString(strings.Repeat(string(c), ChunkSize))
		}
		return h.Chunks()
	}
	datadriven.RunTest(t, "testdata/prefixmap.txt", func(t *testing.T, d *datadriven.TestData) string {
		text, blocks := "", ""
		more, tokens, size, budget := 0, 0, 16, 1<<20
		d.MaybeScanArgs(t, "text", &text)
		d.MaybeScanArgs(t, "blocks", &blocks)
		d.MaybeScanArgs(t, "more", &more)
		d.MaybeScanArgs(t, "tokens", &tokens)
		d.MaybeScanArgs(t, "size", &size)
		d.MaybeScanArgs(t, "budget", &budget)
		defer func() { checkPrefixMap(t, m) }()
		switch d.Cmd {
		case "new":
			m = NewPrefixMap(budget)
			return "ok\n"
		case "learn":
			m.Learn(&Learned{
				Seed: 1, Chunks: chunks(text), Bytes: uint32(ChunkSize*len(text) + more),
				Tokens: uint32(tokens), BlockSize: uint32(size), Blocks: chain(blocks),
			})
			s := m.Stats()
			return fmt.Sprintf("chunks=%d texts=%d learned=%d ignored=%d evicted=%d\n",
				s.Chunks, s.Texts, s.Learned, s.Ignored, s.Evicted)
		case "lookup":
			k := m.Lookup(chunks(text), nil)
			out := fmt.Sprintf("chunks=%d tokens=%d size=%d blocks=", k.Chunks, k.Tokens, k.BlockSize)
			for _, b := range k.Blocks {
				out += string(names[b])
			}
			return out + "\n"
		case "walk": // the depth at each chunk
			out := ""
			for i := range text {
				out += fmt.Sprintf("%c=%d ", text[i], m.Lookup(chunks(text[:i+1]), nil).Tokens)
			}
			return strings.TrimSpace(out) + "\n"
		}
		t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
		return ""
	})
}
