package policies

import (
	"math"
	"math/rand/v2"
	"time"
)

// Latency is llm-d's predicted-latency routing as its chart composes it:
//
//	prefix affinity 0.99, SLO tier, prefix affinity 0.80, latency scorer, weighted random picker
//
// One model for the whole pool predicts the time to first token and between
// tokens on each worker from its gauges, the prompt and what the worker holds of
// it; it learns online from the answers. An affinity filter keeps the workers that
// hold at least that share of the prompt, unless the best of them is predicted to
// be more than maxPenaltyMs slower than the best of the others. The tier filter
// keeps, 99 times in 100, the workers predicted to keep both bounds if there are
// any. Of those the scorer prefers the least headroom (the rest stays free for
// bursts), or with Most the most; without any, the least deficit, idle workers
// first. The picker draws by score.
//
// llm-d trains gradient-boosted trees in a sidecar; here it is recursive least
// squares on the same features with their products, which is enough for engines
// whose step times are that simple.
type Latency struct {
	Rand      *rand.Rand
	BlockSize int
	// TTFTMs is a request's bound on a worker, TPOTMs the one between tokens.
	TTFTMs func(w, uncached, cached int) float64
	TPOTMs float64
	Most   bool

	ttft, tpot regression
	open       map[string]*observed
}

// Defaults of the chart and its plugins: the gate of the affinity filters, the
// share of picks that look at workers predicted to miss, and the weights of the
// two headrooms.
const (
	maxPenaltyMs  = 5000
	exploreTier   = 0.01
	ttftWeight    = 0.8
	tpotWeight    = 0.2
	strictMatch   = 0.99
	looseMatch    = 0.80
	learnedEnough = 200 // answers before which it picks by requests
)

// observed is what was known of a request when it was sent.
type observed struct {
	ttft, tpot []float64
	sent       time.Duration
	first      time.Duration
}

// forecast is one candidate of a pick.
type forecast struct {
	worker     int
	seen       *observed
	ttftMs     float64
	ttft, tpot float64 // headrooms, ms
	match      float64
	requests   int
}

func (c *forecast) keeps() bool { return c.ttft >= 0 && c.tpot >= 0 }

// Pick implements [Policy].
func (p *Latency) Pick(r *Request, f Fleet) int {
	if p.open == nil {
		p.open = map[string]*observed{}
		p.ttft, p.tpot = newRegression(7), newRegression(5)
	}
	var list []forecast
	for w := range f.Workers() {
		if f.Up(w) {
			list = append(list, p.forecast(r, w, f.Look(w)))
		}
	}
	chosen := p.choose(list)
	chosen.seen.sent = r.Now
	p.open[r.ID] = chosen.seen
	return chosen.worker
}

func (p *Latency) forecast(r *Request, w int, view *Worker) forecast {
	c := forecast{worker: w, seen: p.features(r, w, view), requests: view.Requests()}
	c.ttftMs = p.ttft.predict(c.seen.ttft)
	c.ttft = p.TTFTMs(w, uncached(r, w, p.BlockSize), cachedTokens(r, w, p.BlockSize)) - c.ttftMs
	c.tpot = p.TPOTMs - p.tpot.predict(c.seen.tpot)
	if len(r.Blocks) > 0 {
		c.match = float64(r.Overlap[w]) / float64(len(r.Blocks))
	}
	return c
}

func (p *Latency) choose(list []forecast) *forecast {
	if p.ttft.seen < learnedEnough {
		best := &list[p.Rand.IntN(len(list))]
		for i := range list {
			if list[i].requests < best.requests {
				best = &list[i]
			}
		}
		return best
	}
	list = sticky(list, strictMatch)
	if good := filter(list, (*forecast).keeps); len(good) > 0 && len(good) < len(list) {
		if p.Rand.Float64() < exploreTier {
			list = filter(list, func(c *forecast) bool { return !c.keeps() })
		} else {
			list = good
		}
	}
	return p.draw(sticky(list, looseMatch))
}

// sticky is an affinity filter.
func sticky(list []forecast, match float64) []forecast {
	warm := filter(list, func(c *forecast) bool { return c.match >= match })
	if len(warm) == 0 || len(warm) == len(list) {
		return list
	}
	fastest := func(list []forecast) float64 {
		ms := list[0].ttftMs
		for _, c := range list {
			ms = min(ms, c.ttftMs)
		}
		return ms
	}
	cold := filter(list, func(c *forecast) bool { return c.match < match })
	if fastest(warm)-fastest(cold) > maxPenaltyMs {
		return list
	}
	return warm
}

