package workers

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
)

// Limits of the writer. A report of the load is worth a message when it changed,
// but not more than 50 times a second.
const (
	heartbeatEvery = time.Second
	loadAtLeast    = 500 * time.Millisecond
	loadAtMost     = 20 * time.Millisecond
	appendTimeout  = 2 * time.Second
	retryFirst     = 100 * time.Millisecond
	retryMost      = time.Second
	byeTimeout     = 2 * time.Second
	// checkpointTimeout bounds a checkpoint: with a million blocks it is 8 MB.
	checkpointTimeout = 5 * time.Second

	// maxAppendRecords and maxAppendHashes bound one Append: 32,768 hashes are
	// 256 KiB, far below gRPC's default limit of 4 MiB.
	maxAppendRecords = 512
	maxAppendHashes  = 32768
	// maxPendingBytes is when records that wait for the log are given up for a later
	// snapshot: by their memory, see heap.
	maxPendingBytes = 32 << 20
	// seqPerMs spaces the sequence numbers of two agents of one worker: a new one
	// starts above everything that the old one can have written, without asking.
	seqPerMs = 1024
	// maxLessons bounds the learned prefixes kept for snapshots, bytes.
	maxLessons = 16 << 20
)

// update is one thing that the writer has to publish. Content of an old epoch
// must not follow a new one, so both travel in one queue.
type update struct {
	rank    uint16
	epoch   uint64 // not 0: the rank's memory begins a new life
	records []kvindex.Record
	events  *events
}

// events are what an engine said of a rank. The writer translates them, so that
// the content that it knows and the records that it wrote are always the same.
type events struct {
	batch enginewire.Batch
	seq   uint64
	// lost: some before this were lost, and there is no batch: all that was known of
	// the rank is given up.
	lost bool
	// The rest is for a rank's first events: its engine's model and what an operator
	// said of the groups.
	model  string
	groups []kvindex.GroupSpec
	// seen is told what became of the events, by the writer's goroutine.
	seen func(*content, applied)
}

// publisher is the only writer of this worker's records. It owns term, epochs and
// sequence numbers, and the content that a snapshot is made from.
//
// Invariant: what is in the log followed by pending is contents and mirrors, unless
// dirty; then the next thing sent is a snapshot.
type publisher struct {
	log     kvindex.Log
	worker  kvindex.WorkerID
	term    uint64
	hello   func() kvindex.Hello
	load    *load
	metrics *Metrics
	in      chan update
	urgent  chan struct{} // readiness changed
	// reach is told when the log cannot be reached any more, and with nil when it
	// can again; nil for none.
	reach func(error)
	// stays: the worker goes on when this writer ends, as an engine does without its
	// collector. No Bye is said.
	stays atomic.Bool

	// Only Run's goroutine uses the rest.
	epochs   map[uint16]uint64
	contents map[uint16]*content // of ranks whose engine has events
	mirrors  map[kvindex.Owner]*mirror
	owners   []kvindex.Owner // in order of appearance
	seqs     map[kvindex.Owner]uint64
	lessons  *lessons

	pending      []kvindex.Record
	maxPending   int // maxPendingBytes; tests have less
	pendingBytes int // the sum of their heap
	whole        int // that of the last snapshot: it must not be given up for its own size
	dirty        bool
	away         bool // the log could not be reached at the last try
	anchored     bool // a sequenced record was sent since the last heartbeat

	helloAt, loadAt, retryAt time.Time
	loadSent                 time.Time
	retry                    time.Duration
	flight                   *flight
	results                  chan error
}

// flight is the Append under way.
type flight struct {
	records []kvindex.Record
	load    *kvindex.Load
	// checkpoint: the records are not appended but kept by the log as this worker's
	// content.
	checkpoint bool
}

func newPublisher(log kvindex.Log, worker kvindex.WorkerID, term uint64, hello func() kvindex.Hello, l *load, m *Metrics) *publisher {
	return &publisher{
		log: log, worker: worker, term: term, hello: hello, load: l, metrics: m,
		in: make(chan update, 256), urgent: make(chan struct{}, 1),
		epochs:   make(map[uint16]uint64),
		contents: make(map[uint16]*content),
		mirrors:  make(map[kvindex.Owner]*mirror),
		seqs:     make(map[kvindex.Owner]uint64),
		lessons:  newLessons(maxLessons),
		results:  make(chan error, 1),

		maxPending: maxPendingBytes,
	}
}

