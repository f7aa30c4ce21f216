package timing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// prior is the first of the known deployments.
func prior() Model {
	return Model{Prefill: Prefill{A: 10.25, B: 0.045827, G: 1.629e-6}, Decode: Decode{D: 15.29, E: 0.0258, F: 4.259e-5}}
}

// randomWork is what a busy engine does between two reports.
func randomWork(r *rand.Rand) Work {
	var w Work
	if r.IntN(3) > 0 {
		u, c := float64(1+r.IntN(20_000)), float64(r.IntN(30_000))
		w.Steps, w.Tokens, w.Area = math.Ceil(u/8192), u, u*(c+u/2)
	}
	if w.Steps == 0 || r.IntN(3) > 0 {
		n, b := float64(1+r.IntN(100)), float64(1+r.IntN(30))
		w.Decodes, w.Sequences, w.Context = n+w.Steps, (n+w.Steps)*b, (n+w.Steps)*b*float64(200+r.IntN(8000))
	}
	return w
}

// off is the mean relative difference of two models over what engines do.
func off(a, b Model) float64 {
	r, sum := rand.New(rand.NewPCG(1, 1)), 0.0
	const n = 500
	for range n {
		w := randomWork(r)
		sum += math.Abs(a.Ms(w)/b.Ms(w) - 1)
	}
	return sum / n
}

// stretch is a model with other constants.
func stretch(m Model, by ...float64) Model {
	v := m.vector()
	for i := range v {
		v[i] *= by[i%len(by)]
	}
	return v.model()
}

// TestLearner: whatever the engines' constants are, the estimate comes near them
// through noise and outliers, and follows when they change.
func TestLearner(t *testing.T) {
	for _, tc := range []struct {
		name     string
		truth    Model
		noise    float64 // relative
		outliers float64 // share of observations that are 3 to 10 times as long
		samples  int
		within   float64
	}{
		{"the prior is right", prior(), 0.05, 0, 200, 0.01},
		{"twice as slow", stretch(prior(), 2), 0.05, 0, 200, 0.02},
		{"twice as fast", stretch(prior(), 0.5), 0.05, 0, 200, 0.02},
		{"few observations", stretch(prior(), 2), 0.05, 0, 20, 0.06},
		{"only decode differs", stretch(prior(), 1, 1, 1, 0.6, 0.8, 0.7), 0.05, 0, 500, 0.02},
		{"each differs", stretch(prior(), 0.5, 1.3, 2, 0.8, 3, 0.6), 0.05, 0, 2000, 0.02},
		{"another engine's constants", Known().Deployments[5].Timing(), 0.05, 0, 2000, 0.02},
		{"much noise", stretch(prior(), 2), 0.3, 0, 2000, 0.05},
		{"outliers", stretch(prior(), 2), 0.05, 0.1, 1000, 0.03},
		{"many outliers", prior(), 0.05, 0.25, 2000, 0.08},
		{"far off", stretch(prior(), 8), 0.05, 0, 1000, 0.1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, l := rand.New(rand.NewPCG(3, 4)), NewLearner(prior())
			teach(r, &l, tc.truth, tc.noise, tc.outliers, tc.samples)
			if got := off(l.Model(), tc.truth); got > tc.within {
				t.Errorf("off by %.3f, want at most %.3f: %+v, want %+v", got, tc.within, l.Model(), tc.truth)
			}
			if c := l.Confidence(); tc.noise < 0.1 && tc.outliers == 0 && c < 0.7*l.Count()/(l.Count()+halfSure) {
				t.Errorf("confidence %.2f after %d observations", c, tc.samples)
			}
		})
	}
}

func teach(r *rand.Rand, l *Learner, truth Model, noise, outliers float64, n int) {
	for range n {
		w := randomWork(r)
		ms := truth.Ms(w) * math.Exp(noise*r.NormFloat64())
		if r.Float64() < outliers {
			ms *= 3 + 7*r.Float64()
		}
		l.Observe(w, ms, 2)
	}
}

// TestLearnerDrift: an engine that changes is followed within the memory.
func TestLearnerDrift(t *testing.T) {
	r, l := rand.New(rand.NewPCG(5, 6)), NewLearner(prior())
	teach(r, &l, prior(), 0.05, 0, 3000)
	slow := stretch(prior(), 1.5)
	teach(r, &l, slow, 0.05, 0, 4*memory)
	if got := off(l.Model(), slow); got > 0.03 {
		t.Errorf("off by %.3f", got)
	}
}

