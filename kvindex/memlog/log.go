package memlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// ErrTooLarge refuses a record of more than [MaxRecordBytes].
var ErrTooLarge = errors.New("record too large")

// MaxRecordBytes bounds one record, so that it fits into one message of gRPC's
// default limit (4 MiB). A prompt of a million tokens is learned in about 1 MiB.
const MaxRecordBytes = 3 << 20

// Options bound what a [Log] keeps. A field that is 0 takes its default.
type Options struct {
	// LearnedBytes bounds the learned texts kept for new tails; the oldest go
	// first. Default 64 MiB.
	LearnedBytes int
	// TailBytes bounds what waits for a slow tail before it is cut. Default 32 MiB.
	TailBytes int
	// Beat is the time between signs of life on a silent gRPC tail. Default 5 s;
	// a client gives up after [Silence].
	Beat time.Duration
}

func (o Options) withDefaults() Options {
	if o.LearnedBytes == 0 {
		o.LearnedBytes = 64 << 20
	}
	if o.TailBytes == 0 {
		o.TailBytes = 32 << 20
	}
	if o.Beat == 0 {
		o.Beat = 5 * time.Second
	}
	return o
}

// Log is the embedded log. It is safe for concurrent use.
type Log struct {
	opts Options
	id   uint64

	mu      sync.Mutex
	workers map[kvindex.WorkerID]worker
	learned learned
	tails   map[*tail]struct{}
	stats   Stats
}

// worker is all owners of one worker.
type worker map[kvindex.Owner]*owner

// owner is the present state of one owner.
type owner struct {
	cursor kvindex.Cursor
	// term is the newest of any record, also of Hello and Load, which the cursor
	// does not see.
	term        uint64
	hello, load *kvindex.Record
	live        live
}

// Stats counts what a log holds and has met.
type Stats struct {
	// Workers, Owners, Blocks (live, per owner), Texts (learned) are held now;
	// LearnedBytes is the memory of the texts; Tails are connected now.
	Workers, Owners, Blocks, Texts, LearnedBytes, Tails int
	// Records were accepted. Repeats were ignored; Gaps, Fenced and Malformed
	// (too large ones too) refused. TailsCut were too slow.
	Records, Repeats, Gaps, Fenced, Malformed, TailsCut uint64
}

// New is an empty log.
func New(opts Options) *Log {
	opts = opts.withDefaults()
	return &Log{
		opts:    opts,
		id:      rand.Uint64() | 1, // never 0: a client's "none seen yet"
		workers: map[kvindex.WorkerID]worker{},
		learned: newLearned(opts.LearnedBytes),
		tails:   map[*tail]struct{}{},
	}
}

// ID is drawn at random when the log is made; it is never 0.
func (l *Log) ID() uint64 { return l.id }

// Append writes records of one writer in order, up to the first faulty one; see
// [kvindex.Log]. The log and its tails share the records' bodies: they must not
// be changed afterwards.
func (l *Log) Append(_ context.Context, records []kvindex.Record) error {
	_, err := l.append(records)
	return err
}

// CheckpointDue implements [kvindex.Log]: never, the log has the present state.
func (l *Log) CheckpointDue(kvindex.WorkerID) bool { return false }

// Checkpoint implements [kvindex.Log]; there is nothing to do.
func (l *Log) Checkpoint(context.Context, []kvindex.Record) error { return nil }

// append returns how many records were written.
func (l *Log) append(records []kvindex.Record) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	batch := make([]kvindex.Record, 0, len(records))
	defer func() { l.publish(batch) }()
	for i := range records {
		fresh, err := l.apply(&records[i])
		if err != nil {
			l.count(err)
			return i, err
		}
		if !fresh {
			l.stats.Repeats++
			continue
		}
		l.stats.Records++
		batch = append(batch, records[i])
	}
	return len(records), nil
}

func (l *Log) count(err error) {
	var gap *kvindex.GapError
	switch {
	case errors.As(err, &gap):
		l.stats.Gaps++
	case errors.Is(err, kvindex.ErrFenced):
		l.stats.Fenced++
	default:
		l.stats.Malformed++
	}
}

// apply changes the state, or returns an error and changes nothing. It reports
// whether the record says anything new.
func (l *Log) apply(r *kvindex.Record) (bool, error) {
	if recordBytes(r) > MaxRecordBytes {
		return false, fmt.Errorf("%s of owner %s: %w", r.Kind, r.Owner, ErrTooLarge)
	}
	if r.Owner.Worker == "" {
		return false, fmt.Errorf("%s without a worker: %w", r.Kind, kvindex.ErrMalformed)
	}
	var next kvindex.Cursor
	o := l.workers[r.Owner.Worker][r.Owner]
	if o != nil {
		if r.Kind != kvindex.KindBooking && r.Term < o.term {
			return false, fenced(r)
		}
		next = o.cursor
	}
	last := next.Seq
	step, err := next.Advance(r)
	switch {
	case err != nil:
		return false, err
	case r.Kind == kvindex.KindBooking:
		return true, nil
	case r.Kind == kvindex.KindBye:
		return true, l.bye(r)
	case r.Kind.Sequenced() && r.Seq == 0: // only a log's own snapshot has these
		return false, &kvindex.GapError{Owner: r.Owner, Want: last + 1}
	case r.Kind.Sequenced() && step == kvindex.StepIgnore:
		return false, nil
	}
	if o == nil {
		o = l.owner(r.Owner)
	}
	o.cursor, o.term = next, r.Term
	l.store(o, step, r)
	return true, nil
}

