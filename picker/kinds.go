package picker

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// Workers of one deployment and role share what is learned of them: they are one
// class. A class whose workers differ by more than chance, as H100 beside H200
// under one name, is divided into kinds: where a gap is in how fast they do what the
// class does, or prefill, or decode. What the workers of a kind have shown is added up, and its model is
// theirs. A worker that has shown little joins the kind that it is nearest to, one that has
// shown nothing the largest.

const (
	// relearnEvery is how often models are made anew, at most; with many workers less
	// often, so that it stays under some 0.1 ms a second.
	relearnEvery     = time.Second
	relearnPerWorker = 10 * time.Millisecond
	// A gap divides a class if it is larger than that share, and than gapDeviations of
	// the two beside it.
	gap, gapDeviations = 0.06, 3
	// shown is how sure a worker's pace must be for it to count in dividing.
	shown = 0.05
	// hinted is how sure it must be to be put with those that it is nearest to.
	hinted = 0.3
	// mostKinds bounds the kinds of a class.
	mostKinds = 4
	// believed is the confidence from which on a learned model replaces the prior.
	believed = 0.4
	// changes is the share by which a constant has to move for the board to be told.
	changes = 0.02
)

// ClassStats is what was learned of the workers of one kind.
type ClassStats struct {
	Deployment string
	Role       kvindex.Role
	// Kind tells the kinds of a class apart, from 0; the largest is the first.
	Kind, Workers int
	// Prior and Model are the constants to start from and those in use, ms (divided by
	// the time scale). Learned says that they come from observations.
	Prior, Model timing.Model
	Learned      bool
	Confidence   float64 // 0 to 1
	// Samples and Rejected are the observations taken in and refused, of the workers
	// that are there now; Error is the mean relative error of the estimate, 0 to 1.
	Samples, Rejected uint64
	Error             float64
}

// paced is a worker with how fast it is.
type paced struct {
	worker *worker
	pace   timing.Pace
}

// relearn makes the models anew if it is time.
func (p *Pool) relearn(now time.Time) {
	every := max(relearnEvery, time.Duration(len(p.workers))*relearnPerWorker)
	if since := now.Sub(p.learnedAt); since >= 0 && since < every {
		return
	}
	p.learnedAt = now
	p.learned = p.learned[:0]
	classes := slices.Clone(p.workers)
	slices.SortStableFunc(classes, func(a, b *worker) int {
		return cmp.Or(cmp.Compare(a.deployed, b.deployed), cmp.Compare(a.hello.Role, b.hello.Role))
	})
	for len(classes) > 0 {
		n := 1
		for n < len(classes) && classes[n].deployed == classes[0].deployed && classes[n].hello.Role == classes[0].hello.Role {
			n++
		}
		if classes[0].hello.Role != kvindex.RoleRelay && classes[0].deployed != "" {
			p.relearnClass(classes[:n])
		}
		classes = classes[n:]
	}
}

// relearnClass makes the models of one class.
func (p *Pool) relearnClass(class []*worker) {
	whole := together(class)
	share := whole.Pace().Share
	mix := func(m *paced) timing.Factor { return m.pace.Mix(share) }
	kinds := [][]paced{nil}
	var rest []paced
	for _, w := range class {
		m := paced{worker: w, pace: w.watch.learner.Pace()}
		if mix(&m).Deviation < shown {
			kinds[0] = append(kinds[0], m)
		} else {
			rest = append(rest, m)
		}
	}
	for _, by := range []func(*paced) timing.Factor{
		mix, func(m *paced) timing.Factor { return m.pace.Prefill }, func(m *paced) timing.Factor { return m.pace.Decode },
	} {
		kinds = divide(kinds, by)
	}
	slices.SortStableFunc(kinds, func(a, b []paced) int { return cmp.Compare(len(b), len(a)) })
	settle(kinds, rest, mix)
	for i, kind := range kinds {
		members := make([]*worker, len(kind))
		for j := range kind {
			members[j] = kind[j].worker
		}
		p.post(i, members)
	}
}

// settle puts the others where they seem to belong, or in the largest kind if nothing
// is known of them.
func settle(kinds [][]paced, rest []paced, by func(*paced) timing.Factor) {
	means := make([]float64, len(kinds))
	for i, kind := range kinds {
		for j := range kind {
			means[i] += by(&kind[j]).Value / float64(len(kind))
		}
	}
	for i := range rest {
		at, pace := 0, by(&rest[i])
		for k := range means {
			if pace.Deviation < hinted && math.Abs(means[k]-pace.Value) < math.Abs(means[at]-pace.Value) {
				at = k
			}
		}
		kinds[at] = append(kinds[at], rest[i])
	}
}

// together is what workers of one prior have shown.
func together(workers []*worker) timing.Learner {
	sum := timing.NewLearner(workers[0].watch.learner.Prior())
	for _, w := range workers {
		sum.Add(&w.watch.learner)
	}
	sum.Settle()
	return sum
}

// divide cuts each group where a gap is, if all in it have shown what they do.
func divide(groups [][]paced, by func(*paced) timing.Factor) [][]paced {
	var out [][]paced
	for n, g := range groups {
		slices.SortStableFunc(g, func(a, b paced) int { return cmp.Compare(by(&a).Value, by(&b).Value) })
		from := 0
		if slices.ContainsFunc(g, func(m paced) bool { return by(&m).Deviation > shown }) {
			from = len(g) // no cuts
		}
		for i := from + 1; i < len(g); i++ {
			a, b := by(&g[i-1]), by(&g[i])
			if d := b.Value - a.Value; d > gap*a.Value && d > gapDeviations*math.Hypot(a.Deviation, b.Deviation) &&
				len(out)+len(groups)-n < mostKinds {
				out = append(out, g[from:i:i])
				from = i
			}
		}
		if from == len(g) {
			from = 0
		}
		out = append(out, g[from:])
	}
	return out
}

// post gives the workers of a kind their model.
func (p *Pool) post(kind int, workers []*worker) {
	if len(workers) == 0 {
		return
	}
	sum := together(workers)
	s := ClassStats{
		Deployment: workers[0].deployed, Role: workers[0].hello.Role, Kind: kind, Workers: len(workers),
		Prior: sum.Prior(), Model: sum.Prior(), Confidence: sum.Confidence(), Samples: sum.Samples(), Rejected: sum.Rejected(),
	}
	s.Error, _ = sum.Error()
	if s.Confidence >= believed {
		s.Model, s.Learned = sum.Model(), true
	}
	if !slices.ContainsFunc(workers, func(w *worker) bool { return differs(w.timing, s.Model) }) {
		s.Model = workers[0].timing
	}
	for _, w := range workers {
		if w.timing != s.Model {
			w.timing, p.moved = s.Model, true
		}
	}
	p.learned = append(p.learned, s)
}

// differs reports whether a constant of b is another than that of a, by more than
// the board needs to know.
func differs(a, b timing.Model) bool {
	off := func(a, b float64) bool { return math.Abs(b-a) > changes*math.Abs(a) }
	return off(a.Prefill.A, b.Prefill.A) || off(a.Prefill.B, b.Prefill.B) || off(a.Prefill.G, b.Prefill.G) ||
		off(a.Decode.D, b.Decode.D) || off(a.Decode.E, b.Decode.E) || off(a.Decode.F, b.Decode.F)
}
