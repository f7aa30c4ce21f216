package policies

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/kvlane/kvlane/kvindex"
)

// script drives one policy over a fleet that is written down. Blocks are 10
// tokens; a prefill costs 1 ms a token, a decode step 5 ms and 1 ms for 100
// tokens of context.
//
//	policy NAME workers=3
//	worker 0 running=2 waiting=1 used=50 queued=30 context=500 left=4 down
//	    what worker 0 shows from now on; the cache has 100 blocks
//	pick id=A at=0 isl=45 blocks=(1,2,3,4) overlap=(0,2,4)
//	first id=A at=10; done id=A at=20 output=5
type script struct {
	policy  Policy
	workers []Worker
	down    []bool
	open    map[string]*Request
	on      map[string]int
}

func (s *script) Workers() int       { return len(s.workers) }
func (s *script) Up(w int) bool      { return !s.down[w] }
func (s *script) Look(w int) *Worker { return &s.workers[w] }

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
	var at float64
	d.MaybeScanArgs(t, "id", &id)
	d.MaybeScanArgs(t, "at", &at)
	now := time.Duration(at * float64(time.Millisecond))
	switch d.Cmd {
	case "policy":
		n := 3
		d.MaybeScanArgs(t, "workers", &n)
		*s = script{policy: named(t, d.CmdArgs[0].Key), workers: make([]Worker, n), down: make([]bool, n), open: map[string]*Request{}, on: map[string]int{}}
		for i := range s.workers {
			s.workers[i].KVTotal = 100
		}
	case "worker":
		var i int
		fmt.Sscan(d.CmdArgs[0].Key, &i)
		w, left := Worker{KVTotal: 100}, 0
		for name, v := range map[string]*int{
			"running": &w.Running, "waiting": &w.Waiting, "used": &w.KVUsed, "queued": &w.QueuedTokens, "context": &w.ContextTokens, "left": &left,
		} {
			d.MaybeScanArgs(t, name, v)
		}
		w.StepLeft = time.Duration(left) * time.Millisecond
		s.workers[i], s.down[i] = w, d.HasArg("down")
	case "pick":
		return s.pick(t, d, id, now)
	case "first":
		s.policy.First(s.open[id], s.on[id], now)
	case "done":
		s.policy.Done(s.open[id], s.on[id], now)
		delete(s.open, id)
	default:
		d.Fatalf(t, "unknown command %q", d.Cmd)
	}
	return ""
}

func (s *script) pick(t *testing.T, d *datadriven.TestData, id string, now time.Duration) string {
	t.Helper()
	r := &Request{ID: id, Index: len(s.on), Now: now, Overlap: make([]int, len(s.workers))}
	d.ScanArgs(t, "isl", &r.ISL)
	d.MaybeScanArgs(t, "output", &r.Output)
	for _, arg := range d.CmdArgs {
		for i, v := range arg.Vals {
			var n int
			fmt.Sscan(v, &n)
			switch arg.Key {
			case "blocks":
				r.Blocks = append(r.Blocks, kvindex.BlockHash(n))
			case "overlap":
				r.Overlap[i] = n
			}
		}
	}
	s.open[id] = r
	s.on[id] = s.policy.Pick(r, s)
	return fmt.Sprintln(s.on[id])
}

func named(t *testing.T, name string) Policy {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 1))
	prefill := func(_, uncached, _ int) float64 { return float64(uncached) }
	decode := func(_, sequences, context int) float64 {
		if sequences == 0 {
			return 0
		}
		return 5 + float64(context)/100
	}
	switch strings.TrimSpace(name) {
	case "round-robin":
		return &RoundRobin{}
	case "least-requests":
		return &LeastRequests{Rand: rng}
	case "power-of-two":
		return &PowerOfTwo{Rand: rng}
	case "random":
		return &Random{Rand: rng}
	case "affinity":
		return &Affinity{Depth: 2}
	case "bounded":
		return &BoundedHash{Depth: 2, Bound: 1.25}
	case "dynamo":
		return &Dynamo{Rand: rng, BlockSize: 10, Scale: 1}
	case "dynamo-scale2":
		return &Dynamo{Rand: rng, BlockSize: 10, Scale: 2}
	case "dynamo-decay1":
		return &Dynamo{Rand: rng, BlockSize: 10, Scale: 1, Decay: 1}
	case "llm-d-3222":
		return &Weighted{Rand: rng, Prefix: 3, Queue: 2, KVUse: 2, NoHitLRU: 2}
	case "token-aware":
		return &TokenAware{Rand: rng, BlockSize: 10, Threshold: 0.8, Margin: 100}
	case "lmetric":
		return &LMetric{Rand: rng, BlockSize: 10}
	case "mooncake":
		return &Mooncake{Rand: rng, BlockSize: 10, Prefill: prefill}
	case "oracle":
		return &Oracle{Rand: rng, BlockSize: 10, Chunk: 100, Alpha: 0.2, Prefill: prefill, Decode: decode}
	}
	t.Fatalf("policy %q", name)
	return nil
}
