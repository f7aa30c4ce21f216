package epp

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// Limits of what is told to other replicas. A booking that comes late is worth
// nothing: the worker's own report has it by then. So nothing is tried twice.
const (
	// coalesce is how long bookings wait for each other.
	coalesce = time.Millisecond
	// announceTimeout bounds one Append.
	announceTimeout = 200 * time.Millisecond
	// announceRest is how long nothing is tried after a failure.
	announceRest = 100 * time.Millisecond
	// maxAnnounced is the most records of one Append; older ones are left out.
	maxAnnounced = 8192
)

// announcer tells the other replicas of this one's bookings. Picks do not wait
// for it: they only leave their bookings with the pool.
type announcer struct {
	pool *picker.Pool
	log  kvindex.Log

	records []kvindex.Record // reused
	rests   time.Time        // nothing is tried before

	sent, dropped atomic.Uint64
}

// run announces until ctx ends, and then what is left.
func (a *announcer) run(ctx context.Context) error {
	wait := time.NewTimer(0)
	defer wait.Stop()
	<-wait.C
	for {
		select {
		case <-ctx.Done():
			a.flush(context.WithoutCancel(ctx))
			return nil
		case <-a.pool.Outgoing():
		}
		wait.Reset(coalesce)
		select {
		case <-ctx.Done():
		case <-wait.C:
			a.flush(ctx)
		}
	}
}

// flush sends what the pool has, or drops and counts it.
func (a *announcer) flush(ctx context.Context) {
	a.records = a.pool.Outbox(a.records[:0])
	records := a.records
	if n := len(records) - maxAnnounced; n > 0 {
		a.dropped.Add(uint64(n))
		records = records[n:]
	}
	switch {
	case len(records) == 0:
		return
	case time.Now().Before(a.rests):
		a.dropped.Add(uint64(len(records)))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	if err := a.log.Append(ctx, records); err != nil { // the log's own state says why
		a.dropped.Add(uint64(len(records)))
		a.rests = time.Now().Add(announceRest)
		return
	}
	a.sent.Add(uint64(len(records)))
}
