package redislog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvlane/kvlane/kvindex"
)

// Members follows only who is there: about once a second apply gets every worker's
// last Hello, when one went its Bye, and once an empty batch when all have been
// named. It asks one small question a second and reads the Hellos only when one
// changed, so hundreds of agents may do this where Tail would bring each of them
// all content. While Redis does not answer, the Hellos are repeated all the same.
// It ends like [Log.Tail].
func (l *Log) Members(ctx context.Context, apply func([]kvindex.Record) error) error {
	m := &members{l: l, hellos: map[kvindex.WorkerID]kvindex.Record{}, missing: map[kvindex.WorkerID]time.Time{}}
	for {
		batch, err := m.look(ctx)
		if err != nil && ctx.Err() == nil {
			l.status.saw(reading, err)
			batch = m.all()
		}
		if len(batch) > 0 {
			if err := apply(batch); err != nil {
				return fmt.Errorf("apply members: %w", err)
			}
		}
		if err == nil && !m.complete {
			m.complete = true
			if err := apply(nil); err != nil {
				return fmt.Errorf("apply members: %w", err)
			}
		}
		if !pause(ctx, time.Duration((0.9+0.2*rand.Float64())*float64(beatEvery))) {
			return fmt.Errorf("follow members: %w", ctx.Err())
		}
	}
}

// members is one reader of the Hellos.
type members struct {
	l        *Log
	id       string // of the log, as read last
	version  string // of its members
	hellos   map[kvindex.WorkerID]kvindex.Record
	missing  map[kvindex.WorkerID]time.Time // not there since Redis was emptied
	complete bool
}

// look returns what is to be passed on.
func (m *members) look(ctx context.Context) ([]kvindex.Record, error) {
	ctx, cancel := m.l.limit(ctx)
	defer cancel()
	v, err := m.l.client.HMGet(ctx, m.l.keys.log(), "id", "members").Result()
	if err != nil {
		return nil, fmt.Errorf("read members: %w", err)
	}
	m.l.status.saw(reading, nil)
	id, _ := v[0].(string)
	version, _ := v[1].(string)
	var batch []kvindex.Record
	if id != m.id || version != m.version {
		if batch, err = m.read(ctx, id); err != nil {
			return nil, err
		}
		m.id, m.version = id, version
	}
	for name, since := range m.missing {
		if time.Since(since) > mercy {
			batch = append(batch, bye(name, true))
			delete(m.missing, name)
			delete(m.hellos, name)
		}
	}
	return append(batch, m.all()...), nil
}

// read reads all Hellos and returns the Byes of those that went. Of a log that was
// emptied nobody went: they must be able to come back first.
func (m *members) read(ctx context.Context, id string) ([]kvindex.Record, error) {
	all, err := m.l.client.HGetAll(ctx, m.l.keys.hellos()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("read members: %w", err)
	}
	var byes []kvindex.Record
	for name := range m.hellos {
		_, there := all[string(name)]
		_, missed := m.missing[name]
		switch {
		case there:
			delete(m.missing, name)
		case id != m.id && !missed:
			m.missing[name] = time.Now()
		case !missed:
			byes = append(byes, bye(name, false)) // or lapsed: Members does not read why
			delete(m.hellos, name)
		}
	}
	for name, text := range all {
		r, err := kvindex.DecodeRecord([]byte(text))
		if err != nil || r.Hello == nil {
			m.l.status.count(func(s *Status) { s.Skipped++ })
			continue
		}
		m.hellos[kvindex.WorkerID(name)] = r
	}
	return byes, nil
}

func (m *members) all() []kvindex.Record {
	batch := make([]kvindex.Record, 0, len(m.hellos))
	for _, r := range m.hellos {
		batch = append(batch, r)
	}
	slices.SortFunc(batch, func(a, b kvindex.Record) int { return cmp.Compare(a.Owner.Worker, b.Owner.Worker) })
	return batch
}
