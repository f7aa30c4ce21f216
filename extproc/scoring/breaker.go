package scoring

import "time"

// When a scorer is not asked any more, and for how long.
const (
	breakAfter = 3
	firstBreak = time.Second
	longBreak  = 30 * time.Second
)

// breaker keeps a scorer that fails from being asked. After breakAfter failures in a
// row it is not asked for firstBreak, then once; as long as that fails, too, each
// pause is twice as long as the one before, up to longBreak.
//
// It is pure: the times are given.
type breaker struct {
	row     int           // failures since the last success
	pause   time.Duration // the last one
	until   time.Time
	probing bool // the one question after a pause is open
}

// ask reports whether the scorer may be asked. The answer has to be told.
func (b *breaker) ask(now time.Time) bool {
	switch {
	case b.row < breakAfter:
		return true
	case b.probing || now.Before(b.until):
		return false
	default:
		b.probing = true
		return true
	}
}

// tell takes over how a question ended.
func (b *breaker) tell(ok bool, now time.Time) {
	b.probing = false
	if ok {
		*b = breaker{}
		return
	}
	b.row = min(b.row+1, breakAfter)
	if b.row < breakAfter || now.Before(b.until) {
		return
	}
	b.pause = min(max(firstBreak, 2*b.pause), longBreak)
	b.until = now.Add(b.pause)
}
