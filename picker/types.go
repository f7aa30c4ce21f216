package picker

import (
	"fmt"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// Policy is the rule that chooses among candidates.
type Policy string

// The policies. PolicyKV is the product; the others are for comparison.
const (
	PolicyKV            Policy = "kv"
	PolicyRoundRobin    Policy = "round-robin"
	PolicyLeastRequests Policy = "least-requests"
	PolicyRandom        Policy = "random"
)

// ParsePolicy reads a policy's name.
func ParsePolicy(s string) (Policy, error) {
	switch p := Policy(s); p {
	case PolicyKV, PolicyRoundRobin, PolicyLeastRequests, PolicyRandom:
		return p, nil
	default:
		return "", fmt.Errorf("policy %q: want %s, %s, %s or %s", s, PolicyKV, PolicyRoundRobin, PolicyLeastRequests, PolicyRandom)
	}
}

// Request is what the pick needs to know of a request.
type Request struct {
	// ID breaks ties and names the booking; never empty.
	ID string
	// Model is the name that the request asks for; empty where the path has no
	// model (GET /v1/models), which any ready endpoint may answer.
	Model string
	// ISL is the prompt's length in tokens, exact for token ids, else estimated.
	ISL int
	// OSL is the most output tokens the request allows; 0 if it does not say.
	OSL int
	// Matches are the blocks each worker holds of the prompt, from
	// [kvindex.Index.Overlap]; workers without any may be left out.
	Matches []kvindex.Match
	// Subset limits the candidates to these ip:port addresses. HasSubset tells an
	// empty subset (nothing is eligible) from none (all are).
	Subset    []string
	HasSubset bool
	// Policy overrides the fleet's policy; empty for none.
	Policy Policy
	// Turn is a number that grows by one with each pick of the pool; round-robin
	// uses it.
	Turn uint64
	// Adjust shifts the prices of some candidates: sessions, ejection, scorers.
	Adjust []Adjust
	// Unlimited says that it computes nothing, as a list of models or a health check:
	// no limit of load rules a worker out.
	Unlimited bool
	// SLO are the request's targets; those that it does not have are the fleet's.
	SLO SLO
	// Room is the part of the fleet's limit of queues that it may use; 0 = all of it.
	// What is left is for requests without it.
	Room float64
	// Session names the conversation or agent run that the request belongs to; empty
	// for none. A [Pool] prefers the worker of the session's last request; the function
	// Pick does not look at it.
	Session string
}

// Adjust changes what one candidate costs. Several for one candidate add up; those
// for workers that are not in the fleet are ignored.
type Adjust struct {
	Worker kvindex.WorkerID
	Rank   uint16
	// Ms is added to the price; negative for a preference. It counts as if the
	// request waited so much longer there, and so for a prefill leg too. A number that
	// is not finite is ignored, one beyond [MaxAdjustMs] counts as that.
	Ms float64
	// Exclude, if not empty, is why the candidate is ruled out.
	Exclude string
}

// MaxAdjustMs bounds an Adjust on either side of 0: some 11 days, more than any
// price and so little that no precision is lost.
const MaxAdjustMs = 1e9

// SLO are the targets of a request, ms; 0 for none.
type SLO struct {
	// TTFTMs is the longest time to first token, TPOTMs the longest mean time
	// between the later ones.
	TTFTMs, TPOTMs float64
}

// Endpoint is one candidate: a worker's rank as the pool knows it at one moment.
type Endpoint struct {
	Worker  kvindex.WorkerID
	Rank    uint16
	Address string // ip:port
	Role    kvindex.Role
	Ready   bool
	Served  []string // model names
	// Adapters are LoRA names loaded now; a request for one is also served by
	// workers that must load it first only if they list it in Served.
	Adapters  []string
	Loading   []string // those that are being loaded
	BlockSize int      // tokens
	Timing    timing.Model
	// KVBytesPerToken prices transfers of its KV.
	KVBytesPerToken int

	// QueueMs is the predicted time until a new request's prefill starts, ms.
	QueueMs float64
	// Requests are running and waiting there, bookings under way included.
	Requests int
	// ContextTokens are resident tokens of decoding sequences, and Decoding their number.
	ContextTokens int
	Decoding      int
	// KVFree is the room for new blocks in tokens, evictable ones included; -1 unknown.
	KVFree int
	// KVTokens is the size of its KV cache in tokens, 0 if unknown. Pledged are the
	// tokens that its requests have there or will have: resident ones, and prompts
	// that are not prefilled yet.
	KVTokens, Pledged int
	// OwedMs is the prefill time that it was given beyond the part of its time that
	// the pool's target of the time between tokens leaves for it, ms; 0 without one.
	OwedMs float64
	// SpareMs is the same for requests with less room ([Request].Room).
	SpareMs float64

	// Zone, Rack and Domain say where it is, each empty if unknown ([kvindex.Hello]).
	Zone, Rack, Domain string
	// LoadBytesPerSecond is how fast the engine brings blocks back from each tier; 0
	// for a tier that it does not load from, and for the device's own memory.
	LoadBytesPerSecond [kvindex.NumTiers]float64

	// EjectedMs is how long the pool keeps it out for its failures, and ReturnMs what
	// it adds to its price after that, ms; 0 for none. The function Pick looks at
	// neither: a pool's plans have them as adjustments.
	EjectedMs, ReturnMs float64
}

// Fleet is one immutable snapshot of the pool.
type Fleet struct {
	Endpoints []Endpoint // sorted by worker, then rank
	Policy    Policy
	// Alpha in [0.1, 0.25] prices the delay that a prefill imposes on the
	// requests already on the worker.
	Alpha float64
	// ChunkTokens is the engines' prefill budget a step, tokens.
	ChunkTokens int
	// MaxDelay bounds the charge for that delay: it is at most so many times the
	// prefill itself; 0 = no bound. See [Config].
	MaxDelay float64
	Transfer timing.Transfer
	// Links is the bandwidth between workers as a multiple of Transfer's.
	Links Links
	// SLO are the targets of requests that name none, MissMs is what a predicted miss of
	// a target costs.
	SLO    SLO
	MissMs float64
	// AdapterMs is the time a worker needs to load a LoRA adapter; one that is being
	// loaded has half of it left on average.
	AdapterMs float64
	// Fallbacks is how many further addresses the plan names, at most.
	Fallbacks int
	// MaxRequests rules out endpoints that have that many requests; 0 = no limit.
	// A request that every candidate is ruled out for is refused as Overloaded.
	MaxRequests int
	// MaxQueueMs rules out endpoints whose queue is longer, or who owe more, likewise;
	// 0 = no limit.
	MaxQueueMs float64
	// MaxKV rules out endpoints with requests whose KV cache would be filled by more
	// than this share with the prompt, likewise; 0 = no limit.
	MaxKV float64
}

// Links are bandwidths between two workers that are near each other or far apart,
// as multiples of what holds between workers of one zone and where nothing is
// known; 0 says the same as 1. Domain >= Rack >= 1 >= Far.
type Links struct {
	Domain, Rack, Far float64
}

// Target is a chosen endpoint.
type Target struct {
	Worker  kvindex.WorkerID `json:"worker"`
	Rank    uint16           `json:"rank"`
	Address string           `json:"address"`
}

// Reason says in one word why a plan is as it is.
type Reason string

// Reasons of plans that have a target, then of refusals.
const (
	ReasonCached     Reason = "cached"      // least cost, and the worker holds a part of the prompt
	ReasonLeastCost  Reason = "least-cost"  // least cost, nothing cached there
	ReasonSpill      Reason = "spill"       // another worker holds more, but waiting for it costs more
	ReasonRemote     Reason = "prefill"     // prefilled elsewhere, then handed over
	ReasonSLO        Reason = "slo"         // another would cost less and is predicted to miss a target
	ReasonPolicy     Reason = "policy"      // a comparison policy chose
	ReasonNoEndpoint Reason = "no-endpoint" // 503: nothing ready serves it
	ReasonSubset     Reason = "subset"      // 503: nothing ready inside the subset
	ReasonNoModel    Reason = "no-model"    // 404: no worker of the pool serves the model
	ReasonOverloaded Reason = "overloaded"  // 429: every candidate is over its limit
)

// Cost is one candidate of a plan, all terms in ms.
type Cost struct {
	Target  Target  `json:"target"`
	Prefill *Target `json:"prefill,omitempty"` // nil: prefill on Target itself
	Cached  int     `json:"cached"`            // tokens that need no prefill
	// The terms of the price: time in the queue, loading from lower tiers, own prefill,
	// KV transfer, adapter load, delay to the others there, and the first decode step.
	Queue    float64 `json:"queue"`
	Load     float64 `json:"load"`
	Compute  float64 `json:"compute"`
	Transfer float64 `json:"transfer"`
	Adapter  float64 `json:"adapter"`
	Delay    float64 `json:"delay"`
	Decode   float64 `json:"decode"`
	// Adjust is what the request's adjustments add or, below 0, take off.
	Adjust float64 `json:"adjust"`
	// Miss is what it costs that a target is predicted to be missed.
	Miss float64 `json:"miss"`
	// Total is what is compared: the sum of the terms.
	Total float64 `json:"total"`
	// Carry is no part of the price: the decode steps of others that share the engine's
	// time with its prefill, and after a prefill elsewhere the step that computes the
	// prompt's last token.
	Carry float64 `json:"carry"`
	// Excluded says why the candidate could not be chosen; empty if it could.
	Excluded string `json:"excluded,omitempty"`
}

// TTFT is the predicted time to first token, ms: the terms that the request
// itself waits for. The first token comes with the last step of the prefill.
func (c Cost) TTFT() float64 {
	return c.Queue + c.Load + c.Compute + c.Carry + c.Transfer + c.Adapter
}

// TPOT is the predicted time between later tokens, ms, while nothing prefills
// there.
func (c Cost) TPOT() float64 { return c.Decode }

// Plan is the answer of a pick.
type Plan struct {
	Request   string   `json:"request"` // the request's ID, also the booking's
	Decode    Target   `json:"decode"`
	Prefill   *Target  `json:"prefill,omitempty"`
	Fallbacks []Target `json:"fallbacks,omitempty"`
	// ISL and Cached are tokens: the prompt's length and what of it needs no prefill.
	ISL    int     `json:"isl"`
	Cached int     `json:"cached"`
	TTFTMs float64 `json:"ttftMs"` // predicted
	Reason Reason  `json:"reason"`
	// Costs are the candidates, the chosen one first. A pool of more than 16 lists
	// only those that mattered, and Omitted is the number of the others.
	Costs   []Cost `json:"costs"`
	Omitted int    `json:"omitted,omitempty"`
	// RetryAfterMs is set with ReasonOverloaded: when capacity is predicted to return.
	RetryAfterMs float64 `json:"retryAfterMs,omitempty"`
}

// OK reports whether the plan has a target.
func (p Plan) OK() bool { return p.Decode.Address != "" }
