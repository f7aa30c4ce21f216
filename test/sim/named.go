package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/picker"
	"github.com/kvlane/kvlane/picker/flow"
	"github.com/kvlane/kvlane/test/sim/policies"
)

// Named is a policy by name.
type Named struct {
	Name string
	// What it is, in a few words.
	What string
	New  func(Setup) policies.Policy
}

// Ours and Theirs are the two that the goals are about, Admits is ours with flow
// control; Oracle is a bound.
const (
	Ours   = "kvlane"
	Admits = "kvlane-flow"
	Theirs = "dynamo"
	Oracle = "oracle"
)

// Policies are all that can be simulated, ours first.
func Policies() []Named {
	list := []Named{
		{Ours, "the production picker, policy kv", func(s Setup) policies.Policy { return newOurs(s, picker.DefaultConfig()) }},
		{Admits, "the same with flow control, clients send targets", admits},
		{Theirs, "Dynamo's default cost", func(s Setup) policies.Policy { return dynamo(s, 1, 0) }},
		{"dynamo-scale2", "Dynamo, prefill_load_scale 2", func(s Setup) policies.Policy { return dynamo(s, 2, 0) }},
		{"dynamo-decay1", "Dynamo, overlap_score_credit_decay 1", func(s Setup) policies.Policy { return dynamo(s, 1, 1) }},
		{"round-robin", "in turn", func(Setup) policies.Policy { return &policies.RoundRobin{} }},
		{"random", "any worker", func(s Setup) policies.Policy { return &policies.Random{Rand: s.Rand} }},
		{"least-requests", "fewest requests", func(s Setup) policies.Policy { return &policies.LeastRequests{Rand: s.Rand} }},
		{"power-of-two", "the better of two by requests", func(s Setup) policies.Policy { return &policies.PowerOfTwo{Rand: s.Rand} }},
		{"session-affinity", "hash of the first blocks", func(Setup) policies.Policy { return &policies.Affinity{Depth: affinityDepth} }},
		{"bounded-hashing", "consistent hashing with bounded loads, 1.25", func(Setup) policies.Policy {
			return &policies.BoundedHash{Depth: affinityDepth, Bound: 1.25}
		}},
		{"llm-d-3222", "llm-d scorers: prefix 3, queue 2, KV use 2, no-hit LRU 2", func(s Setup) policies.Policy {
			return &policies.Weighted{Rand: s.Rand, Prefix: 3, Queue: 2, KVUse: 2, NoHitLRU: 2}
		}},
		{"llm-d-111", "llm-d scorers: prefix 1, queue 1, KV use 1", func(s Setup) policies.Policy {
			return &policies.Weighted{Rand: s.Rand, Prefix: 1, Queue: 1, KVUse: 1}
		}},
		{"llm-d-token-aware", "llm-d, sticky until saturated", func(s Setup) policies.Policy {
			return &policies.TokenAware{Rand: s.Rand, BlockSize: s.BlockSize, Threshold: 0.8, Margin: saturation(s)}
		}},
		{"llm-d-latency", "llm-d, predicted latency, least headroom", func(s Setup) policies.Policy { return latency(s, false) }},
		{"llm-d-latency-most", "llm-d, predicted latency, most headroom", func(s Setup) policies.Policy { return latency(s, true) }},
		{"lmetric", "LMetric: new prefill tokens x batch size", func(s Setup) policies.Policy {
			return &policies.LMetric{Rand: s.Rand, BlockSize: s.BlockSize}
		}},
		{"mooncake", "Mooncake: least predicted TTFT", func(s Setup) policies.Policy {
			return &policies.Mooncake{Rand: s.Rand, BlockSize: s.BlockSize, Prefill: prefillOf(s)}
		}},
		{Oracle, "sees every engine's state", func(s Setup) policies.Policy {
			return &policies.Oracle{Rand: s.Rand, BlockSize: s.BlockSize, Alpha: 0.2, Prefill: prefillOf(s), Decode: decodeOf(s), Chunk: s.ChunkTokens}
		}},
	}
	return list
}

// The limits of a worker with flow control: its queue, ms, and the share of its KV
// cache that requests take.
const (
	admitQueueMs = 1000
	admitKV      = 0.7
)

func admits(s Setup) policies.Policy {
	cfg := picker.DefaultConfig()
	cfg.MaxQueueMs, cfg.MaxKV, cfg.SLOTPOTMs = admitQueueMs, admitKV, s.SLO.TPOTMs
	o := newOurs(s, cfg)
	o.admit(s, flow.DefaultConfig())
	return o
}

// affinityDepth is how many leading blocks a session's hash covers: the traces
// share their first block among all or many sessions.
const affinityDepth = 4

func dynamo(s Setup, scale, decay float64) policies.Policy {
	return &policies.Dynamo{Rand: s.Rand, BlockSize: s.BlockSize, Scale: scale, Decay: decay}
}

func latency(s Setup, most bool) policies.Policy {
	return &policies.Latency{
		Rand: s.Rand, BlockSize: s.BlockSize, TPOTMs: s.SLO.TPOTMs, Most: most,
		TTFTMs: func(w, uncached, cached int) float64 {
			return s.SLO.bound(s.Hardware[w].UnloadedMs(uncached, cached, s.ChunkTokens))
		},
	}
}

// prefillOf prices a prefill on a worker, alone.
func prefillOf(s Setup) func(w, uncached, cached int) float64 {
	return func(w, uncached, cached int) float64 {
		return s.Hardware[w].Model.PrefillMs(uncached, cached, s.ChunkTokens)
	}
}

// decodeOf prices a decode step on a worker.
func decodeOf(s Setup) func(w, sequences, context int) float64 {
	return func(w, sequences, context int) float64 { return s.Hardware[w].Model.DecodeMs(sequences, context) }
}

// saturation is the margin of llm-d's rule in tokens: what a worker prefills at
// its peak, full chunks one after the other, in 18 s, the rule's default penalty.
func saturation(s Setup) int {
	return int(18000 / s.Timing.UnloadedMs(s.ChunkTokens, 0, s.ChunkTokens) * float64(s.ChunkTokens))
}

// Find is the policy of that name; the error lists the names.
func Find(name string) (Named, error) {
	list := Policies()
	names := make([]string, len(list))
	for i, p := range list {
		if p.Name == name {
			return p, nil
		}
		names[i] = p.Name
	}
	slices.Sort(names)
	return Named{}, fmt.Errorf("policy %q: want one of %s", name, strings.Join(names, ", "))
}
