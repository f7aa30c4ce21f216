package picker

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// worker is one rank of a worker as the pool knows it.
//
// How requests are counted: open is the number of legs there, accepted how many
// of those the worker's figures include. At each report
//
//	others = max(0, running + waiting - accepted)
//
// are the requests that are there without a leg, and at any moment the worker
// has others + open requests. So a leg counts once: before the report that
// accepts it in open only, after it in open and out of others. A request that we
// closed and that the worker still runs becomes one of the others at the next
// report, and leaves with the report that no longer has it.
//
// Legs of other replicas, shared, count in the same way, but of their end we only
// hear. Where the figures have fewer requests than legs, others is negative by as
// much, down to the number of accepted shared legs.
type worker struct {
	pool        *Pool
	slot        int  // its place on the board
	touched     bool // what it puts there is out of date
	id          kvindex.WorkerID
	rank        uint16
	epoch, term uint64

	hello    kvindex.Hello
	timing   timing.Model // divided by the time scale
	kvBytes  int          // per token
	deployed string       // the deployment that timing is of
	chunk    int          // tokens a step

	heard time.Time // the last record
	lease time.Duration

	load     kvindex.Load // figures only
	loaded   time.Time    // when they were reported; zero before the first report
	assumed  assumption
	others   int
	open     int
	accepted int
	// shared and sharedAccepted are those of other replicas among them.
	shared, sharedAccepted int
	queue                  queue
	debt                   debt
	watch                  watch

	health   health
	failures uint64 // ever
	tells    bool   // its agent reports how requests end
	gone     bool   // not in the pool any more
}

func (w *worker) compare(id kvindex.WorkerID, rank uint16) int {
	return cmp.Or(cmp.Compare(w.id, id), cmp.Compare(w.rank, rank))
}

func (w *worker) ready(now time.Time) bool { return w.hello.Ready && now.Sub(w.heard) <= w.lease }

// touch notes that the board has to be told.
func (w *worker) touch() {
	if !w.touched {
		w.touched = true
		w.pool.touched = append(w.pool.touched, w)
	}
}

// decoding is the number of decoding sequences. Reports count those that
// prefill as running too; without resident context none decodes.
func (w *worker) decoding() int {
	if w.load.ContextTokens == 0 {
		return 0
	}
	return int(w.load.Running)
}

func (w *worker) rates() rates {
	return rates{
		prefill: w.timing.Prefill, chunk: w.chunk,
		decodeMs: w.timing.DecodeMs(w.decoding(), int(w.load.ContextTokens)),
	}
}

// forget empties the worker's figures at the start of a new life. The caller has lifted
// the legs.
func (w *worker) forget() {
	w.load, w.others, w.queue, w.debt = kvindex.Load{}, 0, queue{}, debt{}
	w.watch.reset()
	w.loaded, w.assumed = time.Time{}, assumption{}
	w.touch()
}

// Bounds of what is believed of a report: requests, and sums of their tokens.
const maxCount, maxSum = 1 << 24, 1 << 36

// report takes over the figures of a load report. The caller has marked what it
// accepts and ends.
func (w *worker) report(l *kvindex.Load, now time.Time) {
	w.figures(l, now)
	w.queue.report(int(w.load.QueuedTokens), w.rates(), now)
}

// figures takes over all of a load report but the queue.
func (w *worker) figures(l *kvindex.Load, now time.Time) {
	w.load, w.loaded, w.assumed = *l, now, assumption{}
	// What is added up must not overflow, whatever an agent says.
	w.load.Running, w.load.Waiting = min(l.Running, maxCount), min(l.Waiting, maxCount)
	w.load.QueuedTokens, w.load.ContextTokens = min(l.QueuedTokens, maxSum), min(l.ContextTokens, maxSum)
	w.load.Accepted, w.load.FirstToken, w.load.Done = nil, nil, nil
	w.others = max(-w.sharedAccepted, int(w.load.Running)+int(w.load.Waiting)-w.accepted)
	w.touch()
}

// requests are those that are known of, or more where the load is not known.
func (w *worker) requests() int { return max(w.others+w.open, w.assumed.requests) }

func (w *worker) clock() clock {
	c := w.queue.clock(w.rates(), w.pool.ms)
	c.out = standing(w.hello.Role, w.hello.Ready)
	c.until = w.pool.ms(w.heard.Add(w.lease))
	c.least = w.assumed.queueMs
	return c
}

func (w *worker) kvTokens() int { return int(w.load.KVTotal) * int(w.hello.BlockSize) }

// pledged are the tokens of its sequences, and of the prompts under way as far as
// they are known: of requests that are not ours, what they lack.
func (w *worker) pledged() int {
	tokens := int(w.load.ContextTokens) + w.queue.others
	for _, l := range w.queue.legs {
		tokens += l.cached + l.uncached
	}
	return tokens
}

// endpoint is the worker as a candidate; the queue is the board's.
func (w *worker) endpoint(now time.Time) Endpoint {
	e := Endpoint{
		Worker: w.id, Rank: w.rank, Address: w.hello.Address, Role: w.hello.Role, Ready: w.ready(now),
		Served: w.hello.Served, Adapters: w.hello.Adapters, BlockSize: int(w.hello.BlockSize),
		Timing: w.timing, KVBytesPerToken: w.kvBytes,
		Loading: w.hello.Loading, Zone: w.hello.Zone, Rack: w.hello.Rack, Domain: w.hello.Domain,
		LoadBytesPerSecond: w.pool.loadSpeeds(&w.hello),
		Requests:           w.requests(),
		ContextTokens:      int(w.load.ContextTokens), Decoding: w.decoding(), KVFree: -1,
	}
	if w.slot < len(w.pool.board.candidates) {
		e.QueueMs = w.pool.board.candidates[w.slot].queue
	}
	e.EjectedMs, e.ReturnMs = msBetween(now, w.health.back), w.health.penaltyMs(&w.pool.rules, now)
	owed := w.owes(now)
	e.KVTokens, e.Pledged, e.OwedMs, e.SpareMs = w.kvTokens(), w.pledged(), owed.owed, owed.spare
	if w.load.KVTotal > 0 {
		e.KVFree = (int(w.load.KVTotal) - int(w.load.KVUsed)) * e.BlockSize
	}
	return e
}

// find is the place of a worker's rank in the pool's sorted list, and whether it
// is there.
func (p *Pool) find(id kvindex.WorkerID, rank uint16) (int, bool) {
	return slices.BinarySearchFunc(p.workers, rank, func(w *worker, rank uint16) int { return w.compare(id, rank) })
}

// worker is the rank of that name; nil if there is none.
func (p *Pool) worker(id kvindex.WorkerID, rank uint16) *worker {
	if i, ok := p.find(id, rank); ok {
		return p.workers[i]
	}
	return nil
}