func fenced(r *kvindex.Record) error {
	return fmt.Errorf("%s of owner %s, term %d: %w", r.Kind, r.Owner, r.Term, kvindex.ErrFenced)
}

// owner makes an owner that is not there yet.
func (l *Log) owner(name kvindex.Owner) *owner {
	w := l.workers[name.Worker]
	if w == nil {
		w = worker{}
		l.workers[name.Worker] = w
	}
	o := &owner{live: newLive()}
	w[name] = o
	return o
}

// store puts an accepted record into the state.
func (l *Log) store(o *owner, step kvindex.Step, r *kvindex.Record) {
	if step == kvindex.StepReset {
		o.live = newLive()
	}
	switch r.Kind {
	case kvindex.KindStored:
		o.live.store(r.Stored)
	case kvindex.KindRemoved:
		o.live.remove(r.Removed)
	case kvindex.KindLearned:
		l.learned.add(*r)
	case kvindex.KindHello:
		o.hello = new(*r)
	case kvindex.KindLoad:
		o.load = gauges(*r)
	default: // Cleared has emptied it; the others have no state
	}
}

// gauges is a Load for late readers. The samples were for those who were there:
// a reader that connects twice would count them twice. Accepted stays, since it
// says which bookings the figures include.
func gauges(r kvindex.Record) *kvindex.Record {
	load := *r.Load
	load.FirstToken, load.Done, load.Failed = nil, nil, nil
	r.Load = &load
	return &r
}

// bye forgets the worker unless a newer writer has taken over.
func (l *Log) bye(r *kvindex.Record) error {
	for _, o := range l.workers[r.Owner.Worker] {
		if o.term > r.Term {
			return fenced(r)
		}
	}
	delete(l.workers, r.Owner.Worker)
	return nil
}

// Drop forgets a worker that left without a Bye, and tells the tails. One that is
// not here is dropped by the tails all the same: it may have said Bye while a tail
// was broken.
func (l *Log) Drop(name kvindex.WorkerID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.workers[name]
	r := kvindex.Record{Owner: kvindex.Owner{Worker: name}, Kind: kvindex.KindBye}
	if w == nil {
		r.Term = math.MaxUint64
	}
	for _, o := range w {
		r.Term = max(r.Term, o.term)
	}
	delete(l.workers, name)
	l.publish([]kvindex.Record{r})
}

// Snapshot is the present state of one worker, or of all if name is empty, as a
// new tail gets it, without the learned texts.
func (l *Log) Snapshot(name kvindex.WorkerID) []kvindex.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	if name != "" {
		return l.workers[name].snapshot(nil)
	}
	var records []kvindex.Record
	for _, w := range l.names() {
		records = l.workers[w].snapshot(records)
	}
	return records
}

// names lists the workers in order.
func (l *Log) names() []kvindex.WorkerID {
	names := make([]kvindex.WorkerID, 0, len(l.workers))
	for w := range l.workers {
		names = append(names, w)
	}
	slices.Sort(names)
	return names
}

// hellos appends the last Hello of each owner.
func (w worker) hellos(dst []kvindex.Record) []kvindex.Record {
	for _, o := range w {
		if o.hello != nil {
			dst = append(dst, *o.hello)
		}
	}
	return dst
}

// snapshot appends Hello, Load and content of each owner.
func (w worker) snapshot(dst []kvindex.Record) []kvindex.Record {
	owners := make([]kvindex.Owner, 0, len(w))
	for o := range w {
		owners = append(owners, o)
	}
	slices.SortFunc(owners, func(a, b kvindex.Owner) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Tier, b.Tier))
	})
	for _, name := range owners {
		for _, r := range []*kvindex.Record{w[name].hello, w[name].load} {
			if r != nil {
				dst = append(dst, *r)
			}
		}
	}
	for _, name := range owners {
		o := w[name]
		if o.cursor.Seq == 0 {
			continue
		}
		head := kvindex.Record{Owner: name, Epoch: o.cursor.Epoch, Term: o.cursor.Term}
		cleared := head
		cleared.Kind, cleared.Seq = kvindex.KindCleared, o.cursor.Seq
		dst = o.live.snapshot(append(dst, cleared), head)
	}
	return dst
}

// Stats counts what the log holds and has met.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Workers, s.Tails = len(l.workers), len(l.tails)
	s.Texts, s.LearnedBytes = l.learned.texts.Len(), l.learned.bytes
	for _, w := range l.workers {
		s.Owners += len(w)
		for _, o := range w {
			s.Blocks += len(o.live.blocks)
		}
	}
	return s
}
