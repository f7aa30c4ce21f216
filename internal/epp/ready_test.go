package epp

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// When a picker that starts takes requests: after the state was read, when the
// pool seems complete, or after a bound.
func TestReadiness(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		name  string
		read  time.Duration   // when the state was read; 0 for never
		known int             // workers in it
		come  []time.Duration // when others come
		want  time.Duration
	}{
		{name: "the log kept its state", read: 30 * ms, known: 2, want: 30 * ms},
		{name: "nobody is there", read: ms, want: readyBound},
		{name: "the log is away", want: readyBound},
		{name: "one comes", read: ms, come: []time.Duration{100 * ms}, want: 100*ms + settle},
		{name: "they come one after the other", read: ms, come: []time.Duration{100 * ms, 600 * ms}, want: 600*ms + settle},
		{name: "they come for a long time", read: ms, come: []time.Duration{100 * ms, 900 * ms, 1800 * ms}, want: readyBound},
		{name: "they come before the state was read", read: 300 * ms, known: 1, come: []time.Duration{100 * ms}, want: 300 * ms},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, begun := newReadiness(), time.Now()
				var workers atomic.Int64
				if tc.read > 0 {
					time.AfterFunc(tc.read, func() {
						workers.Store(int64(max(int(workers.Load()), tc.known)))
						r.stateRead(tc.known)
						r.stateRead(0) // of a later tail: it says nothing
					})
				}
				for i, d := range tc.come {
					time.AfterFunc(d, func() { workers.Store(int64(i + 1)); r.changed() })
				}
				if r.err() == nil {
					t.Error("ready at once")
				}
				r.run(t.Context(), func() int { return int(workers.Load()) })
				if got := time.Since(begun); got != tc.want {
					t.Errorf("ready after %v, want %v", got, tc.want)
				}
				<-r.open
				if err := r.err(); err != nil {
					t.Errorf("opened, and %v", err)
				}
				time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock, for the rest
			})
		})
	}
}

// A run that is stopped does not open.
func TestReadinessStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := newReadiness()
	r.run(ctx, func() int { return 1 })
	if r.err() == nil {
		t.Error("it opened")
	}
}
