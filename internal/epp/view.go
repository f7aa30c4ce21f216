package epp

import (
	"time"

	"github.com/kvlane/kvlane/extproc"
	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/picker"
)

// PlanView is a request's plan as the admin page shows it.
type PlanView struct {
	picker.Plan

	At    time.Time `json:"at"`
	Path  string    `json:"path"`
	Model string    `json:"model,omitempty"`
	// ModelRewrite is the name that the worker is asked for in the model's place; empty
	// for the same.
	ModelRewrite string `json:"modelRewrite,omitempty"`
	// KnownTokens is how much of the prompt's start the picker knew; Exact says
	// that its whole length was counted and not estimated.
	KnownTokens int  `json:"knownTokens"`
	Exact       bool `json:"exact"`
	// Refusal is why the client got an error; empty if it did not.
	Refusal string `json:"refusal,omitempty"`
	// Served is the address that served, as far as the gateway reports it, and
	// Outcome how the request ended; empty while it is under way.
	Served  string `json:"served,omitempty"`
	Outcome string `json:"outcome,omitempty"`
	// Reported is what the worker said of the answer by its end.
	Reported *picker.Report `json:"reported,omitempty"`
}

func viewOf(e extproc.Entry) PlanView {
	d := e.Decision
	return PlanView{
		Plan: d.Plan, At: e.At, Path: e.Path, Model: d.Model, ModelRewrite: d.Rewrite, KnownTokens: d.KnownTokens, Exact: d.Exact,
		Refusal: e.Refusal, Served: e.Served, Outcome: e.Outcome, Reported: e.Reported,
	}
}

// EndpointView is one rank of a worker as the admin page shows it.
type EndpointView struct {
	Worker  string   `json:"worker"`
	Rank    uint16   `json:"rank"`
	Address string   `json:"address"`
	Role    string   `json:"role"`
	Ready   bool     `json:"ready"`
	Served  []string `json:"served"`
	// Adapters are the LoRA adapters loaded now.
	Adapters  []string `json:"adapters,omitempty"`
	BlockSize int      `json:"blockSize"` // tokens
	QueueMs   float64  `json:"queueMs"`   // predicted time until a new prefill starts
	Requests  int      `json:"requests"`
	KVFree    int      `json:"kvFree"` // tokens; -1 unknown
	// Timing are the constants that its work is priced by, ms: those of its deployment, or
	// what was learned of such workers.
	Timing timing.Model `json:"timing"`
	// EjectedMs is how long it is still out for its failures, ReturnMs what it costs
	// more since; absent for none.
	EjectedMs float64 `json:"ejectedMs,omitempty"`
	ReturnMs  float64 `json:"returnMs,omitempty"`
}

func endpointView(e picker.Endpoint) EndpointView {
	return EndpointView{
		Worker: string(e.Worker), Rank: e.Rank, Address: e.Address, Role: e.Role.String(), Ready: e.Ready, Served: e.Served,
		Adapters: e.Adapters, BlockSize: e.BlockSize, QueueMs: e.QueueMs, Requests: e.Requests, KVFree: e.KVFree,
		Timing:    e.Timing,
		EjectedMs: e.EjectedMs, ReturnMs: e.ReturnMs,
	}
}
