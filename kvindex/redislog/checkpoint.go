package redislog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvlane/kvlane/kvindex"
)

// Limits of checkpoints.
const (
	// bumpEvery is how often a snapshot that is still right is said to be.
	bumpEvery = 5 * time.Second
	// shardBytes is how much a shard may hold behind a worker's snapshot before the
	// worker makes another one, but not more often than shardEvery.
	shardBytes = 16 << 20
	shardEvery = 5 * time.Second
	// partsAtOnce are uploaded or read in one round trip: half a megabyte.
	partsAtOnce = 8
)

// marks is where a writer's snapshot lies in its shard.
type marks struct {
	there   bool // there is one
	changed bool // content was written since
	at      time.Time
	bumped  time.Time
	every   time.Duration
	own     int   // bytes written since
	size    int   // bytes of the snapshot
	total   int64 // of the shard at that time
	now     int64 // of the shard at the last write
}

func (m *marks) wrote(p *plan, total int64) {
	if m.at.IsZero() {
		m.at, m.total = time.Now(), total
		m.bumped = m.at
	}
	m.own += p.bytes
	m.now = total
	m.changed = m.changed || p.content
}

// CheckpointDue implements [kvindex.Log]: the worker's part of the stream behind
// its snapshot has become long or old.
func (l *Log) CheckpointDue(name kvindex.WorkerID) bool {
	w := l.writer(name)
	if !w.mu.TryLock() { // it writes just now
		return false
	}
	defer w.mu.Unlock()
	m := &w.marks
	if w.token == "" || m.there && !m.changed {
		return false
	}
	if m.every == 0 { // spread, so that not all come at once
		m.every = time.Duration((0.8 + 0.4*rand.Float64()) * float64(l.opts.CheckpointEvery))
	}
	age := time.Since(m.at)
	return age > m.every ||
		m.own > max(l.opts.CheckpointBytes, 2*m.size) && age > time.Second ||
		m.now-m.total > shardBytes && age > shardEvery
}

// Checkpoint implements [kvindex.Log].
func (l *Log) Checkpoint(ctx context.Context, records []kvindex.Record) error {
	if len(records) == 0 {
		return nil
	}
	w := l.writer(records[0].Owner.Worker)
	w.mu.Lock()
	defer w.mu.Unlock()
	err := l.checkpoint(ctx, w, records)
	l.status.count(func(s *Status) {
		if err != nil {
			s.CheckpointErrors++
		} else {
			s.Checkpoints++
		}
	})
	if err != nil {
		w.marks.at, w.marks.own = time.Now(), 0 // not again at once
		return fmt.Errorf("checkpoint of worker %s: %w", w.name, err)
	}
	return nil
}

func (l *Log) checkpoint(ctx context.Context, w *writer, records []kvindex.Record) error {
	var content []*kvindex.Record
	var fields []any
	for i := range records {
		r := &records[i]
		switch {
		case r.Owner.Worker != w.name || r.Kind != kvindex.KindCleared && (r.Kind != kvindex.KindStored || r.Seq != 0):
			return fmt.Errorf("%s of owner %s, seq %d: %w", r.Kind, r.Owner, r.Seq, kvindex.ErrMalformed)
		case r.Kind == kvindex.KindCleared:
			s := ownerState{cursor: kvindex.Cursor{Epoch: r.Epoch, Term: r.Term, Seq: r.Seq}}
			fields = append(fields, ownerField('s', r.Owner), s.encode()[:markBytes])
		default:
			content = append(content, r)
		}
	}
	parts := pack(content)
	generation := l.token()
	key := l.keys.snapshot(generation, w.name)
	ttl := w.lease + l.opts.Margin
	size := 0
	for from := 0; from < len(parts); from += partsAtOnce {
		some := parts[from:min(from+partsAtOnce, len(parts))]
		if err := l.upload(ctx, key, some, ttl); err != nil {
			return err
		}
		for _, p := range some {
			size += len(p)
		}
	}
	ok, total, err := l.mark(ctx, w, generation, len(parts), fields)
	if err != nil {
		return err
	}
	if !ok {
		l.client.Unlink(ctx, key) // it would go with its TTL
		w.forget()
		return fmt.Errorf("another writer was there: %w", errContended)
	}
	now := time.Now()
	w.marks = marks{there: true, at: now, bumped: now, size: size, total: total, now: total}
	return nil
}

func (l *Log) upload(ctx context.Context, key string, parts [][]byte, ttl time.Duration) error {
	_, err := l.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, part := range parts {
			p.RPush(ctx, key, part)
		}
		p.PExpire(ctx, key, ttl)
		return nil
	})
	l.status.saw(writing, err)
	return err
}

// mark moves the worker's mark to the end of its shard. It returns false if another
// writer was there.
func (l *Log) mark(ctx context.Context, w *writer, generation string, parts int, fields []any) (ok bool, total int64, err error) {
	args := append([]any{
		w.token, w.shard, string(w.name), generation, parts, w.lease.Milliseconds(), l.opts.Margin.Milliseconds(),
		l.opts.Keep.Milliseconds(), l.opts.MaxAge.Milliseconds(), poolTTL.Milliseconds(),
	}, fields...)
	reply, err := l.run(ctx, l.scripts.checkpoint, args...)
	if err != nil || len(reply) < 2 {
		return false, 0, err
	}
	total, _ = reply[1].(int64)
	return true, total, nil
}

// bump says that the snapshot is still right, so that a quiet worker does not hold
// back the trimming. It holds the writer's lock.
func (l *Log) bump(ctx context.Context, w *writer) {
	m := &w.marks
	if !m.there || m.changed || time.Since(m.bumped) < bumpEvery {
		return
	}
	m.bumped = time.Now()
	ok, total, err := l.mark(ctx, w, "", 0, nil)
	if err == nil && ok {
		m.total, m.now, m.own, m.at = total, total, 0, m.bumped
	}
}
