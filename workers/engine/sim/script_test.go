package sim

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/kvlane/kvlane/internal/timing"
)

// script runs the commands of testdata/*.txt on one engine:
//
//	engine block=4 blocks=16 batch=16 seqs=4 len=64 stop=0 cache=true setup=20 host=0 early empty-first price=0
//	    a new engine; a step takes 10 ms + 1 a prefilled token + 5 + 1 a
//	    decoding sequence, in ms; a transfer setup + 1 a token, a load from the host
//	    tier half of 1 a token
//	submit id=A at=0 content=(1-2) tokens=10 ...
//	    a prompt given by the names of its blocks
//	submit id=A at=0 prompt=(1-8,20) max=1 min=0 hold ignore_eos remote=0 lora= salt= seed=0
//	run until=50
//	    calls Step at every NextAt; without until, until there is none
//	pace until=50
//	step at=50
//	    one late call
//	abort id=A at=3; release id=A at=3; clear at=3
//	stats
//
// Times are in ms. Blocks are named b1, b2, ... in the order they appear.
type script struct {
	core  *Core
	names map[BlockID]string
}

func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		t.Helper()
		var s script
		datadriven.RunTest(t, path, s.command)
	})
}

func (s *script) command(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	var id string
	var at, until float64 = 0, -1
	d.MaybeScanArgs(t, "at", &at)
	d.MaybeScanArgs(t, "until", &until)
	d.MaybeScanArgs(t, "id", &id)
	now := ms(at)
	switch d.Cmd {
	case "engine":
		return s.engine(t, d)
	case "submit":
		if err := s.core.Submit(now, scriptRequest(t, d)); err != nil {
			return err.Error() + "\n"
		}
		return ""
	case "run":
		return s.run(until)
	case "pace":
		s.core.Pace(ms(until))
		return ""
	case "step":
		return s.show(now, s.core.Step(now))
	case "abort":
		return s.show(now, s.core.Abort(now, id))
	case "clear":
		return s.show(now, s.core.Clear(now))
	case "release":
		return fmt.Sprintln(s.core.Release(now, id))
	case "stats":
		return showStats(s.core.Stats())
	default:
		d.Fatalf(t, "unknown command %q", d.Cmd)
		return ""
	}
}

func (s *script) engine(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	stop := 0
	setup := 20.0
	cfg := Config{
		Timing:    timing.Model{Prefill: timing.Prefill{A: 10, B: 1}, Decode: timing.Decode{D: 5, E: 1}},
		BlockSize: 4, Blocks: 16, MaxBatchedTokens: 16, MaxSeqs: 4, MaxModelLen: 64, PrefixCaching: true,
		HostBytesPerSecond: 2e6, KVBytesPerToken: 1000, Transfer: timing.Transfer{BytesPerSecond: 1e6},
	}
	for name, value := range map[string]any{
		"block": &cfg.BlockSize, "blocks": &cfg.Blocks, "batch": &cfg.MaxBatchedTokens, "seqs": &cfg.MaxSeqs,
		"host": &cfg.HostBlocks, "len": &cfg.MaxModelLen, "cache": &cfg.PrefixCaching, "stop": &stop, "setup": &setup, "g": &cfg.Timing.Prefill.G, "f": &cfg.Timing.Decode.F,
	} {
		d.MaybeScanArgs(t, name, value)
	}
	cfg.Transfer.SetupMs = setup
	cfg.EarlyEvents, cfg.EmptyFirst = d.HasArg("early"), d.HasArg("empty-first")
	price := 0.0
	d.MaybeScanArgs(t, "price", &price)
	if price > 0 { // a decoding token costs it, a prefilled one a tenth
		cfg.StepMs = func(s Step) float64 {
			return price*float64(s.Decodes) + price/10*float64(s.Tokens) + float64(s.Context)/1000
		}
	}
	// Generated tokens are 100 to 999.
	cfg.Next = func(state uint64) (uint32, bool) {
		return 100 + uint32(state%900), stop > 0 && mix(state, 2)%uint64(stop) == 0
	}
	core, err := New(cfg)
	if err != nil {
		return err.Error() + "\n"
	}
	s.core, s.names = core, make(map[BlockID]string)
	return ""
}

