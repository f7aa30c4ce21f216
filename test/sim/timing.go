package sim

import (
	"github.com/kvlane/kvlane/internal/timing"
	core "github.com/kvlane/kvlane/workers/engine/sim"
)

// Timing is how long engines take for a step.
type Timing struct {
	Name string
	// Model prices a step; StepMs does where it is set, and Model is then the same in
	// the picker's form, as near as that form comes.
	Model  timing.Model
	StepMs func(core.Step) float64
	// KVBytesPerToken prices the transfer between workers.
	KVBytesPerToken int
}

// Polynomial is the default timing of Dynamo's simulated engine for a cache of
// so many tokens: N tokens to prefill, the share r of the cache that the
// contexts of the decoding sequences would fill.
//
//	prefill = 4.209989e-7*N^2 + 1.518344e-2*N + 16.50142
//	decode  = max(1, -25.74*r^2 + 54.01*r + 5.74)
//
// The constants are those of aisimulate-core 0.13.
func Polynomial(capacity int) Timing {
	return Timing{
		Name: "polynomial",
		StepMs: func(s core.Step) float64 {
			ms := 0.0
			if s.Tokens > 0 {
				n := float64(s.Tokens)
				ms = 4.209989e-7*n*n + 1.518344e-2*n + 16.50142
			}
			if s.Decodes > 0 {
				r := min(1, float64(s.Context)/float64(capacity))
				ms += max(1, -25.74*r*r+54.01*r+5.74)
			}
			return ms
		},
		// Its tangents where a fleet works: full chunks of 8,192 tokens, an eighth of the
		// cache in use.
		Model: timing.Model{
			Prefill: timing.Prefill{A: 16.50142, B: 1.518344e-2 + 4.209989e-7*8192},
			Decode:  timing.Decode{D: 5.74, F: 50.8 / float64(capacity)},
		},
	}
}

// Of is the timing of a deployment.
func Of(d timing.Deployment) Timing {
	return Timing{Name: d.Name, Model: d.Timing(), KVBytesPerToken: d.KVBytesPerToken}
}

// Scaled is the timing with every step f times as long.
func (t Timing) Scaled(f float64) Timing {
	t.Model = t.Model.Scaled(f)
	if step := t.StepMs; step != nil {
		t.StepMs = func(s core.Step) float64 { return f * step(s) }
	}
	return t
}

// UnloadedMs is the time to first token of a request alone on an engine, with
// chunk tokens a step.
func (t Timing) UnloadedMs(uncached, cached, chunk int) float64 {
	uncached = max(1, uncached)
	if t.StepMs == nil {
		return t.Model.PrefillMs(uncached, cached, chunk)
	}
	ms := 0.0
	for ; uncached > 0; uncached -= chunk {
		ms += t.StepMs(core.Step{Tokens: min(uncached, chunk)})
	}
	return ms
}