// TestLearnerPartial: what was never seen follows what the rest says of the
// hardware, and stays near the prior.
func TestLearnerPartial(t *testing.T) {
	r, l := rand.New(rand.NewPCG(7, 8)), NewLearner(prior())
	truth := stretch(prior(), 2)
	for range 500 {
		n, b := float64(1+r.IntN(100)), float64(1+r.IntN(30))
		w := Work{Decodes: n, Sequences: n * b, Context: n * b * float64(200+r.IntN(8000))}
		l.Observe(w, truth.Ms(w), 2)
	}
	if got, p := l.Model().Prefill, prior().Prefill; got.B <= p.B || got.B > 1.6*p.B {
		t.Errorf("prefill %+v from decode alone, prior %+v", got, p)
	}
	if p := l.Pace(); math.Abs(p.Decode.Value-2) > 0.02 || p.Decode.Deviation > 0.01 || p.Prefill.Deviation < 0.9 || p.Share != 0 {
		t.Errorf("pace: %+v, want unknown and 2", p)
	}
}

// TestLearnerAdd: two that are added have seen what both have.
func TestLearnerAdd(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	fast, slow, both := NewLearner(prior()), NewLearner(prior()), NewLearner(prior())
	teach(r, &fast, stretch(prior(), 0.7), 0.05, 0, 300)
	teach(r, &slow, stretch(prior(), 1.3), 0.05, 0, 300)
	both.Add(&fast)
	both.Add(&slow)
	both.Settle()
	other := NewLearner(stretch(prior(), 2))
	both.Add(&other) // of another prior: nothing
	if both.Samples() != 600 || math.Abs(both.Count()-fast.Count()-slow.Count()) > 1e-9 {
		t.Errorf("%d samples, count %v", both.Samples(), both.Count())
	}
	f, s := fast.Pace(), slow.Pace()
	for _, f := range []struct {
		got  Factor
		want float64
	}{{f.Prefill, 0.7}, {f.Decode, 0.7}, {f.Mix(0.5), 0.7}, {s.Prefill, 1.3}, {s.Decode, 1.3}, {s.Mix(0.1), 1.3}} {
		if math.Abs(f.got.Value-f.want) > 0.03 {
			t.Errorf("pace %+v, want %v", f.got, f.want)
		}
	}
	if a, b := both.Model().Ms(Work{Decodes: 1}), prior().Ms(Work{Decodes: 1}); a < 0.8*b || a > 1.2*b {
		t.Errorf("decode step of both %v, prior %v", a, b)
	}
}

// naiveLearner keeps every observation and solves by elimination.
type naiveLearner struct {
	prior  vector
	seen   []observation
	spread float64
}

type observation struct {
	x            vector
	over, weight float64
}

// factors are the least squares of all observations, with the prior's inverse
// covariance, as differences from 1.
func (n *naiveLearner) factors() vector {
	var m [constants][constants + 1]float64
	cov := [constants][2 * constants]float64{}
	for i := range constants {
		for j := range constants {
			cov[i][j] = commonDeviation * commonDeviation
			if i/3 == j/3 {
				cov[i][j] += partDeviation * partDeviation
			}
		}
		cov[i][i] += ownDeviation * ownDeviation
		cov[i][constants+i] = 1
	}
	for i := range constants {
		for j := range 2 * constants {
			if j != i {
				cov[i][j] /= cov[i][i]
			}
		}
		cov[i][i] = 1
		for k := range constants {
			if f := cov[k][i]; k != i {
				for j := range 2 * constants {
					cov[k][j] -= f * cov[i][j]
				}
			}
		}
	}
	for i := range constants {
		copy(m[i][:constants], cov[i][constants:])
		for k, o := range n.seen {
			fade := math.Pow(1-1.0/memory, float64(len(n.seen)-1-k))
			for j := range constants {
				m[i][j] += fade * o.weight * o.x[i] * o.x[j]
			}
			m[i][constants] += fade * o.weight * o.x[i] * o.over
		}
	}
	var out vector
	for i := range constants {
		for k := range constants {
			if f := m[k][i] / m[i][i]; k != i {
				for j := range constants + 1 {
					m[k][j] -= f * m[i][j]
				}
			}
		}
	}
	for i := range out {
		out[i] = m[i][constants] / m[i][i]
	}
	return out
}

func (n *naiveLearner) observe(w Work, ms, noise float64) {
	o := observation{x: w.vector()}
	for i := range o.x {
		o.x[i] *= n.prior[i]
	}
	o.over = ms
	for _, v := range o.x {
		o.over -= v
	}
	own, expected := n.factors(), 0.0
	for i := range own {
		expected += (1 + own[i]) * o.x[i]
	}
	noise += noiseShare * expected
	z := math.Abs(ms-expected) / noise
	o.weight = min(1, clip*n.spread/z) / (noise * noise)
	if z > usual*n.spread {
		n.spread *= 1 + adapt
	} else {
		n.spread = max(1, n.spread*(1-adapt))
	}
	n.seen = append(n.seen, o)
}

