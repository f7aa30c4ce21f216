package redislog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvlane/kvlane/kvindex"
)

// Bounds of one run of the append script.
const (
	maxRunRecords = 2048
	maxRunBytes   = 512 << 10
	// maxTries bounds how often a writer judges anew because another one of the
	// same name wrote meanwhile.
	maxTries = 8
	// maxNow bounds the stream of loads and bookings where nobody reports a load.
	maxNow = 1 << 20
)

var errContended = errors.New("several writers of one worker")

// writer is what this process knows of one worker that it writes for.
type writer struct {
	mu     sync.Mutex
	name   kvindex.WorkerID
	shard  int
	token  string // of the state below; empty: the worker is not in the log
	owners map[kvindex.Owner]ownerState
	lease  time.Duration
	marks  marks
}

// writer is the worker's, made if need be.
func (l *Log) writer(w kvindex.WorkerID) *writer {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.writers[w]
	if x == nil {
		x = &writer{name: w, shard: shardOf(w), owners: map[kvindex.Owner]ownerState{}, lease: l.opts.Lease}
		l.writers[w] = x
	}
	return x
}

// Append implements [kvindex.Log]. It waits for Redis at most until the context's
// deadline, without one for Options.Timeout. Any error other than a
// *kvindex.GapError, kvindex.ErrFenced, kvindex.ErrMalformed or ErrTooLarge leaves
// open how many records were written; sending them again is safe.
func (l *Log) Append(ctx context.Context, records []kvindex.Record) error {
	for len(records) > 0 {
		n, err := l.appendSome(ctx, records)
		records = records[n:]
		if err != nil {
			l.refused(err, len(records))
			return err
		}
	}
	return nil
}

func (l *Log) refused(err error, left int) {
	var gap *kvindex.GapError
	l.status.count(func(s *Status) {
		switch {
		case errors.As(err, &gap):
			s.Gaps++
		case errors.Is(err, kvindex.ErrFenced):
			s.Fenced++
		case errors.Is(err, kvindex.ErrMalformed), errors.Is(err, ErrTooLarge):
		default:
			s.Dropped += uint64(left)
		}
	})
}

// appendSome writes the first records that can go together, and says how many.
func (l *Log) appendSome(ctx context.Context, records []kvindex.Record) (int, error) {
	booking := records[0].Kind == kvindex.KindBooking
	n := 0
	for n < len(records) && n < maxRunRecords && (records[n].Kind == kvindex.KindBooking) == booking &&
		(booking || records[n].Owner.Worker == records[0].Owner.Worker) {
		n++
		if records[n-1].Kind == kvindex.KindBye {
			break
		}
	}
	if booking {
		return l.appendBookings(ctx, records[:n])
	}
	w := l.writer(records[0].Owner.Worker)
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.write(ctx, w, records[:n])
}

// appendBookings writes what needs no place in a sequence. Old entries are taken
// away by the workers' loads, by Redis's clock: this process's may be another.
func (l *Log) appendBookings(ctx context.Context, records []kvindex.Record) (int, error) {
	var good []*kvindex.Record
	var fault error
	for i := range records {
		if _, fault = new(kvindex.Cursor).Advance(&records[i]); fault != nil {
			break
		}
		if records[i].Owner.Worker == "" {
			fault = nameless(&records[i])
			break
		}
		good = append(good, &records[i])
	}
	if len(good) == 0 {
		return 0, fault
	}
	ctx, cancel := l.limit(ctx)
	defer cancel()
	_, err := l.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, e := range pack(good) {
			p.XAdd(ctx, &redis.XAddArgs{Stream: l.keys.now(), MaxLen: maxNow, Approx: true, Values: []any{"d", e}})
		}
		return nil
	})
	l.status.saw(writing, err)
	if err != nil {
		return 0, fmt.Errorf("append bookings: %w", err)
	}
	l.status.count(func(s *Status) { s.Appended += uint64(len(good)) })
	return len(good), fault
}

// write writes records of one worker, as many as fit into one run of the script.
// It holds the writer's lock.
func (l *Log) write(ctx context.Context, w *writer, records []kvindex.Record) (int, error) {
	sure := false // the state came from Redis during this call
	for range maxTries {
		p := w.judge(records)
		if len(p.accepted) == 0 {
			if sure {
				l.status.count(func(s *Status) { s.Repeats += uint64(p.repeats) })
				return p.judged, p.fault
			}
			if err := l.refresh(ctx, w); err != nil {
				return 0, err
			}
			sure = true
			continue
		}
		ok, err := l.send(ctx, w, p)
		if err != nil {
			return 0, fmt.Errorf("append to log: %w", err)
		}
		if ok {
			l.status.count(func(s *Status) { s.Appended += uint64(len(p.accepted)); s.Repeats += uint64(p.repeats) })
			l.bump(ctx, w)
			return p.judged, p.fault
		}
		sure = true
	}
	return 0, fmt.Errorf("append to log as worker %s: %w", w.name, errContended)
}

