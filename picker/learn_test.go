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

// TestLearnFromEngines lets two pairs of engines, the second pair a third faster and
// both not as their deployment says, report as agents do: when something happened,
// but not more often than every 20 ms.
func TestLearnFromEngines(t *testing.T) {
	for _, tc := range []struct {
		name           string
		every          float64 // mean ms between arrivals on an engine
		tokens, output int     // mean
		within         float64 // of the time of usual work
	}{
		{"chat", 300, 1500, 150, 0.05},
		{"long prompts", 900, 8000, 100, 0.05},
		{"overload", 250, 6000, 40, 0.12}, // only full steps: what of them is decode shows little
		{"short prompts, many", 30, 100, 100, 0.06},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 1)) // two minutes of another history may say less
			p := newTestPool(4)
			prior := p.workers[0].timing
			truth := []timing.Model{prior.Scaled(1.5), prior.Scaled(1.5), prior, prior}
			for i := range truth {
				drive(r, p, i, truth[i], tc.every, tc.tokens, tc.output)
			}
			p.relearn(epochStart().Add(time.Hour))
			for i, w := range p.workers {
				if got := unlike(w.timing, truth[i]); got > tc.within {
					t.Errorf("worker %d: off by %.3f: %+v, want %+v", i, got, w.timing, truth[i])
				}
			}
			for _, c := range p.learned {
				t.Logf("%+v", c)
				if c.Workers != 2 || !c.Learned || c.Samples == 0 {
					t.Errorf("a kind of %d workers, learned %v of %d samples", c.Workers, c.Learned, c.Samples)
				}
			}
		})
	}
}

// drive plays two minutes of arrivals on one engine.
func drive(r *rand.Rand, p *Pool, worker int, truth timing.Model, every float64, tokens, output int) {
	e := engine{model: truth, chunk: 8192}
	owner := kvindex.Owner{Worker: workerID(worker)}
	next, reported, n := 0.0, 0.0, 0
	report := func(now float64) {
		reported = now
		p.Apply(&kvindex.Record{Owner: owner, Epoch: 1, Term: 1, Kind: kvindex.KindLoad, Load: e.report()}, epochStart().Add(duration(now)))
	}
	for now := 0.0; now < 120_000; {
		due := reported + 500
		if len(e.load.Accepted)+len(e.load.FirstToken)+len(e.load.Done) > 0 {
			due = reported + 20
		}
		step := math.Inf(1) // the end of the running one
		if len(e.running)+len(e.waiting) > 0 {
			step = e.busy
		}
		now = max(now, min(next, due, step))
		e.run(now)
		if now == next {
			next += every * r.ExpFloat64()
			n++
			e.submit(&job{
				id: fmt.Sprintf("w%d-%d", worker, n), left: 1 + int(float64(tokens)*r.ExpFloat64()), arrived: now,
				output: 1 + int(float64(output)*r.ExpFloat64()),
			})
			e.run(now)
		}
		if now >= due {
			report(now)
		}
	}
}

// TestLearnFromMuteAgents: agents that do not count generated tokens tell by whole
// answers how long decode steps are.
func TestLearnFromMuteAgents(t *testing.T) {
	p := newTestPool(1)
	w := p.workers[0]
	truth := w.timing.Scaled(1.5)
	r := rand.New(rand.NewPCG(1, 2))
	now, owner := 0.0, kvindex.Owner{Worker: workerID(0)}
	report := func(l kvindex.Load) {
		p.Apply(&kvindex.Record{Owner: owner, Epoch: 1, Term: 1, Kind: kvindex.KindLoad, Load: &l}, epochStart().Add(duration(now)))
	}
	report(kvindex.Load{})
	for range 60 {
		now += 1000
		prompt, output := 100+r.IntN(4000), 50+r.IntN(300)
		s := kvindex.Sample{PromptTokens: int32(prompt), CachedTokens: 0, FirstTokenMs: truth.PrefillMs(prompt, 0, 8192)}
		report(kvindex.Load{Waiting: 1, QueuedTokens: uint64(prompt)})
		now += s.FirstTokenMs
		report(kvindex.Load{Running: 1, ContextTokens: uint64(prompt), FirstToken: []kvindex.Sample{s}})
		s.OutputTokens, s.TotalMs = int32(output), s.FirstTokenMs
		for i := range output - 1 {
			step := truth.DecodeMs(1, prompt+1+i)
			s.TotalMs, now = s.TotalMs+step, now+step
			if i%20 == 19 {
				report(kvindex.Load{Running: 1, ContextTokens: uint64(prompt)})
			}
		}
		report(kvindex.Load{Done: []kvindex.Sample{s}})
	}
	p.relearn(epochStart().Add(time.Hour))
	if got := unlike(w.timing, truth); got > 0.1 {
		t.Errorf("off by %.3f: %+v, want %+v", got, w.timing, truth)
	}
}

