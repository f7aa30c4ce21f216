package timing

import "math"

// Work is what an engine computed in a stretch of time, summed over its steps.
type Work struct {
	// Steps are those that prefilled. Tokens are the uncached tokens they computed,
	// Area the sum of u*(c + u/2) over the prompts: u uncached tokens after c cached ones.
	Steps, Tokens, Area float64
	// Decodes are the steps that decoded, Sequences and Context the sums over them of
	// the sequences and of the resident tokens.
	Decodes, Sequences, Context float64
}

// constants is how many a model has, half of them of prefill.
const constants, half = 6, 3

// vector is one figure for each constant of a model, in the order of [Work].
type vector [constants]float64

func (m Model) vector() vector {
	return vector{m.Prefill.A, m.Prefill.B, m.Prefill.G, m.Decode.D, m.Decode.E, m.Decode.F}
}

func (v vector) model() Model {
	return Model{Prefill: Prefill{A: v[0], B: v[1], G: v[2]}, Decode: Decode{D: v[3], E: v[4], F: v[5]}}
}

func (w Work) vector() vector {
	return vector{w.Steps, w.Tokens, w.Area, w.Decodes, w.Sequences, w.Context}
}

func (v vector) dot(o vector) float64 {
	sum := 0.0
	for i := range v {
		sum += v[i] * o[i]
	}
	return sum
}

// Ms is the time that the work takes, ms.
func (m Model) Ms(w Work) float64 { return m.vector().dot(w.vector()) }

// Learner estimates the constants of engines from what they were seen to compute
// in stretches of time. It starts from a prior, which it leaves as far as the
// observations say so: the estimate is the least weighted squares of the
// observations' errors and of the distance to the prior, in which errors beyond the
// usual count for less (Huber) and old observations fade.
//
// Everything is in units of the prior: a constant is its factor, an observation
// the milliseconds that each constant of the prior accounts for. A constant that
// the prior has as 0 stays 0. Learners of one prior can be added up.
//
// Invariant: whatever is observed, every factor is finite and within its bounds.
type Learner struct {
	prior vector // the constants; not units
	seen  matrix // sum of weight * x * x', older observations fading
	sums  vector // sum of weight * x * (y - the prior's y)
	// count is how many observations are in the sums, faded like them.
	count float64
	// factors are the estimate of now.
	factors vector
	// wrong and wrongPrior are the faded sums of the relative errors of the estimate and of
	// the prior, each before the observation was taken in.
	wrong, wrongPrior float64
	// spent are the faded sums of the prior's times of prefill and of decode, ms.
	spent [2]float64
	// spread is the usual size of an error, in units of the noise that was said of it.
	spread            float64
	samples, rejected uint64
}

const (
	// The shortest and the longest time that an observation may have, and the share of
	// what is expected that it is off by in any case: step times vary, the form is a fit.
	minMs, maxMs, noiseShare = 1e-3, 1e7, 0.04
	// memory is how many observations count: older ones fade with that constant. A busy
	// worker has some a second.
	memory = 1000
	// Prior deviations of the factors: what all constants, those of prefill and those
	// of decode, and each alone may be off by. Hardware is faster or slower as a whole
	// before it is in parts.
	commonDeviation, partDeviation, ownDeviation = 0.3, 0.4, 0.2
	// clip is the error in units of the usual one beyond which an observation counts
	// for less (Huber's 1.345 times).
	clip = 1.345
	// The usual error moves by that share with each observation, up where the error is
	// beyond so many times of it and down else, and not below what was said of the noise.
	adapt, usual = 0.02, 0.67
	// Bounds of the factors, and the wider ones of constants that are known within
	// a few per cent.
	leastFactor, mostFactor = 0.2, 5
	leastKnown, mostKnown   = 0.05, 20
	knownWithin             = 0.05
	// absurd is how many times the prior's time, or that part of it, no engine takes.
	absurd = 100.0
	// The estimate is made anew with each of the first observations, then not as often.
	solveAlways, solveEvery = 100, 8
	// halfSure are the observations at which the confidence is a half, if all is well.
	halfSure = 32.0
	// useless is the mean relative error of an estimate that is worth nothing: the form
	// does not describe such engines.
	useless = 0.5
)