// send runs the script. It returns false if the state in Redis is another one,
// which the writer then has.
func (l *Log) send(ctx context.Context, w *writer, p *plan) (bool, error) {
	token := l.token()
	reply, err := l.run(ctx, l.scripts.append, l.arguments(w, p, token)...)
	if err != nil {
		return false, err
	}
	if ok, _ := reply[0].(int64); ok == 0 {
		return false, w.learn(reply)
	}
	if p.bye {
		w.forget()
		return true, nil
	}
	w.token = token
	maps.Copy(w.owners, p.owners)
	total, _ := reply[3].(int64)
	w.marks.wrote(p, total)
	return true, nil
}

// arguments are those of lua/append.lua.
func (l *Log) arguments(w *writer, p *plan, token string) []any {
	var events, recent, learned []*kvindex.Record
	var hello, load []byte
	for _, r := range p.accepted {
		switch r.Kind {
		case kvindex.KindLoad:
			recent = append(recent, r)
			if r.Owner.Rank == 0 {
				load = kvindex.AppendRecord(nil, gauges(r))
			}
		case kvindex.KindHello:
			if r.Owner.Rank == 0 { // other ranks are there again at their next Hello
				hello = kvindex.AppendRecord(nil, r)
			}
			events = append(events, r)
			w.lease = l.opts.Lease
			if r.Hello.LeaseMs > 0 {
				w.lease = time.Duration(r.Hello.LeaseMs) * time.Millisecond
			}
		case kvindex.KindLearned:
			events = append(events, r)
			text := *r
			text.Seq = 0
			learned = append(learned, &text)
		default:
			events = append(events, r)
		}
	}
	bye := 0
	if p.bye {
		bye = 1
	}
	args := []any{
		l.token(), w.token, token, w.shard, string(w.name), w.lease.Milliseconds(), l.opts.Margin.Milliseconds(),
		l.opts.Recent.Milliseconds(), hello, load, bye, 2 * len(p.owners),
	}
	for o, s := range p.owners {
		args = append(args, ownerField('o', o), s.encode())
	}
	for _, list := range [][]*kvindex.Record{events, recent, learned} {
		entries := pack(list)
		args = append(args, len(entries))
		for _, e := range entries {
			args = append(args, e)
		}
	}
	return append(args, l.opts.LearnedBytes/learnedRing)
}

// learn takes over the state that Redis has: {0, id, fields}.
func (w *writer) learn(reply []any) error {
	if len(reply) < 3 {
		return fmt.Errorf("reply of %d parts: %w", len(reply), errBadEntry)
	}
	fields, _ := reply[2].([]any)
	state := make(map[string]string, len(fields)/2)
	for i := 0; i+1 < len(fields); i += 2 {
		k, _ := fields[i].(string)
		v, _ := fields[i+1].(string)
		state[k] = v
	}
	w.take(state)
	return nil
}

// take takes over a worker's hash, which is empty if the log does not know it.
func (w *writer) take(state map[string]string) {
	w.forget()
	w.token = state["v"]
	for k, v := range state {
		if o, ok := parseOwnerField(k, w.name); ok && k[0] == 'o' {
			if s, ok := decodeOwnerState(v); ok {
				w.owners[o] = s
			}
		}
	}
}

func (w *writer) forget() {
	w.token = ""
	clear(w.owners)
	w.marks = marks{}
}

// refresh reads the writer's state from Redis.
func (l *Log) refresh(ctx context.Context, w *writer) error {
	ctx, cancel := l.limit(ctx)
	defer cancel()
	var id *redis.StringCmd
	var state *redis.MapStringStringCmd
	_, err := l.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		id = p.HGet(ctx, l.keys.log(), "id")
		state = p.HGetAll(ctx, l.keys.cursor(w.name))
		return nil
	})
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	l.status.saw(writing, err)
	if err != nil {
		return fmt.Errorf("read place in log: %w", err)
	}
	fields := state.Val()
	if id.Val() == "" || fields["id"] != id.Val() {
		fields = nil
	}
	if fields["v"] != w.token {
		w.take(fields)
	}
	return nil
}
