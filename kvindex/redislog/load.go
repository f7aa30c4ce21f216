package redislog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvlane/kvlane/kvindex"
)

// workersAtOnce are asked about in one round trip.
const workersAtOnce = 64

// member is a worker's name in the registry.
func member(w kvindex.WorkerID) string { return strconv.Itoa(shardOf(w)) + string(w) }

// load reads the present state: who is there, each worker's snapshot, what lies
// behind it in the streams, and the learned texts.
func (t *tail) load(ctx context.Context, b pulse) error {
	if t.before != b.id {
		t.now = position{}
	}
	t.id, t.before = "", b.id
	t.l.status.count(func(s *Status) { s.Reloads++ })
	members, err := t.l.registry(ctx, &b)
	if err != nil {
		return err
	}
	t.covered = make(map[kvindex.WorkerID]position, len(members))
	t.at, t.left, t.foreign = b.last, b.last, [shards]position{}
	for s := range shards {
		t.first[s] = true
	}
	present := make(map[kvindex.WorkerID]bool, len(members))
	for from := 0; from < len(members); from += workersAtOnce {
		var names []kvindex.WorkerID
		for _, m := range members[from:min(from+workersAtOnce, len(members))] {
			if len(m) > 1 {
				names = append(names, kvindex.WorkerID(m[1:]))
				present[names[len(names)-1]] = true
			}
		}
		if err := t.introduce(ctx, names); err != nil {
			return err
		}
	}
	if err := t.catchUp(ctx, b); err != nil {
		return err
	}
	if err := t.learned(ctx, b.segment); err != nil {
		return err
	}
	t.covered, t.left, t.id = nil, [shards]position{}, b.id
	for name, w := range t.workers {
		if !present[name] && w.missing.IsZero() {
			w.missing = time.Now()
		}
	}
	t.l.status.count(func(s *Status) { s.Complete, s.ID = true, b.id })
	t.l.status.looked(0)
	if !t.complete {
		t.complete = true
		if err := t.apply(nil); err != nil {
			return callerError{err}
		}
	}
	return nil
}

// registry reads who is there, and where the shards end at that moment.
func (l *Log) registry(ctx context.Context, b *pulse) ([]string, error) {
	ctx, cancel := l.limit(ctx)
	defer cancel()
	fields := []string{"id"}
	for s := range shards {
		fields = append(fields, "last"+strconv.Itoa(s))
	}
	var members *redis.StringSliceCmd
	var ends *redis.SliceCmd
	_, err := l.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		members = p.ZRange(ctx, l.keys.registry(), 0, -1)
		ends = p.HMGet(ctx, l.keys.log(), fields...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read registry: %w", err)
	}
	if id, _ := ends.Val()[0].(string); id != b.id {
		return nil, fmt.Errorf("read registry of log %s, now %s: %w", b.id, id, errMissed)
	}
	for s, end := range ends.Val()[1:] {
		text, ok := end.(string)
		if !ok {
			continue // nothing was written there
		}
		if b.last[s], err = parsePosition(text); err != nil {
			return nil, fmt.Errorf("read registry: %w", err)
		}
	}
	return members.Val(), nil
}

// introduce passes on what is known of some workers: Hello, Load and snapshot.
func (t *tail) introduce(ctx context.Context, names []kvindex.WorkerID) error {
	states, hellos, err := t.l.states(ctx, names)
	if err != nil {
		return err
	}
	var batch []kvindex.Record
	for i, w := range names {
		for _, text := range []string{hellos[i], states[i]["load"]} {
			if text == "" {
				continue
			}
			r, err := kvindex.DecodeRecord([]byte(text))
			if err != nil {
				t.l.status.count(func(s *Status) { s.Skipped++ })
				continue
			}
			batch = append(batch, r)
		}
		if mark, err := parsePosition(states[i]["wm"]); err == nil {
			t.start(w, mark)
		}
	}
	if err := t.pass(batch); err != nil {
		return err
	}
	for i, w := range names {
		if states[i]["gen"] == "" {
			continue
		}
		if err := t.snapshot(ctx, w, states[i]); err != nil {
			return err
		}
	}
	return nil
}

// start lets the worker's shard be read from its mark on.
func (t *tail) start(w kvindex.WorkerID, mark position) {
	s := shardOf(w)
	t.covered[w] = mark
	if mark.compare(t.at[s]) < 0 {
		t.at[s] = mark
	}
}

// states reads the hashes of some workers; one of another log's life is empty.
func (l *Log) states(ctx context.Context, names []kvindex.WorkerID) (states []map[string]string, hellos []string, err error) {
	ctx, cancel := l.limit(ctx)
	defer cancel()
	if len(names) == 0 {
		return nil, nil, nil
	}
	fields := make([]string, len(names))
	cmds := make([]*redis.MapStringStringCmd, len(names))
	var id *redis.StringCmd
	var all *redis.SliceCmd
	_, err = l.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		id = p.HGet(ctx, l.keys.log(), "id")
		for i, w := range names {
			cmds[i] = p.HGetAll(ctx, l.keys.cursor(w))
			fields[i] = string(w)
		}
		all = p.HMGet(ctx, l.keys.hellos(), fields...)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read workers: %w", err)
	}
	for i, cmd := range cmds {
		state := cmd.Val()
		if state["id"] != id.Val() {
			state = nil
		}
		states = append(states, state)
		hello, _ := all.Val()[i].(string)
		hellos = append(hellos, hello)
	}
	return states, hellos, nil
}

// snapshotTries bounds how often a snapshot is read that is replaced meanwhile.
const snapshotTries = 5

