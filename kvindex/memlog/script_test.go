package memlog

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/kvlane/kvlane/kvindex"
)

// record reads "kind worker [tier=0] [epoch=1] [term=1] [seq=0] [group=0] [parent=0] numbers...".
// The numbers are block hashes; of a learned text they are chunks, blocks 100
// times as high.
func record(t *testing.T, line string) kvindex.Record {
	t.Helper()
	f := strings.Fields(line)
	args := map[string]uint64{"epoch": 1, "term": 1}
	var numbers []uint64
	for _, s := range f[2:] {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			value = key
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if ok {
			args[key] = n
		} else {
			numbers = append(numbers, n)
		}
	}
	r := kvindex.Record{
		Owner: kvindex.Owner{Worker: kvindex.WorkerID(f[1]), Tier: kvindex.Tier(args["tier"])},
		Epoch: args["epoch"], Term: args["term"], Seq: args["seq"], Kind: kvindex.KindStored,
	}
	for r.Kind.String() != f[0] {
		r.Kind++
		if r.Kind > kvindex.KindBye {
			t.Fatalf("kind of %q", line)
		}
	}
	body(&r, args, numbers)
	return r
}

func body(r *kvindex.Record, args map[string]uint64, numbers []uint64) {
	var hashes []kvindex.BlockHash
	for _, n := range numbers {
		hashes = append(hashes, kvindex.BlockHash(n))
	}
	switch r.Kind {
	case kvindex.KindStored:
		r.Stored = &kvindex.Stored{Group: uint16(args["group"]), Parent: kvindex.BlockHash(args["parent"]), Hashes: hashes}
	case kvindex.KindRemoved:
		r.Removed = &kvindex.Removed{Hashes: hashes}
	case kvindex.KindLearned:
		r.Learned = &kvindex.Learned{}
		for _, n := range numbers {
			r.Learned.Chunks = append(r.Learned.Chunks, kvindex.ChunkHash(n))
			r.Learned.Blocks = append(r.Learned.Blocks, kvindex.BlockHash(100*n))
		}
	case kvindex.KindHello:
		r.Hello = &kvindex.Hello{Address: string(r.Owner.Worker), Ready: true}
	case kvindex.KindLoad:
		r.Load = &kvindex.Load{Running: uint32(args["running"]), Accepted: []string{"b1"}, Done: []kvindex.Sample{{Booking: "b0"}}}
	case kvindex.KindBooking:
		r.Booking = &kvindex.Booking{ID: "b1"}
	default:
	}
}

// show writes a record for people.
func show(r *kvindex.Record) string {
	s := fmt.Sprintf("%s %s epoch=%d term=%d seq=%d", r.Kind, r.Owner, r.Epoch, r.Term, r.Seq)
	switch r.Kind {
	case kvindex.KindStored:
		s += fmt.Sprintf(" group=%d parent=%d %d", r.Stored.Group, r.Stored.Parent, r.Stored.Hashes)
	case kvindex.KindRemoved:
		s += fmt.Sprintf(" %d", r.Removed.Hashes)
	case kvindex.KindLearned:
		s += fmt.Sprintf(" %d", r.Learned.Chunks)
	case kvindex.KindLoad:
		s += fmt.Sprintf(" running=%d accepted=%v done=%d", r.Load.Running, r.Load.Accepted, len(r.Load.Done))
	default:
	}
	return s + "\n"
}

// present is what a new tail gets before anything live.
func present(l *Log) []kvindex.Record {
	t := &tail{}
	defer l.leave(t)
	return l.join(t)
}

func TestLogScript(t *testing.T) {
	l := New(Options{})
	datadriven.RunTest(t, "testdata/log.txt", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		switch d.Cmd {
		case "new":
			var bytes int
			d.MaybeScanArgs(t, "learned", &bytes)
			l = New(Options{LearnedBytes: bytes})
		case "append": // one batch
			var batch []kvindex.Record
			for line := range strings.Lines(d.Input) {
				batch = append(batch, record(t, line))
			}
			if err := l.Append(context.Background(), batch); err != nil {
				fmt.Fprintln(&out, err)
			}
		case "present":
			for _, r := range present(l) {
				out.WriteString(show(&r))
			}
		case "drop":
			l.Drop(kvindex.WorkerID(d.CmdArgs[0].Key))
		case "stats":
			fmt.Fprintf(&out, "%+v\n", l.Stats())
		default:
			t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
		}
		if out.Len() == 0 {
			return "ok\n"
		}
		return out.String()
	})
}