// unlike is the mean relative difference of two models over usual work.
func unlike(a, b timing.Model) float64 {
	sum, n := 0.0, 0.0
	for _, u := range []float64{100, 1000, 8000} {
		for _, decoding := range []float64{0, 2, 10, 30} {
			w := timing.Work{Steps: 1, Tokens: u, Area: u * u / 2, Sequences: decoding, Context: 3000 * decoding}
			if decoding > 0 {
				w.Decodes = 1
			}
			sum, n = sum+math.Abs(a.Ms(w)/b.Ms(w)-1), n+1
		}
	}
	return sum / n
}

// FuzzWatch feeds the pool reports with any figures: constants stay finite and within
// their bounds, and so do prices.
func FuzzWatch(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
	f.Add([]byte("a worker may say anything, and what it says must do no harm to others"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := newTestPool(2)
		prior, now := p.workers[0].timing, epochStart()
		next := func() byte {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return b
		}
		number := func() uint64 {
			return []uint64{0, 1, 2, 100, 5000, 1 << 31, 1<<64 - 1, uint64(next())}[next()%8]
		}
		float := func() float64 {
			return []float64{0, 1, 50, 1e308, -1, math.NaN(), math.Inf(1), float64(next())}[next()%8]
		}
		samples := func() (list []kvindex.Sample) {
			for range next() % 4 {
				list = append(list, kvindex.Sample{
					PromptTokens: int32(uint32(number())), CachedTokens: int32(uint32(number())) - 1, OutputTokens: int32(uint32(number())),
					FirstTokenMs: float(), TotalMs: float(), Aborted: next()%4 == 0,
				})
			}
			return list
		}
		for range 30 {
			now = now.Add(time.Duration(int64(next())-2) * 20 * time.Millisecond)
			p.Apply(&kvindex.Record{Owner: kvindex.Owner{Worker: workerID(int(next() % 2))}, Epoch: 1, Term: 1, Kind: kvindex.KindLoad, Load: &kvindex.Load{
				Running: uint32(number()), Waiting: uint32(number() % 5000), QueuedTokens: number(), ContextTokens: number(),
				FirstToken: samples(), Done: samples(),
			}}, now)
		}
		p.learnedAt = time.Time{}
		p.relearn(now)
		for _, w := range p.workers {
			for _, c := range [][2]float64{
				{w.timing.Prefill.A, prior.Prefill.A}, {w.timing.Prefill.B, prior.Prefill.B}, {w.timing.Prefill.G, prior.Prefill.G},
				{w.timing.Decode.D, prior.Decode.D}, {w.timing.Decode.E, prior.Decode.E}, {w.timing.Decode.F, prior.Decode.F},
			} {
				if !(c[0] >= 0.04*c[1] && c[0] <= 25*c[1]) {
					t.Fatalf("constant %v, prior %v", c[0], c[1])
				}
			}
		}
	})
}

// BenchmarkLoad is the cost of a report with a first token, with what is learned of it
// and without.
func BenchmarkLoad(b *testing.B) {
	for _, learn := range []bool{false, true} {
		for _, workers := range []int{8, 1000} {
			b.Run(fmt.Sprintf("learn=%v/%d", learn, workers), func(b *testing.B) {
				c := DefaultConfig()
				c.Learn = learn
				p := NewPool(c, timing.Known())
				for i := range workers {
					p.Apply(&kvindex.Record{
						Owner: kvindex.Owner{Worker: workerID(i)}, Epoch: 1, Term: 1, Kind: kvindex.KindHello,
						Hello: &kvindex.Hello{Address: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250), Ready: true, Model: "m", Served: []string{"m"}, BlockSize: 16, LeaseMs: 1 << 30},
					}, epochStart())
				}
				first := []kvindex.Sample{{PromptTokens: 1000, CachedTokens: 0, FirstTokenMs: 100}}
				done := []kvindex.Sample{{PromptTokens: 1000, CachedTokens: 0, OutputTokens: 21, FirstTokenMs: 100, TotalMs: 500}}
				loads := [4]kvindex.Load{{}, {Waiting: 1, QueuedTokens: 1000}, {Running: 1, ContextTokens: 1001, FirstToken: first}, {Done: done}}
				now := epochStart()
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					now = now.Add(100 * time.Millisecond / time.Duration(workers))
					l := loads[i/workers%4]
					p.Apply(&kvindex.Record{Owner: kvindex.Owner{Worker: workerID(i % workers)}, Epoch: 1, Term: 1, Kind: kvindex.KindLoad, Load: &l}, now)
				}
			})
		}
	}
}