// snapshot passes on what a worker held at its mark.
func (t *tail) snapshot(ctx context.Context, w kvindex.WorkerID, state map[string]string) error {
	for range snapshotTries {
		done, err := t.parts(ctx, w, state)
		if done || err != nil {
			return err
		}
		states, _, err := t.l.states(ctx, []kvindex.WorkerID{w})
		if err != nil {
			return err
		}
		old := state["gen"]
		if state = states[0]; state["gen"] == "" || state["gen"] == old {
			break
		}
		if mark, err := parsePosition(state["wm"]); err == nil {
			t.covered[w] = mark // later than before; the shard's start may stay
		}
	}
	// The parts are gone. What is read behind the mark does not build on anything:
	// the worker's owners are in doubt until it writes all anew.
	err := t.l.void(ctx, shardOf(w), 0, w)
	return errors.Join(err, fmt.Errorf("snapshot of worker %s: %w", w, errMissed))
}

// parts passes on a snapshot. It returns false if a part is gone.
func (t *tail) parts(ctx context.Context, w kvindex.WorkerID, state map[string]string) (bool, error) {
	want, err := strconv.Atoi(state["parts"])
	if err != nil {
		return false, nil //nolint:nilerr // as good as gone
	}
	batch := cleared(w, state)
	key := t.l.keys.snapshot(state["gen"], w)
	for from := 0; from < want; from += partsAtOnce {
		rctx, cancel := t.l.limit(ctx)
		list, err := t.l.client.LRange(rctx, key, int64(from), int64(from+partsAtOnce-1)).Result()
		cancel()
		if err != nil {
			return false, fmt.Errorf("read snapshot of worker %s: %w", w, err)
		}
		if len(list) != min(partsAtOnce, want-from) {
			return false, nil
		}
		for _, part := range list {
			batch = t.decode(batch, part, position{})
		}
		if err := t.pass(batch); err != nil {
			return false, err
		}
		batch = nil
	}
	return true, t.pass(batch)
}

// cleared are the heads of a snapshot: each owner's place in its sequence.
func cleared(w kvindex.WorkerID, state map[string]string) []kvindex.Record {
	var out []kvindex.Record
	for f, v := range state {
		o, ok := parseOwnerField(f, w)
		s, whole := decodeOwnerState(v)
		if !ok || !whole || f[0] != 's' || s.cursor.Seq == 0 {
			continue
		}
		out = append(out, kvindex.Record{
			Owner: o, Epoch: s.cursor.Epoch, Term: s.cursor.Term, Seq: s.cursor.Seq, Kind: kvindex.KindCleared,
		})
	}
	return out
}

// catchUp reads the streams up to where they ended when the reading began.
func (t *tail) catchUp(ctx context.Context, b pulse) error {
	for {
		behind := false
		for s := range shards {
			behind = behind || t.at[s].compare(b.last[s]) < 0
		}
		if t.now == (position{}) {
			behind = true
		}
		n, err := t.read(ctx, -1)
		if errors.Is(err, errMissed) {
			return errors.Join(t.voidAll(ctx), err)
		}
		if err != nil {
			return err
		}
		if n == 0 && behind && t.now == (position{}) {
			t.now = position{ms: 1} // it is empty
			continue
		}
		if n == 0 || !behind {
			return nil
		}
	}
}

// voidAll sees that workers whose mark lies before what is left of their shard
// write all anew.
func (t *tail) voidAll(ctx context.Context) error {
	for s := range shards {
		list, err := t.l.client.XRangeN(ctx, t.l.keys.events(s), "-", "+", 1).Result()
		if err != nil {
			return fmt.Errorf("read beginning of shard %d: %w", s, err)
		}
		if len(list) == 0 {
			continue
		}
		before, _ := list[0].Values["p"].(string)
		p, err := parsePosition(before)
		if err != nil {
			return err
		}
		if err := t.l.void(ctx, s, p.ms, ""); err != nil {
			return err
		}
	}
	return nil
}

// void takes their place from the workers of a shard whose snapshot was made up to
// a time, and from one more.
func (l *Log) void(ctx context.Context, shard int, upTo uint64, w kvindex.WorkerID) error {
	if err := l.scripts.void.Run(ctx, l.client, []string{l.keys.log()}, shard, upTo, string(w)).Err(); err != nil {
		return fmt.Errorf("take their place from workers of shard %d: %w", shard, err)
	}
	return nil
}

// learned passes on the learned texts, the oldest first.
func (t *tail) learned(ctx context.Context, newest int) error {
	lengths, err := t.l.lengths(ctx)
	if err != nil {
		return fmt.Errorf("read learned texts: %w", err)
	}
	for i := range learnedRing {
		segment := (newest + 1 + i) % learnedRing
		for from := int64(0); from < lengths[segment]; from += partsAtOnce {
			rctx, cancel := t.l.limit(ctx)
			list, err := t.l.client.LRange(rctx, t.l.keys.learned(segment), from, from+partsAtOnce-1).Result()
			cancel()
			if err != nil {
				return fmt.Errorf("read learned texts: %w", err)
			}
			var batch []kvindex.Record
			for _, part := range list {
				batch = t.decode(batch, part, position{})
			}
			if err := t.pass(batch); err != nil {
				return err
			}
		}
	}
	return nil
}

// lengths are those of the ring's lists.
func (l *Log) lengths(ctx context.Context) ([learnedRing]int64, error) {
	ctx, cancel := l.limit(ctx)
	defer cancel()
	var out [learnedRing]int64
	var cmds [learnedRing]*redis.IntCmd
	_, err := l.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range cmds {
			cmds[i] = p.LLen(ctx, l.keys.learned(i))
		}
		return nil
	})
	for i := range cmds {
		out[i] = cmds[i].Val()
	}
	return out, err
}