// TestLearnerAgainstNaive compares random histories, whose constants stay within
// the bounds, with a naive batch.
func TestLearnerAgainstNaive(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for history := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, history))
		l, n := NewLearner(prior()), naiveLearner{prior: prior().vector(), spread: 1}
		by := make([]float64, constants)
		for i := range by {
			by[i] = 0.6 + r.Float64()
		}
		truth := stretch(prior(), by...)
		for step := range 60 {
			w := randomWork(r)
			ms := truth.Ms(w) * math.Exp(0.1*r.NormFloat64())
			l.Observe(w, ms, 2)
			n.observe(w, ms, 2)
			want := n.factors()
			for i := range want {
				if math.Abs(l.factors[i]-1-want[i]) > 1e-5 {
					t.Fatalf("seed %d history %d step %d: factor %d: got %v, want %v", seed, history, step, i, l.factors[i]-1, want[i])
				}
			}
		}
	}
}

// FuzzLearner feeds it anything: the model stays finite and within bounds.
func FuzzLearner(f *testing.F) {
	f.Add(uint64(1), 1.0, 100.0, 5000.0, 0.0, 0.0, 0.0, 25.0, 2.0)
	f.Add(uint64(2), math.NaN(), math.Inf(1), -1.0, 1e308, 1e308, 1e-308, 5e-324, 0.0)
	f.Add(uint64(3), 0.0, 0.0, 0.0, 1.0, 1.0, 100.0, 1e-3, math.NaN())
	f.Add(uint64(4), 0.0, 1e308, 1e308, 0.0, 0.0, 0.0, 1e7, 1e-300)
	f.Fuzz(func(t *testing.T, seed uint64, steps, tokens, area, decodes, sequences, context, ms, noise float64) {
		l := NewLearner(prior())
		r := rand.New(rand.NewPCG(seed, 1))
		odd := Work{Steps: steps, Tokens: tokens, Area: area, Decodes: decodes, Sequences: sequences, Context: context}
		for range 20 {
			l.Observe(odd, ms, noise)
			teach(r, &l, stretch(prior(), 1.5), 0.05, 0, r.IntN(3))
			if err := sane(&l); err != nil {
				t.Fatal(err)
			}
		}
		sum := NewLearner(prior())
		sum.Add(&l)
		sum.Settle()
		if err := sane(&sum); err != nil {
			t.Fatal(err)
		}
	})
}

func sane(l *Learner) error {
	for i, c := range l.Model().vector() {
		if at := l.prior[i]; !(c >= leastKnown*at*(1-1e-9) && c <= mostKnown*at*(1+1e-9)) {
			return fmt.Errorf("constant %d: %v, prior %v", i, c, at)
		}
	}
	if c := l.Confidence(); !(c >= 0 && c <= 1) {
		return fmt.Errorf("confidence %v", c)
	}
	p, m := l.Pace(), l.Pace().Mix(0.5)
	for _, v := range []float64{p.Prefill.Value, p.Prefill.Deviation, p.Decode.Value, p.Decode.Deviation, p.Share, m.Value, m.Deviation, l.spread, l.count} {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("pace %v, spread %v, count %v", p, l.spread, l.count)
		}
	}
	return nil
}

// TestLearnerOddPriors: a prior without a constant, or with figures that are none.
func TestLearnerOddPriors(t *testing.T) {
	for _, m := range []Model{
		{}, {Prefill: Prefill{A: 16, B: 0.018}, Decode: Decode{D: 5.7, F: 1e-4}},
		{Prefill: Prefill{A: math.NaN(), B: math.Inf(1), G: -1}, Decode: Decode{D: 10}},
	} {
		l := NewLearner(m)
		teach(rand.New(rand.NewPCG(1, 2)), &l, stretch(l.Prior(), 2), 0.01, 0, 300)
		if err := sane(&l); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
		if want := stretch(l.Prior(), 2); l.Samples() > 0 && off(l.Model(), want) > 0.05 {
			t.Errorf("%+v: got %+v", m, l.Model())
		}
	}
}

// BenchmarkObserve is the cost of one observation.
func BenchmarkObserve(b *testing.B) {
	r, l := rand.New(rand.NewPCG(1, 1)), NewLearner(prior())
	works := make([]Work, 256)
	for i := range works {
		works[i] = randomWork(r)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		w := works[i%len(works)]
		l.Observe(w, prior().Ms(w), 5)
	}
}
