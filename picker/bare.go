package picker

import (
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// A bare engine has no agent before it that names the requests it has. Its load is
// what its metrics page said some time ago; who is among those that run and wait is
// left to be judged by their age: a booking that was made well before the page was
// read is on it, a later one is not. So a request counts once here too, and at no
// moment are there fewer than we have booked or than the page says.
//
// What such a page never shows is a first token. So a leg's prefill counts as done
// when it is predicted to be, unless the page says that requests wait: engines begin
// with them in the order in which they came, so those are the last ones.

// onTheWay is how long a request takes from the pick until its engine's page shows
// it: through the gateway, and up to the end of a step. Taken too short, a request
// counts twice until the next page; too long, one that the engine has had for less
// hides one of somebody else's for as long.
const onTheWay = 20 * time.Millisecond

// typicalTokens is what a prompt lacks, in tokens, of which nothing is known, before
// this picker has had prompts of its own; typicalOver is over how many of these the
// mean runs.
const (
	typicalTokens = 512
	typicalOver   = 64
)

// bare takes over the report of a bare engine.
func (p *Pool) bare(w *worker, l *kvindex.Load, now time.Time) {
	read := now.Add(-time.Duration(l.AgeMs) * time.Millisecond)
	p.include(w, read.Add(-onTheWay), now)
	figures := *l
	figures.QueuedTokens, figures.Accepted, figures.FirstToken, figures.Done = 0, nil, nil, nil
	w.figures(&figures, now)
	w.loaded = read
	waiting, all := int(w.load.Waiting), int(w.load.Running)+int(w.load.Waiting)
	theirs := 0
	if others := max(0, w.others); all > 0 {
		theirs = min(others, waiting*others/all)
	}
	w.queue.judge(waiting-theirs, w.rates(), read, now)
	w.queue.others = theirs * int(p.typical)
	p.assume(w, now)
}

// include marks the legs on w that were put there before a time as part of its
// figures.
func (p *Pool) include(w *worker, before, now time.Time) {
	for _, list := range [...]*list{&p.unreported, &p.heard} {
		for b := list.first; b != nil; {
			next := b.next
			if l := b.at(w); l != nil && !l.accepted && l.since.Before(before) {
				l.accept()
				p.schedule(b, now)
			}
			b = next
		}
	}
}

// note takes a prompt into the mean of what prompts lack.
func (p *Pool) note(uncached int) { p.typical += (float64(uncached) - p.typical) / typicalOver }

// judge takes over that of our legs that a page of that time includes so many wait,
// the last ones. The others are finished if they should be by then; the first of
// those that wait cannot have begun.
func (q *queue) judge(waiting int, r rates, read, now time.Time) {
	since := q.reported
	q.reported = now
	begun := -waiting
	for _, l := range q.legs {
		if l.accepted {
			begun++
		}
	}
	for i := 0; i < len(q.legs) && begun > 0; begun-- {
		l := q.legs[i]
		if !l.accepted {
			i++
			begun++
			continue
		}
		if read.Before(q.start.Add(duration(r.ms(l.uncached, l.area())))) {
			return
		}
		q.finish(l, r, since, now)
	}
	if waiting > 0 && len(q.legs) > 0 && q.legs[0].accepted && q.start.Before(read) {
		q.start = read
	}
}

// Reports reports whether somebody else than the request's own stream tells when the
// answer of a booking ends. An agent does; of a bare engine nobody does.
func (p *Pool) Reports(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.bookings[id]
	return b == nil || b.decode.on == nil || !b.decode.on.hello.Bare
}
