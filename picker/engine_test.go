package picker

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// engine is a worker that steps like a real one: in each step it prefills up to
// chunk tokens of its queue in order and decodes what is running. It is written
// for the next test alone, to check the queue's prediction against.
type engine struct {
	model   timing.Model
	chunk   int
	waiting []*job // by arrival
	running []*job // decoding
	busy    float64
	step    []share // of the running step, which ends at busy
	load    kvindex.Load
}

type job struct {
	id                        string
	left, cached              int // tokens to prefill, tokens before them
	output                    int // tokens to decode
	prompt, hit, answer       int // all tokens of the prompt, cached ones at first, tokens generated
	arrived, first, predicted float64
}

// share is the tokens that a step prefills of a job.
type share struct {
	job    *job
	tokens int
}

func (e *engine) submit(j *job) {
	j.prompt, j.hit = j.left+j.cached, j.cached
	e.waiting = append(e.waiting, j)
	e.load.Accepted = append(e.load.Accepted, j.id)
}

// run ends and starts steps up to the time.
func (e *engine) run(until float64) {
	for e.busy <= until {
		e.end()
		if len(e.running) == 0 && len(e.waiting) == 0 {
			e.busy = until
			return
		}
		e.begin()
	}
}

// begin composes the step that starts at busy and moves busy to its end.
func (e *engine) begin() {
	budget, prefill, resident := e.chunk-len(e.running), 0.0, 0
	for _, j := range e.running {
		resident += j.cached
	}
	start := e.busy
	if len(e.running) == 0 {
		start = max(start, e.waiting[0].arrived)
	}
	for _, j := range e.waiting {
		if budget == 0 || j.arrived > start {
			break
		}
		n := min(budget, j.left)
		budget -= n
		prefill += e.model.ChunkMs(n, j.cached)
		e.step = append(e.step, share{j, n})
	}
	if prefill > 0 {
		prefill += e.model.Prefill.A
	}
	e.busy = start + prefill + e.model.DecodeMs(len(e.running), resident)
}

// end takes in the results of the step that ends at busy.
func (e *engine) end() {
	still := e.running[:0]
	for _, j := range e.running {
		j.answer++
		if j.cached, j.output = j.cached+1, j.output-1; j.output > 0 {
			still = append(still, j)
			continue
		}
		e.load.Done = append(e.load.Done, j.sample(e.busy))
	}
	e.running = still
	for _, s := range e.step {
		if s.job.left, s.job.cached = s.job.left-s.tokens, s.job.cached+s.tokens; s.job.left == 0 {
			e.waiting, e.running = e.waiting[1:], append(e.running, s.job)
			s.job.first, s.job.answer = e.busy, 1
			s.job.cached++
			e.load.FirstToken = append(e.load.FirstToken, s.job.sample(e.busy))
		}
	}
	e.step = e.step[:0]
}

// sample is what the agent says of a job.
func (j *job) sample(now float64) kvindex.Sample {
	return kvindex.Sample{
		Booking: j.id, PromptTokens: int32(j.prompt), CachedTokens: int32(j.hit), OutputTokens: int32(j.answer),
		FirstTokenMs: j.first - j.arrived, TotalMs: now - j.arrived,
	}
}

// report is the load now.
func (e *engine) report() *kvindex.Load {
	l := e.load
	e.load = kvindex.Load{}
	l.Running, l.Waiting = uint32(len(e.running)), uint32(len(e.waiting))
	for _, j := range e.waiting {
		l.QueuedTokens += uint64(j.left)
	}
	for _, j := range e.running {
		l.ContextTokens += uint64(j.cached)
	}
	return &l
}

// TestPredictionAgainstEngine sends random arrivals to one engine that reports
// every 250 ms and compares the predicted time to first token of each with the
// real one. What cannot be known keeps them apart: what the engine did since its
// last report, where in a step an arrival falls, and what arrives later and
// shares its last step.
func TestPredictionAgainstEngine(t *testing.T) {
	for _, tc := range []struct {
		name           string
		every          float64 // mean ms between arrivals
		tokens, output int     // mean
		miss           float64 // largest mean error, of the mean
	}{
		{"short prompts", 15, 200, 20, 0.35},
		{"long prompts", 600, 6000, 100, 0.15},
		{"long prompts, overload", 200, 6000, 20, 0.02},
		{"mixed", 120, 1500, 50, 0.3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, 7))
			mean, miss, bias, n := simulate(r, tc.every, tc.tokens, tc.output)
			t.Logf("%d requests: mean %.1f ms, mean error %.1f ms, bias %+.1f ms", n, mean, miss, bias)
			if miss > tc.miss*mean {
				t.Errorf("mean error %.1f ms, want at most %.0f %% of %.1f ms", miss, 100*tc.miss, mean)
			}
		})
	}
}

func simulate(r *rand.Rand, every float64, tokens, output int) (mean, miss, bias float64, n int) {
	p := newTestPool(1)
	at := func(ms float64) time.Time { return epochStart().Add(duration(ms)) }
	e := engine{model: p.workers[0].timing, chunk: 8192}
	var jobs []*job
	next, report := 0.0, 250.0
	for now := 0.0; now < 60_000; {
		if report < next {
			now = report
			report += 250
			e.run(now)
			p.Apply(&kvindex.Record{Owner: kvindex.Owner{Worker: workerID(0)}, Epoch: 1, Term: 1, Kind: kvindex.KindLoad, Load: e.report()}, at(now))
			continue
		}
		now = next
		next += every * r.ExpFloat64()
		e.run(now)
		j := &job{
			id: fmt.Sprintf("r%d", len(jobs)), left: 1 + int(float64(tokens)*r.ExpFloat64()), arrived: now,
			output: 1 + int(float64(output)*r.ExpFloat64()),
		}
		plan := p.Pick(&Request{ID: j.id, Model: "m", ISL: j.left}, at(now))
		j.predicted = plan.TTFTMs
		e.submit(j)
		jobs = append(jobs, j)
	}
	e.run(1e9)
	for _, j := range jobs {
		took := j.first - j.arrived
		mean, miss, bias, n = mean+took, miss+math.Abs(j.predicted-took), bias+j.predicted-took, n+1
	}
	return mean / float64(n), miss / float64(n), bias / float64(n), n
}