// NewLearner is a learner that knows the prior alone. Constants of the prior
// that are negative or not finite count as 0.
func NewLearner(prior Model) Learner {
	l := Learner{prior: prior.vector(), spread: 1}
	for i, c := range l.prior {
		if !(c >= 0) || math.IsInf(c, 0) {
			l.prior[i] = 0
		}
		l.factors[i] = 1
	}
	return l
}

// Observe takes in that the work took ms, give or take noise ms and some per cent.
// It refuses
// figures that no engine has: what is not finite or negative, and times that the
// prior is off by 100 times.
func (l *Learner) Observe(w Work, ms, noise float64) bool {
	x := w.vector()
	expected := 0.0
	for i := range x {
		if !(x[i] >= 0) || math.IsInf(x[i], 0) {
			l.rejected++
			return false
		}
		x[i] *= l.prior[i]
		expected += x[i]
	}
	if !(ms >= minMs) || ms > maxMs || !(noise >= 0) || math.IsInf(noise, 0) || !(expected > 0) ||
		expected > absurd*ms || ms > absurd*expected {
		l.rejected++
		return false
	}
	l.samples++
	l.take(x, ms-expected, ms, noise)
	return true
}

// take adds one observation: x in ms of the prior, over the time beyond the prior's.
func (l *Learner) take(x vector, over, ms, noise float64) {
	expected := l.factors.dot(x)
	own := ms - expected
	noise += noiseShare * expected // not of ms: what happens to be short must not count for more
	const keep = 1 - 1.0/memory
	l.spent[0] = keep*l.spent[0] + x[0] + x[1] + x[2]
	l.spent[1] = keep*l.spent[1] + x[3] + x[4] + x[5]
	l.count = keep*l.count + 1
	l.wrong = keep*l.wrong + min(1, math.Abs(own)/ms)
	l.wrongPrior = keep*l.wrongPrior + min(1, math.Abs(over)/ms)

	z := math.Abs(own) / noise
	weight := 1 / (noise * noise)
	if limit := clip * l.spread; z > limit {
		weight *= limit / z
	}
	if z > usual*l.spread {
		l.spread *= 1 + adapt
	} else {
		l.spread = max(1, l.spread*(1-adapt))
	}
	for i := range x {
		for j := range i + 1 {
			l.seen[i][j] = keep*l.seen[i][j] + weight*x[i]*x[j]
		}
		l.sums[i] = keep*l.sums[i] + weight*x[i]*over
	}
	if l.samples <= solveAlways || l.samples%solveEvery == 0 {
		l.solve()
	}
}

// Add takes in what another learner of the same prior has observed.
func (l *Learner) Add(o *Learner) {
	if l.prior != o.prior {
		return
	}
	for i := range l.sums {
		for j := range i + 1 {
			l.seen[i][j] += o.seen[i][j]
		}
		l.sums[i] += o.sums[i]
	}
	l.count += o.count
	l.spent[0], l.spent[1] = l.spent[0]+o.spent[0], l.spent[1]+o.spent[1]
	l.spread = max(l.spread, o.spread)
	l.wrong, l.wrongPrior = l.wrong+o.wrong, l.wrongPrior+o.wrongPrior
	l.samples, l.rejected = l.samples+o.samples, l.rejected+o.rejected
}

// Settle makes the estimate after calls of Add.
func (l *Learner) Settle() { l.solve() }