// put queues an update; it waits only while the writer is busy with another one,
// never for the log. It returns false when ctx ended first.
func (p *publisher) put(ctx context.Context, u update) bool {
	select {
	case p.in <- u:
		return true
	case <-ctx.Done():
		return false
	}
}

// announce asks for a Hello at once.
func (p *publisher) announce() {
	select {
	case p.urgent <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends, then says Bye. It fails only when another writer
// has taken over this worker's name.
func (p *publisher) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return p.finish(ctx)
		case u := <-p.in:
			p.absorb(u)
			p.absorbWaiting()
		case err := <-p.results:
			if err := p.landed(err); err != nil {
				return err
			}
		case <-p.urgent:
			p.helloAt = time.Time{}
		case <-p.load.changed:
			p.loadAt = p.loadSent.Add(loadAtMost)
		case <-timer.C:
		}
		p.send(ctx)
		timer.Reset(p.wait())
	}
}

func (p *publisher) absorbWaiting() {
	for {
		select {
		case u := <-p.in:
			p.absorb(u)
		default:
			return
		}
	}
}

// wait is how long nothing is due.
func (p *publisher) wait() time.Duration {
	if p.flight != nil {
		return time.Hour // results wakes the loop
	}
	due := p.helloAt
	if p.loadAt.Before(due) {
		due = p.loadAt
	}
	if p.retryAt.After(due) {
		due = p.retryAt
	}
	return max(time.Until(due), time.Millisecond)
}

// absorb takes an update into contents and mirrors and, unless a snapshot is due
// anyway, into the queue. Nothing is sent meanwhile, so a snapshot is never made from
// half of it.
func (p *publisher) absorb(u update) {
	if u.epoch != 0 {
		p.newEpoch(u.rank, u.epoch)
	}
	for i := range u.records {
		r := &u.records[i]
		if r.Kind == kvindex.KindLearned {
			p.lessons.add(r.Learned)
			p.metrics.Learned.Inc()
		} else {
			p.mirror(r.Owner).apply(r)
		}
		p.take(r)
	}
	if u.events != nil {
		for _, r := range p.translate(u.rank, u.events) {
			p.open(r.Owner)
			p.take(&r)
		}
	}
	if p.pendingBytes > p.whole+p.maxPending {
		p.metrics.LogOverflow.Inc()
		p.resync()
	}
}

// translate brings events into the rank's content and returns the records that they
// amount to.
func (p *publisher) translate(rank uint16, e *events) []kvindex.Record {
	c := p.contents[rank]
	if e.lost {
		if c == nil {
			return nil
		}
		return c.clear()
	}
	if c == nil {
		c = newContent(p.worker, rank, e.model, e.groups)
		p.contents[rank] = c
	}
	records, n := c.apply(e.batch, e.seq)
	e.seen(c, n)
	return records
}

// take queues a record of an owner that is open.
func (p *publisher) take(r *kvindex.Record) {
	if r.Kind == kvindex.KindCleared {
		p.anchor()
	}
	p.queue(*r)
}

// newEpoch empties the rank's owners and opens their new life with a Cleared.
func (p *publisher) newEpoch(rank uint16, epoch uint64) {
	p.anchor() // under the old epoch: a Cleared alone would suit a log that lost its memory
	p.epochs[rank] = epoch
	p.open(kvindex.Owner{Worker: p.worker, Rank: rank, Tier: kvindex.Device})
	delete(p.contents, rank)
	for _, o := range p.owners {
		if o.Rank == rank {
			delete(p.mirrors, o)
			p.queue(kvindex.Record{Owner: o, Kind: kvindex.KindCleared})
		}
	}
	p.helloAt, p.loadAt = time.Time{}, time.Time{}
}

// open notes an owner if it is a new one.
func (p *publisher) open(o kvindex.Owner) {
	if slices.Contains(p.owners, o) {
		return
	}
	p.owners = append(p.owners, o)
	// The owner's first record must be a Cleared: the number may jump there.
	if p.epochs[o.Rank] != 0 && o.Tier != kvindex.Device {
		p.queue(kvindex.Record{Owner: o, Kind: kvindex.KindCleared})
	}
}

func (p *publisher) mirror(o kvindex.Owner) *mirror {
	p.open(o)
	m := p.mirrors[o]
	if m == nil {
		m = newMirror()
		p.mirrors[o] = m
	}
	return m
}

// holds yields Stored bodies that amount to what an owner holds now, each block
// after its parent.
func (p *publisher) holds(o kvindex.Owner) iter.Seq[kvindex.Stored] {
	if c := p.contents[o.Rank]; c != nil {
		return c.holds(o.Tier)
	}
	if m := p.mirrors[o]; m != nil {
		return m.holds()
	}
	return func(func(kvindex.Stored) bool) {}
}