func filter(list []forecast, keep func(*forecast) bool) []forecast {
	var out []forecast
	for i := range list {
		if keep(&list[i]) {
			out = append(out, list[i])
		}
	}
	return out
}

// draw scores and picks at random by score.
func (p *Latency) draw(list []forecast) *forecast {
	most := p.Most
	if !list[0].keeps() { // none does: the tier filter saw to it
		most = true
		for _, in := range []func(*forecast) bool{
			func(c *forecast) bool { return c.requests == 0 },
			func(c *forecast) bool { return c.ttft >= 0 },
			func(c *forecast) bool { return c.tpot >= 0 },
		} {
			if some := filter(list, in); len(some) > 0 {
				list = some
				break
			}
		}
	}
	ttft, ttftSpan := span(list, func(c *forecast) float64 { return c.ttft })
	tpot, tpotSpan := span(list, func(c *forecast) float64 { return c.tpot })
	best, bestKey := 0, -1.0
	for i := range list {
		score, weights := 0.0, 0.0
		if ttftSpan > 0 {
			score, weights = score+ttftWeight*(list[i].ttft-ttft)/ttftSpan, weights+ttftWeight
		}
		if tpotSpan > 0 {
			score, weights = score+tpotWeight*(list[i].tpot-tpot)/tpotSpan, weights+tpotWeight
		}
		if weights > 0 {
			score /= weights
		}
		if !most {
			score = 1 - score
		}
		if key := math.Pow(p.Rand.Float64(), 1/max(score, 1e-3)); key > bestKey {
			best, bestKey = i, key
		}
	}
	return &list[best]
}

// span is the least value and the distance to the largest.
func span(list []forecast, value func(*forecast) float64) (least, width float64) {
	least = value(&list[0])
	largest := least
	for i := range list {
		v := value(&list[i])
		least, largest = min(least, v), max(largest, v)
	}
	return least, largest - least
}

// features are scaled to about 0 to 10.
func (p *Latency) features(r *Request, w int, view *Worker) *observed {
	fresh, old := float64(uncached(r, w, p.BlockSize))/8192, float64(cachedTokens(r, w, p.BlockSize))/8192
	queued, context := float64(view.QueuedTokens)/8192, float64(view.ContextTokens)/65536
	running := float64(view.Running) / 16
	use := float64(view.KVUsed) / float64(view.KVTotal)
	return &observed{
		ttft: []float64{1, fresh, fresh * (old + fresh/2), queued, running, context, use},
		tpot: []float64{1, running, context, queued, use},
	}
}

// First implements [Policy].
func (p *Latency) First(r *Request, _ int, now time.Duration) {
	if o := p.open[r.ID]; o != nil && o.first == 0 {
		o.first = now
		p.ttft.learn(o.ttft, milliseconds(now-o.sent))
	}
}

// Done implements [Policy].
func (p *Latency) Done(r *Request, _ int, now time.Duration) {
	o := p.open[r.ID]
	delete(p.open, r.ID)
	// The router counts the tokens of the answers that it passes on; here their number
	// is in the request's record of the trace.
	if o == nil || o.first == 0 || r.Output < 2 {
		return
	}
	p.tpot.learn(o.tpot, milliseconds(now-o.first)/float64(r.Output-1))
}

// regression is recursive least squares with forgetting.
type regression struct {
	weights []float64
	inverse [][]float64 // of the features' covariance
	seen    int
}

// forget is the weight of the past at every observation: half after 700.
const forget = 0.999

func newRegression(n int) regression {
	r := regression{weights: make([]float64, n), inverse: make([][]float64, n)}
	for i := range r.inverse {
		r.inverse[i] = make([]float64, n)
		r.inverse[i][i] = 1e4
	}
	return r
}

func (r *regression) predict(x []float64) float64 {
	sum := 0.0
	for i, v := range x {
		sum += r.weights[i] * v
	}
	return max(0, sum)
}

func (r *regression) learn(x []float64, y float64) {
	r.seen++
	n := len(x)
	px, scale, wrong := make([]float64, n), forget, y
	for i := range n {
		for j := range n {
			px[i] += r.inverse[i][j] * x[j]
		}
		scale += x[i] * px[i]
		wrong -= r.weights[i] * x[i]
	}
	for i := range n {
		r.weights[i] += px[i] / scale * wrong
	}
	for i := range n {
		for j := range n {
			r.inverse[i][j] = (r.inverse[i][j] - px[i]*px[j]/scale) / forget
		}
	}
}
