package policies

import (
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// Request is a request as a router sees it.
type Request struct {
	// Room is the part of the workers' limits that it may use; 0 = all.
	Room float64
	// ID is unique; Index is its place in the trace.
	ID    string
	Index int
	// ISL is the prompt's length in tokens.
	ISL int
	// Blocks are the hashes of the prompt's full blocks.
	Blocks []kvindex.BlockHash
	// Overlap[w] is how many leading blocks worker w holds, as far as the router's
	// index knows.
	Overlap []int
	// Hosted[w] is how many leading blocks behind those it holds in host memory.
	Hosted []int
	// Output is the answer's length in tokens. Only its end tells a router: rules may
	// look at it in Done.
	Output int
	// Now is the time of the pick since the start of the simulation.
	Now time.Duration
}

// Worker is what a worker shows to who asks it: the gauges of its metrics page
// and, for rules that want them, its exact state.
type Worker struct {
	// Running and Waiting are requests, just accepted ones included.
	Running, Waiting int
	// KVUsed and KVTotal are blocks; unused cached ones count as free.
	KVUsed, KVTotal int
	// QueuedTokens are prompt tokens accepted and not yet computed.
	QueuedTokens int
	// ContextTokens are the tokens of decoding sequences.
	ContextTokens int
	// StepLeft is the rest of the running step.
	StepLeft time.Duration
}

// Requests are all that are on the worker.
func (w *Worker) Requests() int { return w.Running + w.Waiting }

// Fleet is the workers at the time of a pick. A worker is asked when a rule
// looks at it.
type Fleet interface {
	// Workers is their number; Up says which ones take requests. At least one does.
	Workers() int
	Up(w int) bool
	// Look asks a worker; what it returns is valid until the next Look.
	Look(w int) *Worker
}

// Policy is a rule. It is told of every request that it picked.
type Policy interface {
	// Pick is the worker for a request; -1 refuses it.
	Pick(r *Request, f Fleet) int
	// First and Done say that the answer's first token and its end passed the router.
	// A request that was lost with its worker is done too.
	First(r *Request, w int, now time.Duration)
	Done(r *Request, w int, now time.Duration)
}

// stateless is for rules that learn nothing from answers.
type stateless struct{}

// First implements [Policy].
func (stateless) First(*Request, int, time.Duration) {}

// Done implements [Policy].
func (stateless) Done(*Request, int, time.Duration) {}