// queue numbers a record and appends it to pending. Before the engine's first sign
// of life there is no epoch to number it under: a snapshot will have it.
func (p *publisher) queue(r kvindex.Record) {
	if p.epochs[r.Owner.Rank] == 0 {
		p.resync()
	}
	if p.dirty {
		return
	}
	for part := range parts(r) {
		p.pending = append(p.pending, p.stamp(part))
		p.pendingBytes += heap(&part)
	}
}

// stamp adds epoch, term and, for sequenced kinds, the next number.
func (p *publisher) stamp(r kvindex.Record) kvindex.Record {
	r.Term = p.term
	r.Epoch = p.epochs[r.Owner.Rank]
	if r.Kind.Sequenced() {
		if p.seqs[r.Owner] == 0 {
			p.seqs[r.Owner] = p.term * seqPerMs
		}
		p.seqs[r.Owner]++
		r.Seq = p.seqs[r.Owner]
	}
	return r
}

// resync gives up what waits and makes a snapshot the next thing sent.
func (p *publisher) resync() {
	p.pending, p.pendingBytes, p.dirty = nil, 0, true
}

// snapshot fills pending with everything this worker holds.
func (p *publisher) snapshot() {
	p.dirty = false
	p.metrics.Snapshots.Inc()
	for _, o := range p.owners {
		p.queue(kvindex.Record{Owner: o, Kind: kvindex.KindCleared})
		for s := range p.holds(o) {
			p.queue(kvindex.Record{Owner: o, Kind: kvindex.KindStored, Stored: &s})
		}
	}
	for _, l := range p.lessons.all() {
		p.queue(p.learnedRecord(l))
	}
	p.whole = p.pendingBytes
}

func (p *publisher) learnedRecord(l *kvindex.Learned) kvindex.Record {
	return kvindex.Record{Owner: p.device(), Kind: kvindex.KindLearned, Learned: l}
}

func (p *publisher) device() kvindex.Owner {
	return kvindex.Owner{Worker: p.worker, Tier: kvindex.Device}
}

// send starts an Append of what is due, if none is under way and the log is not
// resting after an error.
func (p *publisher) send(ctx context.Context) {
	now := time.Now()
	if p.flight != nil || now.Before(p.retryAt) {
		return
	}
	if p.epochs[0] == 0 {
		// Nothing is known of the engine yet; there is no life to speak for.
		p.helloAt, p.loadAt = now.Add(heartbeatEvery), now.Add(heartbeatEvery)
		return
	}
	f := p.checkpoint()
	if f == nil {
		f = p.next(now)
	}
	if len(f.records) == 0 {
		return
	}
	p.flight = f
	go func() {
		// A stop must not cut the record that says "not ready".
		limit := appendTimeout
		if f.checkpoint {
			limit = checkpointTimeout
		}
		actx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		if f.checkpoint {
			p.results <- p.log.Checkpoint(actx, f.records)
			return
		}
		p.results <- p.log.Append(actx, f.records)
	}()
}

// checkpoint is the content for the log if it asks for that, else nil. What is
// pending is in it and in the numbers of the Cleareds.
func (p *publisher) checkpoint() *flight {
	if p.dirty || !p.log.CheckpointDue(p.worker) {
		return nil
	}
	f := &flight{checkpoint: true}
	for _, o := range p.owners {
		if p.seqs[o] == 0 {
			continue
		}
		head := kvindex.Record{Owner: o, Epoch: p.epochs[o.Rank], Term: p.term, Kind: kvindex.KindCleared, Seq: p.seqs[o]}
		f.records = append(f.records, head)
		head.Kind, head.Seq = kvindex.KindStored, 0
		for part := range p.holds(o) {
			head.Stored = &part
			f.records = append(f.records, head)
		}
	}
	return f
}