// solve finds the factors: those at a bound stay there, the others are the least
// squares given them.
func (l *Learner) solve() {
	m := priorInformation()
	for i := range m {
		for j := range i + 1 {
			m[i][j] += l.seen[i][j]
		}
	}
	var fixed [constants]bool
	at := vector{}
	for range constants {
		delta, root, ok := m.solve(l.sums, at, fixed)
		if !ok {
			return // keeps the estimate before
		}
		worst, by := -1, 0.0
		for i := range delta {
			if fixed[i] {
				continue
			}
			low, high := leastFactor-1, mostFactor-1.0
			if root.deviation(i) < knownWithin*(1+math.Abs(delta[i])) {
				low, high = leastKnown-1, mostKnown-1
			}
			if d := max(low-delta[i], delta[i]-high); d > by {
				worst, by = i, d
				at[i] = min(max(delta[i], low), high)
			}
		}
		if worst < 0 {
			for i := range delta {
				l.factors[i] = 1 + delta[i]
			}
			return
		}
		fixed[worst] = true
	}
	for i := range at {
		l.factors[i] = 1 + at[i]
	}
}

// Model is the estimate.
func (l *Learner) Model() Model {
	v := l.prior
	for i := range v {
		v[i] *= l.factors[i]
	}
	return v.model()
}

// Prior is what the learner started from.
func (l *Learner) Prior() Model { return l.prior.model() }

// Confidence says how far the estimate is to be preferred to the prior, 0 to 1: it
// grows with the number of observations, falls with the error of the estimate, and is
// 0 while the prior predicts better.
func (l *Learner) Confidence() float64 {
	if l.count <= 0 {
		return 0
	}
	wrong, prior := l.wrong/l.count, l.wrongPrior/l.count
	if wrong > 1.1*prior+0.01 {
		return 0
	}
	return l.count / (l.count + halfSure) * max(0, 1-wrong/useless)
}

// Error is the mean relative error of the estimate in what it was told next,
// 0 to 1, and that of the prior.
func (l *Learner) Error() (estimate, prior float64) {
	if l.count <= 0 {
		return 0, 0
	}
	return l.wrong / l.count, l.wrongPrior / l.count
}

// Samples are the observations taken in since the start, Rejected those refused.
func (l *Learner) Samples() uint64 { return l.samples }

// Rejected are the observations refused since the start.
func (l *Learner) Rejected() uint64 { return l.rejected }

// Count is the number of observations in the estimate, the older ones faded.
func (l *Learner) Count() float64 { return l.count }

// Factor is an estimate and its standard deviation.
type Factor struct{ Value, Deviation float64 }

// Pace is how fast engines are, by factors of the prior's times.
type Pace struct {
	Prefill, Decode Factor
	// Share is the part of the time that the prior would have taken for prefill.
	Share      float64
	covariance float64 // of the two
}

// Mix is the factor of work that is prefill by that share.
func (p Pace) Mix(share float64) Factor {
	a, b := share, 1-share
	va, vb := p.Prefill.Deviation*p.Prefill.Deviation, p.Decode.Deviation*p.Decode.Deviation
	return Factor{a*p.Prefill.Value + b*p.Decode.Value, math.Sqrt(max(0, a*a*va+2*a*b*p.covariance+b*b*vb))}
}

// Pace compares what was observed with the prior.
func (l *Learner) Pace() Pace {
	// Least squares of two factors, with a prior of 1 +- 1.
	aa, ab, bb := 1.0, 0.0, 1.0
	ya, yb := 0.0, 0.0
	for i := range l.sums {
		for j := range i + 1 {
			v := l.seen[i][j]
			if i != j {
				v *= 2
			}
			switch {
			case i < half:
				aa += v
			case j >= half:
				bb += v
			default:
				ab += v / 2
			}
		}
		if i < half {
			ya += l.sums[i]
		} else {
			yb += l.sums[i]
		}
	}
	det, spread := aa*bb-ab*ab, l.spread*l.spread
	p := Pace{
		Prefill:    Factor{1 + (bb*ya-ab*yb)/det, math.Sqrt(bb / det * spread)},
		Decode:     Factor{1 + (aa*yb-ab*ya)/det, math.Sqrt(aa / det * spread)},
		covariance: -ab / det * spread,
	}
	if sum := l.spent[0] + l.spent[1]; sum > 0 {
		p.Share = l.spent[0] / sum
	}
	return p
}
