package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/redislog"
)

// replica follows the log into an index.
type replica struct {
	log      *redislog.Log
	index    *kvindex.Index
	stop     func()
	complete chan struct{}
	fault    atomic.Pointer[error]
	seen     func(*kvindex.Record) // after it is in the index; nil for nobody

	mu   sync.Mutex
	seqs map[kvindex.WorkerID]uint64
	news chan struct{} // closed and replaced at each batch
}

func follow(ctx context.Context, l *redislog.Log) *replica {
	r := &replica{
		log: l, index: kvindex.NewIndex(), complete: make(chan struct{}),
		seqs: map[kvindex.WorkerID]uint64{}, news: make(chan struct{}),
	}
	r.start(ctx)
	return r
}

func (r *replica) start(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	r.stop = func() { cancel(); <-done }
	go func() {
		defer close(done)
		if err := r.log.Tail(ctx, r.apply); err != nil && ctx.Err() == nil {
			r.fault.Store(&err)
		}
	}()
}

func (r *replica) apply(records []kvindex.Record) error {
	if len(records) == 0 {
		close(r.complete)
		return nil
	}
	for i := range records {
		if err := r.index.Apply(&records[i]); err != nil {
			return err
		}
		if r.seen != nil {
			r.seen(&records[i])
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range records {
		if s := records[i].Seq; s > 0 {
			r.seqs[records[i].Owner.Worker] = s
		}
	}
	close(r.news)
	r.news = make(chan struct{})
	return nil
}

// await waits for the present state.
func (r *replica) await(ctx context.Context) error {
	select {
	case <-r.complete:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reached waits until the index has an agent's last record.
func (r *replica) reached(ctx context.Context, a *agent) error {
	for {
		r.mu.Lock()
		seq, news := r.seqs[a.owner.Worker], r.news
		r.mu.Unlock()
		if seq >= a.seq {
			return nil
		}
		if err := r.fault.Load(); err != nil {
			return *err
		}
		select {
		case <-news:
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// run is a pool with its agents and two replicas.
type run struct {
	b        *bench
	pool     string
	agents   []*agent
	replicas []*replica
	logs     []*redislog.Log
}

func (b *bench) newRun(ctx context.Context, pool string, agents, size int) (*run, error) {
	r := &run{b: b, pool: pool}
	for n := range agents {
		l, err := b.open(pool)
		if err != nil {
			return nil, err
		}
		r.logs = append(r.logs, l)
		r.agents = append(r.agents, newAgent(l, n, size))
	}
	for range 2 {
		l, err := b.open(pool)
		if err != nil {
			return nil, err
		}
		r.logs = append(r.logs, l)
		rep := follow(ctx, l)
		r.replicas = append(r.replicas, rep)
		if err := rep.await(ctx); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *run) close() {
	for _, rep := range r.replicas {
		rep.stop()
	}
	for _, l := range r.logs {
		_ = l.Close() // nothing more is asked
	}
}

// flood writes for a while as fast as it goes and returns the block operations that
// have reached both indexes.
func (r *run) flood(ctx context.Context, d time.Duration) (int, error) {
	var group errgroup.Group
	end := time.Now().Add(d)
	for _, a := range r.agents {
		group.Go(func() error {
			for time.Now().Before(end) {
				if err := a.write(ctx, a.next(8192)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return r.drained(ctx)
}

// drained waits until both indexes have all, and counts.
func (r *run) drained(ctx context.Context) (int, error) {
	ops := 0
	for _, a := range r.agents {
		for _, rep := range r.replicas {
			if err := rep.reached(ctx, a); err != nil {
				return 0, err
			}
		}
		ops += a.ops
	}
	return ops, nil
}

// paced writes rate block operations a second in all, each agent at random times,
// and returns how long each record took until it was in an index.
func (r *run) paced(ctx context.Context, rate int, d time.Duration) ([]time.Duration, error) {
	var mu sync.Mutex
	var seen []time.Duration
	began := time.Now()
	made := make([]sync.Map, len(r.agents)) // by seq: when
	byName := map[kvindex.WorkerID]*sync.Map{}
	for i, a := range r.agents {
		byName[a.owner.Worker] = &made[i]
	}
	for _, rep := range r.replicas {
		rep.stop()
		rep.complete = make(chan struct{})
		rep.seen = func(x *kvindex.Record) {
			if x.Seq == 0 {
				return
			}
			if at, ok := byName[x.Owner.Worker].Load(x.Seq); ok {
				took := time.Since(began) - at.(time.Duration) //nolint:forcetypeassert // nothing else is put there
				mu.Lock()
				seen = append(seen, took)
				mu.Unlock()
			}
		}
		rep.start(ctx)
		if err := rep.await(ctx); err != nil {
			return nil, err
		}
	}
	var group errgroup.Group
	for i, a := range r.agents {
		group.Go(func() error {
			return a.pace(ctx, float64(rate)/float64(len(r.agents)), time.Now().Add(d), func(seq uint64) {
				made[i].Store(seq, time.Since(began))
			})
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	_, err := r.drained(ctx)
	mu.Lock()
	defer mu.Unlock()
	return seen, err
}

// pace makes events at random times and writes what has come up, like an agent:
// what waits while an Append is under way goes with the next.
func (a *agent) pace(ctx context.Context, rate float64, end time.Time, made func(seq uint64)) error {
	events := make(chan kvindex.Record, 1<<16)
	go func() {
		defer close(events)
		for at := time.Now(); at.Before(end); {
			ops := a.ops
			for _, r := range a.next(1) {
				made(r.Seq)
				events <- r
			}
			at = at.Add(time.Duration(rand.ExpFloat64() * float64(a.ops-ops) / rate * float64(time.Second)))
			if wait := time.Until(at); wait > 0 {
				<-time.After(wait)
			}
		}
	}()
	for {
		var batch []kvindex.Record
		r, ok := <-events
		if !ok {
			return nil
		}
		batch = append(batch, r)
		for len(batch) < most && len(events) > 0 {
			batch = append(batch, <-events)
		}
		if err := a.append(ctx, batch); err != nil {
			return err
		}
	}
}

// append is write without a checkpoint: the content is made by another goroutine.
func (a *agent) append(ctx context.Context, batch []kvindex.Record) error {
	if err := a.log.Append(ctx, batch); err != nil {
		return fmt.Errorf("agent %s: %w", a.owner.Worker, err)
	}
	return nil
}

// fill lets every agent hold all it can, with a snapshot, and then write a little.
func (r *run) fill(ctx context.Context) error {
	var group errgroup.Group
	group.SetLimit(4)
	for _, a := range r.agents {
		group.Go(func() error {
			for len(a.held) < a.size-prompt {
				if err := a.write(ctx, a.next(8192)); err != nil {
					return err
				}
			}
			for len(a.held) < a.size {
				if err := a.write(ctx, a.next(1)); err != nil {
					return err
				}
			}
			if err := a.checkpoint(ctx); err != nil {
				return err
			}
			return a.write(ctx, a.next(64))
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	_, err := r.drained(ctx)
	return err
}

// agree checks that both indexes hold what the agents do.
func (r *run) agree() error {
	for _, a := range r.agents {
		want := slices.Clone(a.held)
		slices.Sort(want)
		for i, rep := range r.replicas {
			if got := rep.index.Blocks(a.owner); !slices.Equal(got, want) {
				return fmt.Errorf("replica %d holds %d blocks of %s, want %d", i+1, len(got), a.owner.Worker, len(want))
			}
		}
	}
	return nil
}

// memory is what the pool's keys take in Redis, after agents have checkpointed and
// readers have trimmed.
func (r *run) memory(ctx context.Context) (int64, error) {
	for _, a := range r.agents {
		if err := a.checkpoint(ctx); err != nil {
			return 0, err
		}
	}
	keep := time.NewTimer(12 * time.Second) // entries stay 5 s, a beat trims one of 4 shards
	defer keep.Stop()
	select {
	case <-keep.C:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	options, err := redis.ParseURL(r.b.url)
	if err != nil {
		return 0, fmt.Errorf("measure memory: %w", err)
	}
	c := redis.NewClient(options)
	defer func() { _ = c.Close() }() // nothing more is asked
	keys, err := c.Keys(ctx, "kvlane:1:{"+r.pool+"}:*").Result()
	if err != nil {
		return 0, fmt.Errorf("list keys: %w", err)
	}
	var sum int64
	for _, k := range keys {
		n, err := c.MemoryUsage(ctx, k, 0).Result()
		if err != nil {
			return 0, fmt.Errorf("measure key: %w", err)
		}
		sum += n
	}
	return sum, nil
}
