package memlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// ErrBehind ends a tail that could not keep up: more than [Options].TailBytes
// waited for it. The caller tails anew.
var ErrBehind = errors.New("tail fell behind")

// pageBytes is about the size of the pieces in which a snapshot is passed on.
const pageBytes = 1 << 20

// tail is one reader. Its fields belong to the log's mutex.
type tail struct {
	batches [][]kvindex.Record
	bytes   int
	cut     bool
	members bool          // it gets Hellos and Byes only
	wake    chan struct{} // has room for one
}

// publish hands a batch to all tails and cuts those that are full.
func (l *Log) publish(batch []kvindex.Record) {
	if len(batch) == 0 || len(l.tails) == 0 {
		return
	}
	all := sized{batch, bytesOf(batch)}
	present := onlyMembers(batch)
	members := sized{present, bytesOf(present)}
	for t := range l.tails {
		news := all
		if t.members {
			news = members
		}
		if t.cut || len(news.records) == 0 {
			continue
		}
		t.batches = append(t.batches, news.records)
		t.bytes += news.bytes
		if t.bytes > l.opts.TailBytes {
			t.cut, t.batches = true, nil
			l.stats.TailsCut++
		}
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}

// sized are records with their memory.
type sized struct {
	records []kvindex.Record
	bytes   int
}

func bytesOf(records []kvindex.Record) int {
	n := 0
	for i := range records {
		n += recordBytes(&records[i])
	}
	return n
}

// onlyMembers are the Hellos and Byes of a batch.
func onlyMembers(batch []kvindex.Record) []kvindex.Record {
	var out []kvindex.Record
	for i := range batch {
		if k := batch[i].Kind; k == kvindex.KindHello || k == kvindex.KindBye {
			out = append(out, batch[i])
		}
	}
	return out
}

// Tail passes on the present state and then every later batch; see
// [kvindex.Log] and the package's description. apply must not change or keep
// the slice that it gets; the records' bodies may be kept, but not changed.
func (l *Log) Tail(ctx context.Context, apply func([]kvindex.Record) error) error {
	return l.tail(ctx, false, nil, apply)
}

// Members implements [kvindex.Log].
func (l *Log) Members(ctx context.Context, apply func([]kvindex.Record) error) error {
	return l.tail(ctx, true, nil, apply)
}

// tail is Tail, or Members, with an empty batch for every beat without another.
func (l *Log) tail(ctx context.Context, members bool, beat <-chan time.Time, apply func([]kvindex.Record) error) error {
	t := &tail{members: members, wake: make(chan struct{}, 1)}
	snapshot := l.join(t)
	defer l.leave(t)
	for _, page := range pages(snapshot) {
		if ctx.Err() != nil {
			break
		}
		if err := apply(page); err != nil {
			return fmt.Errorf("apply snapshot: %w", err)
		}
	}
	if ctx.Err() == nil {
		if err := apply(nil); err != nil {
			return fmt.Errorf("apply end of snapshot: %w", err)
		}
	}
	for {
		batches, err := l.take(t)
		if err != nil {
			return err
		}
		for _, batch := range batches {
			if err := apply(batch); err != nil {
				return fmt.Errorf("apply batch: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("tail log: %w", ctx.Err())
		case <-t.wake:
		case <-beat:
			if err := apply(nil); err != nil {
				return fmt.Errorf("apply beat: %w", err)
			}
		}
	}
}

// join registers a tail and returns the state at the same moment, so nothing is
// lost between the two.
func (l *Log) join(t *tail) []kvindex.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tails[t] = struct{}{}
	var records []kvindex.Record
	if t.members {
		for _, w := range l.names() {
			records = l.workers[w].hellos(records)
		}
		return records
	}
	for _, w := range l.names() {
		records = l.workers[w].snapshot(records)
	}
	for e := l.learned.texts.Front(); e != nil; e = e.Next() {
		records = append(records, text(e))
	}
	return records
}

func (l *Log) leave(t *tail) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.tails, t)
}

// take empties what waits for t.
func (l *Log) take(t *tail) ([][]kvindex.Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.cut {
		return nil, ErrBehind
	}
	batches := t.batches
	t.batches, t.bytes = nil, 0
	return batches, nil
}

// pages divides records into pieces of about pageBytes, at least one record each.
func pages(records []kvindex.Record) [][]kvindex.Record {
	var out [][]kvindex.Record
	start, size := 0, 0
	for i := range records {
		n := recordBytes(&records[i])
		if i > start && size+n > pageBytes {
			out = append(out, records[start:i:i])
			start, size = i, 0
		}
		size += n
	}
	if start < len(records) {
		out = append(out, records[start:])
	}
	return out
}
