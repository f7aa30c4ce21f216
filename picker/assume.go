package picker

import (
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// A worker whose load is not known must not look idle. Agents report the load at
// least twice a second while they live, and every second that they do. So a worker
// that says that it lives and does not report, or has not yet, counts as at least as
// busy as the mean of those of its role that do: the more so the older its last
// report is. What is booked there counts in any case.

const (
	// freshFor is the age up to which a report is believed in full, staleFrom the one
	// from which on the mean counts in full.
	freshFor  = 2 * time.Second
	staleFrom = 10 * time.Second
)

// assumption is the least that a worker's load is taken for.
type assumption struct {
	share    float64 // that the mean counts for, 0 to 1
	queueMs  float64
	requests int
}

// assume sets what is assumed of a worker that has just said that it lives.
func (p *Pool) assume(w *worker, now time.Time) {
	share := 1.0
	if !w.loaded.IsZero() {
		share = min(1, max(0, float64(now.Sub(w.loaded)-freshFor)/float64(staleFrom-freshFor)))
	}
	if share == 0 && w.assumed == (assumption{}) {
		return
	}
	w.assumed = assumption{}
	if share > 0 {
		if queue, requests, n := p.mean(w.hello.Role, now); n > 0 {
			w.assumed = assumption{share: share, queueMs: share * queue, requests: int(share*requests + 0.5)}
		}
	}
	w.touch()
}

// mean is the load of the ready workers of a role that report, and their number.
func (p *Pool) mean(role kvindex.Role, now time.Time) (queueMs, requests float64, n int) {
	p.refresh(now)
	for i, w := range p.workers {
		if w.hello.Role == role && !w.loaded.IsZero() && now.Sub(w.loaded) <= freshFor && w.ready(now) {
			n++
			queueMs += p.board.candidates[i].queue
			requests += float64(w.requests())
		}
	}
	if n > 0 {
		queueMs, requests = queueMs/float64(n), requests/float64(n)
	}
	return queueMs, requests, n
}
