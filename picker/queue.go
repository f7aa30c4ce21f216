package picker

import (
	"math"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
)

// queue predicts how long a worker prefills what it has been given: our own
// bookings there that have not produced their first token, and the tokens that
// the worker's reports show beyond those.
//
// It is one server that works off its backlog in booking order from start on,
// whatever it reports: the prediction moves with the clock alone. A first token
// confirms or corrects it. The tail of a backlog that should be gone but is not
// confirmed so counts as a floor of its price.
type queue struct {
	legs []*leg // in booking order, each with uncached > 0
	// tokens is the sum of uncached over legs, area the sum of
	// uncached*(2*cached+uncached): integers, so that they return to 0 exactly.
	tokens, area int
	// start is when the worker began with legs[0], as far as known.
	start time.Time
	// others are uncached tokens of requests that are not ours, at reported.
	others   int
	reported time.Time
}

// floorShare is the part of its predicted time that unconfirmed work counts
// for at least: a report is late by up to its interval, and the fit of the
// constants is off by some 5 % on average.
const floorShare = 0.05

// rates are the prices on a worker at one moment.
type rates struct {
	prefill timing.Prefill
	chunk   int // tokens a step
	// decodeMs is the decode step that each prefill step carries along; 0 if
	// nothing decodes.
	decodeMs float64
}

// ms is the time to prefill tokens with that area. They share steps: an engine
// fills a step from several prompts, so a step's constant is paid once a chunk.
func (r rates) ms(tokens, area int) float64 {
	return float64(timing.Steps(tokens, r.chunk))*(r.prefill.A+r.decodeMs) +
		r.prefill.B*float64(tokens) + r.prefill.G*float64(area)/2
}

// clock is a queue's prediction as a function of the time. All figures are ms,
// times on the scale of [Pool.ms].
type clock struct {
	half         float64 // of a decode step
	ours, others float64 // the prices of the two backlogs
	// start is when the worker began with ours, reported when others were reported,
	// lead the time from the one to the other.
	start, reported, lead float64
	// least is what the queue counts as in any case.
	least float64
	// until is when the worker's lease ends; out what rules it out before.
	until float64
	out   exclusion
}

// clock is the prediction from what is known now; ms gives a time on its scale.
func (q *queue) clock(r rates, ms func(time.Time) float64) clock {
	c := clock{half: r.decodeMs / 2, ours: r.ms(q.tokens, q.area)}
	if len(q.legs) > 0 {
		c.start, c.lead = ms(q.start), msBetween(q.start, q.reported)
	}
	if q.others > 0 {
		c.others, c.reported = r.ms(q.others, 0), ms(q.reported)
	}
	return c
}

// known is the predicted time until a request that arrives now would start, by what is
// known of the work there: the
// rest of the running step (half a decode step on average), our backlog, and
// that of the others, of which the worker does what time our own leaves.
func (c *clock) known(now float64) float64 {
	q, onOurs := c.half, 0.0
	if c.ours > 0 {
		spent := now - c.start
		if spent < 0 {
			spent = 0
		}
		left := c.ours - spent
		if onOurs = spent - c.lead; left < 0 {
			onOurs = c.ours - c.lead
		}
		if floor := floorShare * c.ours; left < floor {
			left = floor
		}
		q += left
	}
	if c.others > 0 {
		spare := now - c.reported
		if onOurs > 0 {
			spare -= onOurs
		}
		left, floor := c.others, floorShare*c.others
		if spare > 0 {
			left -= spare
		}
		if left < floor {
			left = floor
		}
		q += left
	}
	return q
}

// line is a stretch of a clock on which its queue is a - b*now.
type line struct{ a, b, from, to float64 }

