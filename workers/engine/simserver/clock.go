package simserver

import (
	"math"
	"time"
)

// clock turns real time into the core's: a line whose slope changes when a
// fault slows or stops the engine.
type clock struct {
	base    time.Time
	virtual time.Duration // at base
	rate    float64       // virtual seconds a real second; 0 stands still
}

func newClock(rate float64) clock { return clock{base: time.Now(), rate: rate} }

func (c *clock) now() time.Duration {
	return c.virtual + time.Duration(float64(time.Since(c.base))*c.rate)
}

func (c *clock) setRate(rate float64) {
	c.virtual, c.base, c.rate = c.now(), time.Now(), rate
}

// setBack makes it at now, and returns the real time that this costs.
func (c *clock) setBack(at time.Duration) time.Duration {
	lost := time.Duration(float64(c.now()-at) / c.rate)
	c.virtual, c.base = at, time.Now()
	return lost
}

// until is the real time until the core's time is at. false: never, the clock
// stands still.
func (c *clock) until(at time.Duration) (time.Duration, bool) {
	if c.rate <= 0 {
		return 0, false
	}
	left := float64(at-c.now()) / c.rate
	return time.Duration(math.Ceil(min(max(left, 0), math.MaxInt64/2))), true
}