func scriptRequest(t *testing.T, d *datadriven.TestData) Request {
	t.Helper()
	r := Request{MaxTokens: 1, HoldKV: d.HasArg("hold"), IgnoreEOS: d.HasArg("ignore_eos")}
	for name, value := range map[string]any{
		"tokens": &r.PromptTokens, "id": &r.ID, "max": &r.MaxTokens, "min": &r.MinTokens, "remote": &r.RemoteTokens, "lora": &r.LoRA, "salt": &r.Salt, "seed": &r.Seed,
	} {
		d.MaybeScanArgs(t, name, value)
	}
	for _, arg := range d.CmdArgs {
		if arg.Key != "prompt" && arg.Key != "content" {
			continue
		}
		for _, v := range arg.Vals {
			from, to, ok := strings.Cut(v, "-")
			if !ok {
				to = from
			}
			a, errA := strconv.Atoi(from)
			b, errB := strconv.Atoi(to)
			if errA != nil || errB != nil {
				d.Fatalf(t, "prompt %q: %v %v", v, errA, errB)
			}
			for ; a <= b; a++ {
				if arg.Key == "content" {
					r.Content = append(r.Content, BlockID(a))
					continue
				}
				r.Prompt = append(r.Prompt, uint32(a))
			}
		}
	}
	return r
}

func (s *script) run(until float64) string {
	var sb strings.Builder
	for range 1000 {
		at, ok := s.core.NextAt()
		if !ok || until >= 0 && at > ms(until) {
			return sb.String()
		}
		sb.WriteString(s.show(at, s.core.Step(at)))
	}
	return sb.String() + "... and so on\n"
}

func (s *script) show(at time.Duration, out Output) string {
	var sb strings.Builder
	line := func(format string, args ...any) {
		fmt.Fprintf(&sb, "%6.1f  ", float64(at)/1e6)
		fmt.Fprintf(&sb, format+"\n", args...)
	}
	for _, t := range out.Tokens {
		text := fmt.Sprintf("token %s[%d] = %d", t.ID, t.Index, t.Token)
		if t.Index == 0 {
			text += fmt.Sprintf(" cached %d", t.CachedTokens)
		}
		if t.Preempted > 0 {
			text += fmt.Sprintf(" preempted %d", t.Preempted)
		}
		if t.Finish != Running {
			text += " " + string(t.Finish)
		}
		line("%s", text)
	}
	for _, e := range out.Events {
		line("%s", s.event(e))
	}
	for _, e := range out.HostEvents {
		line("host: %s", s.event(e))
	}
	return sb.String()
}

func (s *script) event(e Event) string {
	switch e.Kind {
	case Stored:
		parent := "root"
		if e.HasParent {
			parent = s.name(e.Parent)
		}
		return fmt.Sprintf("stored %s after %s: %v%s", s.list(e.Blocks), parent, e.Tokens, namespace(e))
	case Removed:
		return "removed " + s.list(e.Blocks)
	default:
		return "cleared"
	}
}

func namespace(e Event) string {
	if e.LoRA == "" && e.Salt == "" {
		return ""
	}
	return fmt.Sprintf(" lora %q salt %q", e.LoRA, e.Salt)
}

func (s *script) name(id BlockID) string {
	if _, ok := s.names[id]; !ok {
		s.names[id] = fmt.Sprintf("b%d", len(s.names)+1)
	}
	return s.names[id]
}

func (s *script) list(ids []BlockID) string {
	var names []string
	for _, id := range ids {
		names = append(names, s.name(id))
	}
	return strings.Join(names, ",")
}

func showStats(st Stats) string {
	return fmt.Sprintf("running %d waiting %d held %d; blocks used %d cached %d; queued %d context %d\n"+
		"query %d hit %d transferred %d prompt %d generated %d; preemptions %d steps %d busy %v\n",
		st.Running, st.Waiting, st.HeldRequests, st.UsedBlocks, st.CachedBlocks, st.QueuedTokens, st.ContextTokens,
		st.QueryTokens, st.HitTokens, st.TransferredTokens, st.PromptTokens, st.GeneratedTokens, st.Preemptions, st.Steps, st.BusyTime)
}

func ms(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }
