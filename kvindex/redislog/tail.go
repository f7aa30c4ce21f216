package redislog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvlane/kvlane/kvindex"
)

// Times of a tail.
const (
	// block is how long one read waits for news: also how long a tail may take to
	// end, and together with Options.Timeout how long a dead connection takes to
	// be noticed.
	block = 500 * time.Millisecond
	// beatEvery is the pause between two looks at the log as a whole.
	beatEvery = time.Second
	// mercy is how long workers have to come back after Redis was away or emptied,
	// before a reader takes them for gone; the scripts have the same.
	mercy = 6 * time.Second

	retryFirst = 50 * time.Millisecond
	retryMost  = time.Second
)

// Entries asked for in one read, per stream. Few large ones or many small ones
// make about the same work for Redis.
const (
	readLeast  = 8
	readMost   = 128
	readTarget = 512 << 10
)

// errMissed: entries were gone before they were read. The present state must be
// read anew.
var errMissed = errors.New("entries of the log are gone")

// callerError is an error of the apply function: it ends the tail.
type callerError struct{ err error }

func (e callerError) Error() string { return e.err.Error() }
func (e callerError) Unwrap() error { return e.err }

// tail is one reader.
type tail struct {
	l     *Log
	apply func([]kvindex.Record) error

	id       string // of the log; empty before the present state was read
	before   string // of the log read before
	at       [shards]position
	now      position
	first    [shards]bool // the next entry of a shard may follow an older one than at
	covered  map[kvindex.WorkerID]position
	left     [shards]position // while it is loaded: up to here only who is covered has anything to say
	foreign  [shards]position // the newest entry that is not of this log
	workers  map[kvindex.WorkerID]*known
	complete bool
	count    int64            // entries asked for
	batch    []kvindex.Record // its memory is used again
	beatAt   time.Time
	heard    time.Time // the last answer
}

// known is a worker that said Hello and has not gone.
type known struct {
	hello   kvindex.Record
	missing time.Time // it is not in the registry since; zero if it is
}

// Tail implements [kvindex.Log]. While Redis is away, slow or read anew, it goes on
// trying; every worker's last Hello is repeated meanwhile, so that nobody's lease
// ends for want of news. It returns when ctx ends (within about a second) or when
// apply returns an error. A reader that met a *kvindex.GapError drops that worker
// before it tails anew.
func (l *Log) Tail(ctx context.Context, apply func([]kvindex.Record) error) error {
	t := &tail{l: l, apply: apply, workers: map[kvindex.WorkerID]*known{}, count: readLeast, heard: time.Now()}
	defer l.status.count(func(s *Status) { s.Complete, s.Workers = false, 0 })
	wait := retryFirst
	for {
		began := time.Now()
		err := t.session(ctx)
		if stop, ok := errors.AsType[callerError](err); ok {
			return fmt.Errorf("apply batch: %w", stop.err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("tail log: %w", ctx.Err())
		}
		l.status.count(func(s *Status) { s.Broken++ })
		if errors.Is(err, errMissed) {
			l.status.count(func(s *Status) { s.Missed++ })
			t.id = ""
		} else {
			l.status.saw(reading, err)
		}
		if err := t.standIn(); err != nil {
			return fmt.Errorf("apply batch: %w", err)
		}
		if time.Since(began) > 2*retryMost {
			wait = retryFirst
		}
		if !pause(ctx, time.Duration((0.5+rand.Float64())*float64(wait))) {
			return fmt.Errorf("tail log: %w", ctx.Err())
		}
		wait = min(2*wait, retryMost)
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// standIn repeats the Hellos of all workers while Redis does not answer.
func (t *tail) standIn() error {
	if time.Since(t.heard) < beatEvery || len(t.workers) == 0 {
		return nil
	}
	records := make([]kvindex.Record, 0, len(t.workers))
	for _, w := range t.workers {
		if w.missing.IsZero() {
			records = append(records, w.hello)
		}
	}
	if len(records) == 0 {
		return nil
	}
	return t.apply(records)
}

// session reads until something fails.
func (t *tail) session(ctx context.Context) error {
	if err := t.beat(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if time.Since(t.beatAt) >= beatEvery {
			if err := t.beat(ctx); err != nil {
				return err
			}
		}
		if _, err := t.read(ctx, block); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// beat looks at the log as a whole, and reads the present state if it is another
// one than was read, or if it lies behind what was read.
func (t *tail) beat(ctx context.Context) error {
	b, err := t.l.beat(ctx)
	if err != nil {
		return fmt.Errorf("look at log: %w", err)
	}
	t.beatAt = time.Now()
	t.heard = t.beatAt
	t.l.status.beat(b.full)
	if t.id != b.id {
		return t.load(ctx, b)
	}
	lag := uint64(0)
	for s, last := range b.last {
		switch c := t.at[s].compare(last); {
		case c > 0:
			return fmt.Errorf("shard %d ends at %s, read up to %s: %w", s, last, t.at[s], errMissed)
		case c < 0:
			lag = max(lag, b.ms-min(b.ms, t.at[s].ms))
		}
	}
	if t.now.ms > b.ms+1000 {
		t.now = position{}
	}
	t.l.status.looked(time.Duration(lag) * time.Millisecond)
	return t.missing(ctx)
}

// pulse is the answer of the beat script.
type pulse struct {
	id      string
	ms      uint64 // Redis's clock
	members string
	segment int
	last    [shards]position
	full    bool // the server takes nothing new for want of memory
}

func (l *Log) beat(ctx context.Context) (pulse, error) {
	var b pulse
	ctx, cancel := l.limit(ctx)
	defer cancel()
	reply, err := l.scripts.beat.Run(ctx, l.client, []string{l.keys.log()}, l.token(), l.opts.Keep.Milliseconds(),
		l.opts.MaxAge.Milliseconds(), poolTTL.Milliseconds()).Slice()
	if err != nil {
		return b, err
	}
	text := make([]string, 5+shards)
	for i := range min(len(text), len(reply)) {
		text[i], _ = reply[i].(string)
	}
	b.id, b.members, b.full = text[0], text[2], text[4+shards] == "1"
	ms, err := parsePosition(text[1] + "-0")
	if err != nil {
		return b, err
	}
	b.ms = ms.ms
	if _, err := fmt.Sscan(text[3], &b.segment); err != nil {
		return b, fmt.Errorf("segment %q: %w", text[3], errBadEntry)
	}
	for s := range b.last {
		if b.last[s], err = parsePosition(text[4+s]); err != nil {
			return b, err
		}
	}
	return b, nil
}

// read passes on what is new. wait is how long to wait for that; negative means
// not at all.
func (t *tail) read(ctx context.Context, wait time.Duration) (entries int, err error) {
	streams := make([]string, 0, 2*(shards+1))
	for s := range shards {
		streams = append(streams, t.l.keys.events(s))
	}
	streams = append(streams, t.l.keys.now())
	for s := range shards {
		from := t.at[s]
		if from.compare(t.foreign[s]) < 0 {
			from = t.foreign[s]
		}
		streams = append(streams, from.String())
	}
	streams = append(streams, t.now.String())
	rctx, cancel := context.WithTimeout(ctx, max(wait, 0)+t.l.opts.Timeout)
	defer cancel()
	reply, err := t.l.client.XRead(rctx, &redis.XReadArgs{Streams: streams, Count: t.count, Block: wait}).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, fmt.Errorf("read log: %w", err)
	}
	t.heard = time.Now()
	t.l.status.saw(reading, nil)
	batch := t.batch[:0]
	bytes, full := 0, false
	for _, stream := range reply {
		full = full || int64(len(stream.Messages)) == t.count
		entries += len(stream.Messages)
		for i := range stream.Messages {
			more, n, err := t.entry(batch, stream.Stream, &stream.Messages[i])
			if err != nil {
				return entries, err
			}
			batch = more
			bytes += n
		}
	}
	t.adapt(bytes, full)
	if err := t.pass(batch); err != nil {
		return entries, err
	}
	clear(batch) // the bodies may be large
	t.batch = batch
	return entries, nil
}

// adapt keeps a reply near readTarget.
func (t *tail) adapt(bytes int, full bool) {
	switch {
	case full && bytes < readTarget:
		t.count = min(2*t.count, readMost)
	case bytes > 2*readTarget:
		t.count = max(t.count/2, readLeast)
	}
}

// entry appends an entry's records to the batch and moves the stream's position.
func (t *tail) entry(batch []kvindex.Record, stream string, m *redis.XMessage) ([]kvindex.Record, int, error) {
	id, err := parsePosition(m.ID)
	if err != nil {
		return batch, 0, err
	}
	data, _ := m.Values["d"].(string)
	if stream == t.l.keys.now() {
		t.now = id
		return t.decode(batch, data, position{}), len(data), nil
	}
	shard := int(stream[len(stream)-1] - '0')
	before, _ := m.Values["p"].(string)
	p, err := parsePosition(before)
	if err != nil {
		t.foreign[shard] = id
		t.l.status.count(func(s *Status) { s.Skipped++ })
		return batch, len(data), nil //nolint:nilerr // counted: what others write here stops no reader
	}
	if c := p.compare(t.at[shard]); c > 0 || c < 0 && !t.first[shard] {
		return batch, 0, fmt.Errorf("entry %s of shard %d follows %s, not %s: %w", m.ID, shard, p, t.at[shard], errMissed)
	}
	t.at[shard], t.first[shard] = id, false
	if gone, ok := m.Values["b"].(string); ok {
		w := kvindex.WorkerID(gone)
		if mark, ok := t.covered[w]; ok && id.compare(mark) <= 0 {
			return batch, 0, nil
		}
		why, _ := m.Values["why"].(string)
		return append(batch, bye(w, why == "lease")), len(gone), nil
	}
	return t.decode(batch, data, id), len(data), nil
}

// bye is the end of a worker that did not say Bye itself, newer than all that it
// said: it was dropped, or its lease lapsed.
func bye(w kvindex.WorkerID, lapsed bool) kvindex.Record {
	return kvindex.Record{
		Owner: kvindex.Owner{Worker: w}, Epoch: math.MaxUint64, Term: math.MaxUint64, Kind: kvindex.KindBye, Lapsed: lapsed,
	}
}

// decode appends an entry's records, except those that a snapshot covered: of an
// entry at id, all of a worker whose snapshot's mark is not before it. Of a worker
// that was gone when the state was read, or had lost its place, only a Bye is passed
// on: the rest follows something that is not there.
func (t *tail) decode(batch []kvindex.Record, data string, id position) []kvindex.Record {
	from := len(batch)
	batch, skipped, err := decodeEntry(batch, []byte(data))
	if err != nil {
		skipped++
	}
	if skipped > 0 {
		t.l.status.count(func(s *Status) { s.Skipped += uint64(skipped) })
	}
	if from == len(batch) || id == (position{}) {
		return batch
	}
	w := batch[from].Owner.Worker
	switch mark, ok := t.covered[w]; {
	case ok && id.compare(mark) <= 0:
		return batch[:from]
	case !ok && id.compare(t.left[shardOf(w)]) <= 0:
		kept := slices.DeleteFunc(batch[from:], func(r kvindex.Record) bool { return r.Kind != kvindex.KindBye })
		return batch[:from+len(kept)]
	}
	return batch
}

// pass hands a batch to the caller.
func (t *tail) pass(batch []kvindex.Record) error {
	if len(batch) == 0 {
		return nil
	}
	for i := range batch {
		t.note(&batch[i])
	}
	t.l.status.count(func(s *Status) { s.Read += uint64(len(batch)); s.Workers = len(t.workers) })
	if err := t.apply(batch); err != nil {
		return callerError{err}
	}
	return nil
}

// note keeps the list of workers.
func (t *tail) note(r *kvindex.Record) {
	switch r.Kind {
	case kvindex.KindHello:
		if r.Owner.Rank == 0 {
			t.workers[r.Owner.Worker] = &known{hello: *r}
		}
	case kvindex.KindBye:
		delete(t.workers, r.Owner.Worker)
	default:
	}
}

// missing ends the workers that the log does not know any more and that did not
// come back: their Bye is not in the log, because it was emptied meanwhile.
func (t *tail) missing(ctx context.Context) error {
	var gone []kvindex.Record
	for name, w := range t.workers {
		if w.missing.IsZero() || time.Since(w.missing) < mercy+w.lease() {
			continue
		}
		_, err := t.l.client.ZScore(ctx, t.l.keys.registry(), member(name)).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return fmt.Errorf("look for worker %s: %w", name, err)
		}
		if err == nil {
			w.missing = time.Time{}
			continue
		}
		gone = append(gone, bye(name, true))
	}
	return t.pass(gone)
}

func (w *known) lease() time.Duration {
	return time.Duration(w.hello.Hello.LeaseMs) * time.Millisecond
}
