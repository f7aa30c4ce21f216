package policies

import (
	"math/rand/v2"
	"time"
)

// Latency is llm-d's predicted-latency rule: a model of time to first token and
// of time between tokens, learned online for each worker from the answers, and a
// choice by headroom under the SLO. Where some workers are predicted to keep both
// bounds it takes the one with the least headroom (the rest stays free for harder
// requests), else the one that misses by least. One request in a hundred goes to
// a random worker, so that the model sees more than its own choices.
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

	models []latencyModel
	open   map[string]*observed
}

// latencyModel predicts one worker.
type latencyModel struct{ ttft, tpot regression }

// observed is what was known of a request when it was sent.
type observed struct {
	ttft, tpot []float64
	sent       time.Duration
	first      time.Duration
}

// Pick implements [Policy].
func (p *Latency) Pick(r *Request, f Fleet) int {
	p.grow(f.Workers())
	explore := p.Rand.IntN(100) == 0
	chosen, chosenCost := -1, 0.0
	var seen *observed
	for w := range f.Workers() {
		if !f.Up(w) {
			continue
		}
		o := p.features(r, w, f.Look(w))
		m := &p.models[w]
		bound := p.TTFTMs(w, uncached(r, w, p.BlockSize), cachedTokens(r, w, p.BlockSize))
		cost := headroomCost(bound-m.ttft.predict(o.ttft), p.TPOTMs-m.tpot.predict(o.tpot))
		if explore || m.ttft.seen < 20 {
			cost = -1e9 + p.Rand.Float64()
		}
		if chosen < 0 || cost < chosenCost {
			chosen, chosenCost, seen = w, cost, o
		}
	}
	seen.sent = r.Now
	p.open[r.ID] = seen
	return chosen
}

// headroomCost orders workers by the share of each bound that is left: first
// those with both positive, the tightest in front, then the others, those that
// miss least in front. Headrooms are in ms.
func headroomCost(ttft, tpot float64) float64 {
	const weight = 20 // a millisecond between tokens counts as many to the first, answers being hundreds of tokens long
	if ttft >= 0 && tpot >= 0 {
		return 1e-3 * (ttft + weight*tpot)
	}
	return 1e6 - min(0, ttft) - weight*min(0, tpot)
}

func (p *Latency) grow(n int) {
	if p.open == nil {
		p.open = map[string]*observed{}
	}
	for len(p.models) < n {
		p.models = append(p.models, latencyModel{newRegression(7), newRegression(5)})
	}
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
func (p *Latency) First(r *Request, w int, now time.Duration) {
	if o := p.open[r.ID]; o != nil && o.first == 0 {
		o.first = now
		p.models[w].ttft.learn(o.ttft, milliseconds(now-o.sent))
	}
}

// Done implements [Policy].
func (p *Latency) Done(r *Request, w int, now time.Duration) {
	o := p.open[r.ID]
	delete(p.open, r.ID)
	// The router counts the tokens of the answers that it passes on; here their number
	// is in the request's record of the trace.
	if o == nil || o.first == 0 || r.Output < 2 {
		return
	}
	p.models[w].tpot.learn(o.tpot, milliseconds(now-o.first)/float64(r.Output-1))
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