// next collects the records of one Append.
func (p *publisher) next(now time.Time) *flight {
	f := &flight{}
	if p.dirty {
		p.snapshot()
	}
	if !now.Before(p.helloAt) {
		h := p.hello()
		f.records = append(f.records, p.stamp(kvindex.Record{Owner: p.device(), Kind: kvindex.KindHello, Hello: &h}))
		p.helloAt = now.Add(heartbeatEvery)
		if !p.anchored && len(p.pending) == 0 {
			p.anchor()
		}
		p.anchored = false
	}
	if !now.Before(p.loadAt) && !p.load.known() {
		p.loadAt = now.Add(loadAtLeast)
	}
	if !now.Before(p.loadAt) {
		l := p.load.take()
		f.load = &l
		f.records = append(f.records, p.stamp(kvindex.Record{Owner: p.device(), Kind: kvindex.KindLoad, Load: &l}))
		p.loadSent, p.loadAt = now, now.Add(loadAtLeast)
	}
	hashes := 0
	for len(p.pending) > 0 && len(f.records) < maxAppendRecords {
		w := weight(&p.pending[0])
		if hashes > 0 && hashes+w > maxAppendHashes {
			break
		}
		hashes += w
		p.pendingBytes -= heap(&p.pending[0])
		p.anchored = p.anchored || !isAnchor(&p.pending[0])
		f.records = append(f.records, p.pending[0])
		p.pending = p.pending[1:]
	}
	return f
}

// anchor queues an empty Removed. A log that lost its memory answers it with a
// gap. It goes with the heartbeat of a quiet worker, so that such a log is found
// out within a second, and before a Cleared, which such a log would take as it is.
func (p *publisher) anchor() {
	if p.seqs[p.device()] != 0 {
		p.queue(kvindex.Record{Owner: p.device(), Kind: kvindex.KindRemoved, Removed: &kvindex.Removed{}})
	}
}

func isAnchor(r *kvindex.Record) bool {
	return r.Kind == kvindex.KindRemoved && len(r.Removed.Hashes) == 0
}

// landed handles the end of an Append.
func (p *publisher) landed(err error) error {
	f := p.flight
	p.flight = nil
	if f.checkpoint {
		if err != nil { // the log asks again; what it has is still right
			p.metrics.LogErrors.WithLabelValues("checkpoint").Inc()
		}
		return nil
	}
	if err == nil {
		p.metrics.Appended.Add(float64(len(f.records)))
		p.metrics.LogUp.Set(1)
		p.tell(nil)
		p.retry, p.retryAt = 0, time.Time{}
		return nil
	}
	if f.load != nil {
		p.load.putBack(f.load)
		p.loadAt = time.Time{}
	}
	p.helloAt = time.Time{}
	var gap *kvindex.GapError
	switch {
	case errors.Is(err, kvindex.ErrFenced):
		return fmt.Errorf("write as worker %q: %w", p.worker, err)
	case errors.As(err, &gap):
		p.resync()
		p.metrics.LogErrors.WithLabelValues("gap").Inc()
	default:
		p.keep(f.records)
		p.metrics.LogErrors.WithLabelValues("away").Inc()
		p.metrics.LogUp.Set(0)
		p.tell(err)
	}
	p.retry = min(max(2*p.retry, retryFirst), retryMost)
	p.retryAt = time.Now().Add(p.retry)
	return nil
}

// keep puts the numbered records of an Append that may have failed before those
// that wait: a log that has some of them takes them for repeats.
func (p *publisher) keep(records []kvindex.Record) {
	if p.dirty {
		return
	}
	numbered := slices.DeleteFunc(records, func(r kvindex.Record) bool { return !r.Kind.Sequenced() })
	for i := range numbered {
		p.pendingBytes += heap(&numbered[i])
	}
	p.pending = append(numbered, p.pending...)
}

// tell passes on a change of whether the log can be reached.
func (p *publisher) tell(err error) {
	if p.away == (err != nil) {
		return
	}
	p.away = err != nil
	if p.reach != nil {
		p.reach(err)
	}
}

// finish writes a last Hello (not ready by now), what the load has to say, and
// Bye, within appendTimeout and byeTimeout; nothing if the worker stays.
func (p *publisher) finish(ctx context.Context) error {
	if p.flight != nil {
		if err := p.landed(<-p.results); err != nil { // bounded by appendTimeout
			return err
		}
	}
	fctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), byeTimeout)
	defer cancel()
	if p.epochs[0] == 0 || p.stays.Load() {
		return nil
	}
	l, h := p.load.take(), p.hello()
	last := []kvindex.Record{
		p.stamp(kvindex.Record{Owner: p.device(), Kind: kvindex.KindHello, Hello: &h}),
		p.stamp(kvindex.Record{Owner: p.device(), Kind: kvindex.KindLoad, Load: &l}),
		p.stamp(kvindex.Record{Owner: p.device(), Kind: kvindex.KindBye}),
	}
	if err := p.log.Append(fctx, last); err != nil {
		// Nobody waits for the Bye: the lease ends without it.
		p.metrics.LogErrors.WithLabelValues("bye").Inc()
	}
	return nil
}