// line is the stretch that now is on. It also ends where the lease does.
func (c *clock) line(now float64) line {
	l := line{from: now, to: math.Inf(1)}
	if now <= c.until {
		l.to = math.Nextafter(c.until, l.to)
	}
	before := func(at float64) bool {
		if now < at {
			l.to = min(l.to, at)
		}
		return now < at
	}
	if c.ours > 0 && !before(c.start) && before(c.start+c.ours-floorShare*c.ours) {
		l.b = 1
	}
	if c.others > 0 && !before(c.reported) {
		spare, spares := now-c.reported, 1.0 // and its growth
		if c.ours > c.lead && !before(c.start+c.lead) {
			spare -= min(now-c.start, c.ours) - c.lead
			if before(c.start + c.ours) {
				spares = 0
			}
		}
		if left := c.others - floorShare*c.others - spare; left > 0 && spares > 0 {
			l.b++
			l.to = min(l.to, now+left)
		}
	}
	known := c.known(now)
	l.a = known + l.b*now
	switch {
	case known <= c.least: // it only falls
		l.a, l.b = c.least, 0
	case l.b > 0 && c.least > 0:
		l.to = min(l.to, (l.a-c.least)/l.b)
	}
	return l
}

// standing is what rules the worker out now, whatever the request.
func (c *clock) standing(now float64) exclusion {
	if now > c.until && c.out != outRelay {
		return outNotReady
	}
	return c.out
}

// push appends a leg that was booked now. A worker that should be through with
// what it had begins with it now: the time since then was not spent on it.
func (q *queue) push(l *leg, r rates, now time.Time) {
	if through := q.start.Add(duration(r.ms(q.tokens, q.area))); len(q.legs) == 0 || through.Before(now) {
		q.start = now.Add(-duration(r.ms(q.tokens, q.area)))
	}
	q.legs = append(q.legs, l)
	q.tokens += l.uncached
	q.area += l.area()
}

// drop removes a leg that will not be heard of again: closed, moved or lost. The
// time that the worker is predicted to have spent on it is spent; the rest of
// its work is gone.
func (q *queue) drop(l *leg, r rates, now time.Time) {
	before, own, ok := q.cut(l, r)
	if ok {
		q.start = q.start.Add(duration(min(max(0, msBetween(q.start, now)-before), own)))
	}
}

// finish removes a leg whose first token was reported now, and not yet at the
// report before, at since. What comes after it began when it was predicted to
// end, if that lies between the two.
func (q *queue) finish(l *leg, r rates, since, now time.Time) {
	_, own, ok := q.cut(l, r)
	if !ok {
		return
	}
	q.start = q.start.Add(duration(own))
	if q.start.Before(since) {
		q.start = since
	}
	if q.start.After(now) {
		q.start = now
	}
}

// cut takes a leg out and returns the price of what was before it and its own;
// false if it is not there.
func (q *queue) cut(l *leg, r rates) (before, own float64, ok bool) {
	tokens, area := 0, 0
	for i, at := range q.legs {
		if at != l {
			tokens, area = tokens+at.uncached, area+at.area()
			continue
		}
		before = r.ms(tokens, area)
		own = r.ms(tokens+l.uncached, area+l.area()) - before
		q.tokens, q.area = q.tokens-l.uncached, q.area-l.area()
		copy(q.legs[i:], q.legs[i+1:])
		q.legs[len(q.legs)-1] = nil
		q.legs = q.legs[:len(q.legs)-1]
		return before, own, true
	}
	return 0, 0, false
}

// report takes over the worker's count of uncached tokens accepted and not yet
// prefilled. What exceeds the accepted ones of ours belongs to other replicas
// and direct clients. If it is less than ours, the difference has been
// prefilled or needed no prefill, oldest first: those legs are finished even if
// no first token is reported (answers that do not stream show none), and the
// next one is that far.
func (q *queue) report(tokens int, r rates, now time.Time) {
	accepted := 0
	for _, l := range q.legs {
		if l.accepted {
			accepted += l.uncached
		}
	}
	since := q.reported
	q.others, q.reported = max(0, tokens-accepted), now
	done := accepted - tokens
	for i := 0; i < len(q.legs) && done > 0; {
		l := q.legs[i]
		switch {
		case !l.accepted:
			i++
		case l.uncached <= done:
			done -= l.uncached
			q.finish(l, r, since, now)
		default:
			if at := now.Add(-duration(r.prefill.B * float64(done))); at.Before(q.start) {
				q.start = at
			}
			return
		}
	}
}

func msBetween(from, to time.Time) float64 {
	return max(0, float64(to.Sub(from))/float64(time.Millisecond))
}

func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
