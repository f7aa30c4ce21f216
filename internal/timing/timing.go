// Package timing is the step-time model of an inference engine and the
// constants of known deployments.
//
// The form is the one of docs/decisions/001-timing.md: a step that prefills
// chunks and decodes sequences takes
//
//	prefill = a + sum(b*u + g*u*(c + u/2))   0 without uncached tokens
//	decode  = d + e*B + f*K                  0 without decoding sequences
//
// with u uncached tokens of a chunk after c tokens that are in the KV cache, B
// decoding sequences, K the sum of their contexts. The simulated engine steps
// by it and the picker predicts with it, so it lives in neither. A [Learner]
// corrects the constants by what engines were seen to take. It does no I/O, and
// a Learner's observations are its only state.
package timing

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
)

// Prefill are the constants of a prefill step: A in ms a step, B in ms per
// uncached token, G in ms per token squared.
type Prefill struct {
	A float64 `json:"a"`
	B float64 `json:"b"`
	G float64 `json:"g"`
}

// Decode are the constants of a decode step: D in ms a step, E in ms per
// sequence, F in ms per resident token.
type Decode struct {
	D float64 `json:"d"`
	E float64 `json:"e"`
	F float64 `json:"f"`
}

// Model predicts step times, in ms.
type Model struct {
	Prefill Prefill `json:"prefill"`
	Decode  Decode  `json:"decode"`
}

// ChunkMs is one chunk's share of a prefill step without the step's constant:
// u uncached tokens after c tokens in the cache.
func (m Model) ChunkMs(u, c int) float64 {
	return m.Prefill.B*float64(u) + m.Prefill.G*float64(u)*(float64(c)+float64(u)/2)
}

// PrefillMs is the time to prefill u uncached tokens after c cached ones in
// chunks of at most chunk tokens with nothing else running. 0 for u <= 0.
func (m Model) PrefillMs(u, c, chunk int) float64 {
	if u <= 0 {
		return 0
	}
	return float64(Steps(u, chunk))*m.Prefill.A + m.ChunkMs(u, c)
}

// Steps is the number of steps that u uncached tokens take in chunks of at most
// chunk tokens; chunk < 1 means that a step has no such limit.
func Steps(u, chunk int) int {
	switch {
	case u <= 0:
		return 0
	case chunk < 1:
		return 1
	default:
		return (u-1)/chunk + 1
	}
}

// DecodeMs is one decode step of b sequences with k resident tokens in all. 0
// for b <= 0.
func (m Model) DecodeMs(b, k int) float64 {
	if b <= 0 {
		return 0
	}
	return m.Decode.D + m.Decode.E*float64(b) + m.Decode.F*float64(k)
}

// Deployment is a model on given GPUs.
type Deployment struct {
	Name  string `json:"name"`
	Model string `json:"model"`
	GPU   string `json:"gpu"`
	GPUs  int    `json:"gpus"`
	// KVTokens is the KV cache of one worker, in tokens.
	KVTokens int `json:"kv_tokens"`
	// KVBytesPerToken is 2*layers*kv_heads*head_dim*bytes per element.
	KVBytesPerToken int     `json:"kv_bytes_per_token"`
	Prefill         Prefill `json:"prefill"`
	Decode          Decode  `json:"decode"`
}

// Timing is the deployment's step-time model.
func (d Deployment) Timing() Model { return Model{Prefill: d.Prefill, Decode: d.Decode} }

// Transfer is the link between workers.
type Transfer struct {
	SetupMs        float64 `json:"setup_ms"`
	BytesPerSecond float64 `json:"bytes_per_second"`
}

// Ms is the time to move tokens of KV between two workers; 0 for none. A link
// without a bandwidth (BytesPerSecond <= 0) costs its set-up only.
func (t Transfer) Ms(tokens, bytesPerToken int) float64 {
	if tokens <= 0 {
		return 0
	}
	if t.BytesPerSecond <= 0 {
		return t.SetupMs
	}
	return t.SetupMs + 1000*float64(tokens)*float64(bytesPerToken)/t.BytesPerSecond
}

// Table is the set of known deployments.
type Table struct {
	Deployments []Deployment `json:"deployments"`
	Transfer    Transfer     `json:"transfer"`
}

// DefaultDeployment is what everything starts from when nothing is named.
const DefaultDeployment = "qwen3-32b-bf16-2xh100"

//go:embed deployments.json
var tableJSON []byte

// Known is the embedded table. It panics if the embedded file is broken, which
// a test rules out.
func Known() Table {
	var t Table
	if err := json.Unmarshal(tableJSON, &t); err != nil {
		panic("internal/timing/deployments.json: " + err.Error())
	}
	return t
}

// Find is the deployment of that name; the error lists the known names.
func (t Table) Find(name string) (Deployment, error) {
	names := make([]string, 0, len(t.Deployments))
	for _, d := range t.Deployments {
		if d.Name == name {
			return d, nil
		}
		names = append(names, d.Name)
	}
	return Deployment{}, fmt.Errorf("deployment %q is not known; choose one of %s", name, strings.Join(names, ", "))
}

// Scaled is the model with every time multiplied by f: engines that run f
// times slower.
func (m Model) Scaled(f float64) Model {
	m.Prefill.A, m.Prefill.B, m.Prefill.G = m.Prefill.A*f, m.Prefill.B*f, m.Prefill.G*f
	m.Decode.D, m.Decode.E, m.Decode.F = m.Decode.D*f, m.Decode.E*f, m.Decode.F*f
	return m
}

// Scaled is the link with every time multiplied by f.
func (t Transfer) Scaled(f float64) Transfer {
	return Transfer{SetupMs: t.SetupMs * f, BytesPerSecond: t.BytesPerSecond / f}
}
