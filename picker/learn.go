package picker

import (
	"math"
	"slices"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// watch follows what one worker computes, from its load reports alone, and learns
// how long that takes.
//
// The unit is a span: a stretch of time in which the engine was busy, from the end
// of one step to the end of another. First tokens and ends of answers are
// reported when a step ends; an idle engine starts with the first request. What was
// computed in between follows from the reports: prompts that had their first
// token (their tokens without those cached), and tokens generated, by which
// the contexts grew beyond what came with the prompts and went with the answers.
// Each sequence that decodes has one of them a step, so they give the number of
// steps too.
type watch struct {
	learner timing.Learner
	at      time.Time // of the last report; zero before the first
	// streaming are the requests that decode and whose tokens the agent counts. If that
	// is not all that run, spans say too little.
	streaming int
	// mute: contexts have not grown for the time still although requests decode, so the
	// agent does not count generated tokens.
	mute  bool
	still time.Duration
	// quiet is how long nothing was prefilled and nothing waited, ran the requests that
	// ran in it times its length.
	quiet, ran time.Duration
	// arrivals are the times at which those that wait came, as far as reports say, oldest
	// first.
	arrivals []time.Time
	span     span
}

// span is what was computed since from.
type span struct {
	from time.Time
	work timing.Work
	// begun is false until a step ends or the engine is idle; faulty says that some of
	// the work is not known.
	// beside says that requests decoded at a time.
	begun, faulty, beside bool
	// ahead are tokens that were prefilled of the next prompts when the last step ended
	// that is known of. unclear says that the first of them came at about the
	// beginning of that step, which so may or may not have had a part of it.
	ahead   float64
	unclear bool
	// beats are the steps that decoded since the last one that ended a prefill: all that
	// there were unless silent, which is that nothing decoded at a time, and all of them
	// prefilled unless alone, which is that nothing was to be prefilled at a time.
	beats         float64
	alone, silent bool
}

const (
	// A span ends with the first step after shortSpan that leaves nothing to
	// prefill, else with the first after longSpan that ends a prefill and of which it
	// is clear what else it had; clearly is how much longer than a step the next prompt
	// must have waited for that.
	shortSpan = 50 * time.Millisecond
	longSpan  = time.Second
	clearly   = 1.5
	// longStep is longer than any step.
	longStep = 3 * time.Second
	// Of an agent that does not count tokens, answers of at least so many are learned from,
	// with that share of noise more, if nothing else happened but for so many ms: the time
	// by which its first token's report may be late.
	shortestAnswer, noiseAnswer, answerLate = 16, 0.1, 30
	// maxArrivals bounds what is kept of those that wait.
	maxArrivals = 4096
	// Noise of a span: what reports are late or early by, and a share of what is
	// prefilled of prompts that are not through.
	noiseMs, noiseAhead = 2, 0.1
)

// reset forgets what the engine was doing, at the start of a new life. What was
// learned of it stays.
func (o *watch) reset() { *o = watch{learner: o.learner} }

// finished is a prompt that a report says is prefilled.
type finished struct{ uncached, cached float64 }

// watch takes in a report before anything else does.
func (p *Pool) watch(w *worker, l *kvindex.Load, now time.Time) {
	o, before, since := &w.watch, &w.load, w.watch.at
	o.at = now
	if since.IsZero() {
		o.streaming = int(l.Running)
		return
	}
	if before.Running == 0 && before.Waiting == 0 {
		o.span = span{from: now, begun: true}
		o.streaming = 0
		if len(l.FirstToken)+len(l.Done) > 0 { // it came and went within one report
			o.span.begun = false
		}
	}
	prompts, known := p.finished(w, l)
	s := &o.span
	s.faulty = s.faulty || !known
	tokens := s.decoded(before, l, w.hello.Role)
	o.listen(before, l, tokens, now.Sub(since))
	s.faulty = s.faulty || o.mute && before.Running > 0
	if before.Running == 0 && before.Waiting > 0 && !prefilling(before) {
		s.faulty = true // it may have waited for KV
	}
	o.queued(l, len(prompts), now)
	o.prefilled(prompts, before, l, w.chunk, now)
	if w.hello.Role != kvindex.RolePrefill {
		o.streaming += len(l.FirstToken) - streamed(l.Done)
		s.faulty = s.faulty || o.streaming != int(l.Running)
	}
	if len(l.FirstToken)+len(l.Done) > 0 {
		o.stepped(l, len(prompts) > 0, now)
	}
}

// listen finds out whether the agent counts generated tokens, and if it does not,
// learns from whole answers.
func (o *watch) listen(before, l *kvindex.Load, tokens float64, took time.Duration) {
	switch {
	case before.Running == 0 || len(l.Done) > 0: // an answer's end corrects the count
	case tokens > 0:
		o.still, o.mute = 0, false
	default:
		o.still += took
		o.mute = o.mute || o.still > longStep
	}
	if before.Waiting > 0 {
		o.quiet, o.ran = 0, 0
	} else {
		o.quiet, o.ran = o.quiet+took, o.ran+took*time.Duration(before.Running)
	}
	if o.mute {
		for i := range l.Done {
			o.answered(&l.Done[i])
		}
	}
	if len(l.FirstToken) > 0 || l.Waiting > 0 {
		o.quiet, o.ran = 0, 0
	}
}

// answered learns from an answer of which only the whole is known, if nothing was
// prefilled meanwhile. The others that ran count as if their contexts were like its own.
func (o *watch) answered(s *kvindex.Sample) {
	took := s.TotalMs - s.FirstTokenMs
	quiet := float64(o.quiet) / float64(time.Millisecond)
	if s.Aborted || !(s.FirstTokenMs > 0) || s.OutputTokens < shortestAnswer || s.PromptTokens <= 0 || !(took > 0) || quiet < took-answerLate {
		return
	}
	steps := float64(s.OutputTokens) - 1
	running := max(1, float64(o.ran)/float64(o.quiet))
	o.learner.Observe(timing.Work{
		Decodes: steps, Sequences: steps * running, Context: steps * running * (float64(s.PromptTokens) + steps/2),
	}, took, noiseMs+noiseAnswer*took)
}

// queued keeps the arrivals.
func (o *watch) queued(l *kvindex.Load, through int, now time.Time) {
	o.arrivals = slices.Delete(o.arrivals, 0, min(through, len(o.arrivals)))
	waiting := min(int(l.Waiting), maxArrivals)
	if over := len(o.arrivals) - waiting; over > 0 {
		o.arrivals = slices.Delete(o.arrivals, 0, over)
	}
	for len(o.arrivals) < waiting {
		o.arrivals = append(o.arrivals, now)
	}
}

// finished are the prompts whose prefill the report ends; false if something of
// them is not known.
func (p *Pool) finished(w *worker, l *kvindex.Load) (list []finished, known bool) {
	known = true
	add := func(s *kvindex.Sample) {
		cached := int(s.CachedTokens)
		if cached < 0 {
			b := p.bookings[s.Booking]
			if b == nil || b.at(w) == nil || b.at(w).uncached == 0 {
				known = false
				return
			}
			cached = b.at(w).cached
		}
		if s.PromptTokens <= 0 {
			known = false
			return
		}
		uncached := max(1, float64(s.PromptTokens)-float64(cached))
		list = append(list, finished{uncached: uncached, cached: float64(cached)})
	}
	for i := range l.FirstToken {
		add(&l.FirstToken[i])
	}
	for i := range l.Done {
		s := &l.Done[i]
		switch reported := s.Booking != "" && slices.ContainsFunc(l.FirstToken, func(f kvindex.Sample) bool { return f.Booking == s.Booking }); {
		case s.Aborted && s.FirstTokenMs <= 0:
			known = false // it may have been prefilled in part
		case w.hello.Role == kvindex.RolePrefill && !reported:
			add(s)
		}
	}
	return list, known
}

// prefilling reports whether a worker had prompts to prefill. Those that are prefilled
// elsewhere wait as well, for their KV, and have a token or none to compute.
func prefilling(l *kvindex.Load) bool { return l.QueuedTokens > 2*uint64(l.Waiting) }

// streamed is how many of the answers that ended had their first token shown.
func streamed(done []kvindex.Sample) int {
	n := 0
	for i := range done {
		if done[i].FirstTokenMs > 0 {
			n++
		}
	}
	return n
}

// decoded adds the tokens generated between two reports.
func (s *span) decoded(before, l *kvindex.Load, role kvindex.Role) (tokens float64) {
	if role == kvindex.RolePrefill {
		return 0
	}
	tokens = float64(l.ContextTokens) - float64(before.ContextTokens)
	for i := range l.FirstToken {
		tokens -= float64(l.FirstToken[i].PromptTokens) + 1
	}
	for i := range l.Done {
		if d := &l.Done[i]; d.FirstTokenMs > 0 {
			tokens += float64(d.PromptTokens) + float64(d.OutputTokens)
		}
	}
	running := float64(before.Running)
	s.alone = s.alone || !prefilling(before)
	s.silent, s.beside = s.silent || before.Running == 0, s.beside || before.Running > 0
	switch { // an agent may count a first token a moment after it says that it came
	case tokens < -float64(len(l.FirstToken)) || running == 0 && tokens > float64(len(l.FirstToken)):
		s.faulty = true
	case running > 0 && tokens > 0:
		steps := tokens / running
		s.work.Decodes += steps
		s.beats += steps
		s.work.Sequences += tokens
		s.work.Context += steps * (float64(before.ContextTokens) + tokens/2)
	}
	return tokens
}

// prefilled adds the prompts that a step ended, and counts the steps: as many as
// their tokens need, of which the last has room for those that wait behind.
func (o *watch) prefilled(prompts []finished, before, l *kvindex.Load, chunk int, now time.Time) {
	if len(prompts) == 0 {
		return
	}
	s, tokens := &o.span, 0.0
	for _, f := range prompts {
		tokens += f.uncached
		s.work.Area += f.uncached * (f.cached + f.uncached/2)
	}
	s.work.Tokens += tokens
	room := float64(max(1, chunk-int(before.Running)))
	left := max(1, tokens-s.ahead)
	steps := math.Ceil(left / room)
	if beats := max(1, math.Round(s.beats)); !s.silent && (!s.alone || steps > beats) {
		steps = beats
	}
	s.work.Steps += steps
	s.ahead, s.unclear, s.beats, s.alone, s.silent = 0, false, 0, false, false
	if len(o.arrivals) == 0 {
		return
	}
	m := o.learner.Model()
	full := m.Prefill.A + m.Prefill.B*room + m.DecodeMs(int(before.Running), int(before.ContextTokens))
	switch waited := msBetween(o.arrivals[0], now); {
	case waited > clearly*full:
		s.ahead = max(0, min(steps*room-left, room, float64(l.QueuedTokens)))
	case waited > 0:
		s.unclear = true
	}
}

// stepped ends a span if it is time, and begins the next one: a step has ended.
func (o *watch) stepped(l *kvindex.Load, prefilled bool, now time.Time) {
	s, took := &o.span, now.Sub(o.span.from)
	switch empty, idle := l.Waiting == 0, l.Running+l.Waiting == 0; {
	case idle, empty && (took >= shortSpan || !s.begun || s.faulty):
	case prefilled && !s.unclear && (took >= longSpan || !s.begun || s.faulty):
	default:
		return
	}
	if s.begun && !s.faulty && (s.work.Decodes > 0 || !s.beside) {
		ms := float64(took) / float64(time.Millisecond)
		s.work.Tokens += s.ahead
		s.work.Area += s.ahead * s.ahead / 2
		o.learner.Observe(s.work, ms, noiseMs+noiseAhead*o.learner.Prior().Prefill.B*s.ahead)
	}
	*s = span{
		from: now, begun: true, ahead: s.ahead, beats: s.beats, alone: s.alone, silent: s.silent,
		work: timing.Work{Tokens: -s.ahead, Area: -s.ahead * s.ahead / 2},
	}
}
