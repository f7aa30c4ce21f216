package workers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log"
	"log/slog"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
)

const (
	// dialRetry is the pause between two attempts to reach an engine's sockets; an
	// engine takes seconds to start.
	dialRetry = 200 * time.Millisecond
	// dialTimeout bounds one attempt.
	dialTimeout = 2 * time.Second
	// feedBacklog is how many live messages wait while a replay is under way; more
	// wait in the socket.
	feedBacklog = 4096
)

// life says that the engine behind a feed began anew.
type life struct {
	started time.Time // of the process, zero if unknown
}

// feed follows the KV events of one data-parallel rank: it subscribes, notices
// what was lost, asks for it again, and hands all that came to the publisher.
//
// Invariant: what it published is what the engine holds according to the batches
// 0 to seq.next-1 of its present life, or to those since the last doubt.
type feed struct {
	events, replay string // ZMQ endpoints; replay may be empty
	rank           uint16
	model          func() string
	publisher      *publisher
	worker         Config // read only
	metrics        *Metrics
	log            *slog.Logger
	lives          chan life
	connected      chan struct{} // closed after the first connect and its replay
	sawBlockSize   func(tokens int)
	sawGroups      func([]kvindex.GroupSpec)
	handled        func(seq uint64) // after each live batch; nil for none
	// restarted is called at each new life; what it returns when the new epoch is
	// put. nil for none.
	restarted func() func()

	// Only Run's goroutine uses the rest.
	seq   sequence
	ranks map[uint16]bool // that its batches were about
	epoch uint64
	began time.Time // when the present life was first noticed
	topic []byte    // of this connection
	blind bool      // the last batch could not be read: nothing is held until one can
	once  bool
}

func newFeed(cfg Config, rank uint16, events, replay string, model func() string, p *publisher, m *Metrics, logger *slog.Logger) *feed {
	return &feed{
		events: events, replay: replay, rank: rank, model: model, publisher: p, worker: cfg,
		metrics: m, log: logger.With("rank", rank),
		lives: make(chan life, 1), connected: make(chan struct{}),
		ranks: make(map[uint16]bool), sawBlockSize: func(int) {}, sawGroups: func([]kvindex.GroupSpec) {},
	}
}

// restart tells the feed that the engine began a new life. A signal that was not
// read yet is enough.
func (f *feed) restart(l life) {
	select {
	case f.lives <- l:
	default:
	}
}

// Run follows the engine until ctx ends, over as many connections as it takes.
func (f *feed) Run(ctx context.Context) error {
	if !f.begin(ctx) {
		return nil
	}
	if f.events == "" {
		f.ready()
		return f.idle(ctx)
	}
	if polled(f.events) {
		return f.poll(ctx)
	}
	for {
		err := f.session(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it ended because it was told to
		}
		f.metrics.FeedReconnects.Inc()
		f.log.Debug("kv events: connection ended", "err", err)
		if !f.pause(ctx, dialRetry) {
			return nil
		}
	}
}

// idle serves an engine without events: only its lives are followed.
func (f *feed) idle(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case l := <-f.lives:
			f.newLife(ctx, l, "engine restarted")
		}
	}
}

func (f *feed) ready() {
	if !f.once {
		f.once = true
		close(f.connected)
	}
}

// pause waits, and still takes signals of a new life.
func (f *feed) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case l := <-f.lives:
			f.newLife(ctx, l, "engine restarted")
		case <-timer.C:
			return true
		}
	}
}

// session is one connection to the engine's publisher.
func (f *feed) session(ctx context.Context) error {
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sub := zmq4.NewSub(sctx,
		zmq4.WithDialerMaxRetries(0), zmq4.WithDialerTimeout(dialTimeout),
		zmq4.WithLogger(log.New(io.Discard, "", 0)))
	if err := sub.SetOption(zmq4.OptionSubscribe, ""); err != nil {
		return err
	}
	if err := dial(sctx, sub, f.events); err != nil {
		return err
	}
	messages := make(chan zmq4.Msg, feedBacklog)
	ended := make(chan error, 1)
	go func() { ended <- receive(sctx, sub, messages) }()
	defer func() {
		cancel()
		_ = sub.Close() // nothing is left to lose
		for range messages {
		}
	}()

	f.topic = nil
	f.catchUp(ctx, nil, true)
	f.ready()
	return f.follow(ctx, messages, ended)
}

// follow handles messages until the connection ends.
func (f *feed) follow(ctx context.Context, messages <-chan zmq4.Msg, ended <-chan error) error {
	idle := time.NewTicker(f.worker.EventIdleCheck)
	defer idle.Stop()
	quiet := true
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case l := <-f.lives:
			f.newLife(ctx, l, "engine restarted")
		case m, ok := <-messages:
			if !ok {
				return <-ended
			}
			quiet = false
			f.message(ctx, m)
		case <-idle.C:
			if quiet {
				f.catchUp(ctx, nil, false)
			}
			quiet = true
		}
	}
}

// dial connects a socket. The library does not bound the ZMTP handshake, so a
// peer that accepts and stays silent is left to the context.
func dial(ctx context.Context, s zmq4.Socket, endpoint string) error {
	dctx, cancel := context.WithTimeout(ctx, 2*dialTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Dial(endpoint) }()
	select {
	case err := <-done:
		return err
	case <-dctx.Done():
		_ = s.Close() // the dial in progress ends with the socket or with its peer
		return dctx.Err()
	}
}

// receive moves messages from the socket to the channel until the connection
// ends, then closes the channel.
func receive(ctx context.Context, s zmq4.Socket, out chan<- zmq4.Msg) error {
	defer close(out)
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		select {
		case out <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// message handles one message of the live socket.
func (f *feed) message(ctx context.Context, m zmq4.Msg) {
	if len(m.Frames) != 3 || len(m.Frames[1]) != 8 {
		f.metrics.BadMessages.WithLabelValues("frames").Inc()
		return
	}
	if f.topic == nil {
		f.topic = append([]byte{}, m.Frames[0]...)
	}
	if !bytes.Equal(f.topic, m.Frames[0]) {
		f.metrics.BadMessages.WithLabelValues("topic").Inc()
		return
	}
	b := batch{seq: binary.BigEndian.Uint64(m.Frames[1]), payload: m.Frames[2]}
	f.live(ctx, b)
	if f.handled != nil {
		f.handled(b.seq)
	}
}

// live handles one batch of the live socket.
func (f *feed) live(ctx context.Context, b batch) {
	switch f.seq.see(b) {
	case verdictApply:
		f.apply(ctx, b, true)
	case verdictRepeat:
		f.metrics.Batches.WithLabelValues("repeat").Inc()
	case verdictLate:
		f.metrics.Batches.WithLabelValues("late").Inc()
	case verdictGap:
		f.catchUp(ctx, &b, false)
	case verdictNewLife:
		f.newLife(ctx, life{}, "sequence fell back")
		if b.seq == 0 {
			f.apply(ctx, b, true)
			return
		}
		f.catchUp(ctx, &b, false)
	}
}

// catchUp asks the replay socket for what is missing and applies it, then the
// live batch that revealed the gap, if there is one. What cannot be had makes
// the rank's content doubtful: it is cleared and built up from what follows.
// fresh says that the connection is new: then an engine without any past that
// should have one is a new process.
func (f *feed) catchUp(ctx context.Context, live *batch, fresh bool) {
	if live != nil {
		f.metrics.Gaps.Inc()
	}
	answers, err := f.ask(ctx, f.seq.askFrom())
	r := f.seq.recover(answers, live)
	if f.seq.next > 0 && (r.newLife || (fresh && err == nil && len(answers) == 0)) {
		f.newLife(ctx, life{}, "replay shows another past")
		answers, _ = f.ask(ctx, 0) // what is missing shows in recover
		r = f.seq.recover(answers, live)
	}
	if r.doubt {
		if live == nil {
			f.metrics.Gaps.Inc()
		}
		f.doubt(ctx, r, live)
	}
	for _, b := range r.apply {
		f.metrics.Batches.WithLabelValues("recovered").Inc()
		f.apply(ctx, b, false)
	}
	if live != nil {
		f.apply(ctx, *live, true)
	}
}

// doubt gives up what was known of the rank.
func (f *feed) doubt(ctx context.Context, r recovery, live *batch) {
	to := uint64(0)
	switch {
	case len(r.apply) > 0:
		to = r.apply[0].seq
	case live != nil:
		to = live.seq
	}
	f.log.Warn("kv events lost: content cleared", "from", f.seq.next, "to", to)
	f.metrics.Doubts.Inc()
	f.giveUp(ctx)
	f.seq.skipTo(to)
}

// giveUp clears all ranks.
func (f *feed) giveUp(ctx context.Context) {
	for rank := range f.ranks {
		f.publisher.put(ctx, update{rank: rank, events: &events{lost: true}})
	}
}

// ask reads batches from the replay socket, from a number on. An error means
// that the answer may be incomplete.
func (f *feed) ask(ctx context.Context, from uint64) ([]batch, error) {
	if f.replay == "" {
		return nil, errors.New("no replay socket")
	}
	answers, err := fetchReplay(ctx, f.replay, from, f.worker.ReplayTimeout)
	if err != nil && ctx.Err() == nil {
		f.metrics.ReplayErrors.Inc()
		f.log.Debug("replay", "from", from, "err", err)
	}
	return answers, err
}

// begin opens the first life. It returns false when ctx ended first.
//
// The epoch is the wall clock in ms, not the start of the engine's process: an
// agent before this one may have noticed that start only later, and an epoch must
// not fall. Nothing is lost by it, for an agent has to begin with an empty worker
// anyway.
func (f *feed) begin(ctx context.Context) bool {
	f.began = time.Now()
	f.epoch = uint64(f.began.UnixMilli())
	return f.publisher.put(ctx, update{rank: f.rank, epoch: f.epoch})
}

// newLife empties everything under a new epoch. A signal about a process that
// started before the present life was noticed is old news.
func (f *feed) newLife(ctx context.Context, l life, why string) {
	if !l.started.IsZero() && !l.started.After(f.began) {
		return
	}
	f.metrics.Lives.Inc()
	f.log.Info("engine began a new life", "why", why)
	f.began = time.Now()
	f.epoch = max(f.epoch+1, uint64(f.began.UnixMilli()))
	f.seq.restart()
	if f.restarted != nil {
		defer f.restarted()()
	}
	f.publisher.put(ctx, update{rank: f.rank, epoch: f.epoch})
	for rank := range f.ranks {
		if rank != f.rank {
			f.publisher.put(ctx, update{rank: rank, epoch: f.epoch})
		}
	}
	clear(f.ranks)
}

// apply translates a batch and publishes what it says. A live one that cannot be
// read is asked for again.
func (f *feed) apply(ctx context.Context, b batch, live bool) {
	decoded, err := enginewire.Decode(b.payload)
	if err != nil {
		f.metrics.Batches.WithLabelValues("bad").Inc()
		if live && !f.blind {
			b, decoded, err = f.again(ctx, b, err)
		}
	}
	f.seq.applied(b)
	if err != nil {
		f.unreadable(ctx, b, err)
		return
	}
	f.blind = false
	f.metrics.Batches.WithLabelValues("applied").Inc()
	f.translate(ctx, decoded, b.seq)
}

// again asks the replay socket for a batch that could not be read. It returns the
// first error with the batch as it was if that does not help.
func (f *feed) again(ctx context.Context, b batch, fault error) (batch, enginewire.Batch, error) {
	f.metrics.Gaps.Inc()
	answers, _ := f.ask(ctx, f.seq.askFrom()) // what is missing shows below
	for _, a := range answers {
		if a.seq != b.seq {
			continue
		}
		if decoded, err := enginewire.Decode(a.payload); err == nil {
			f.metrics.Batches.WithLabelValues("recovered").Inc()
			return a, decoded, nil
		}
	}
	return b, enginewire.Batch{}, fault
}

// unreadable gives up what was known: a batch that nobody can read may have taken
// blocks away, as one that was lost. An engine of which nothing can be read has
// nothing to give up from its second batch on.
func (f *feed) unreadable(ctx context.Context, b batch, err error) {
	if f.blind {
		return
	}
	f.blind = true
	f.log.Warn("kv events cannot be read: content cleared", "batch", b.seq, "err", err)
	f.metrics.Doubts.Inc()
	f.giveUp(ctx)
}

// translate hands the events of one batch to the publisher.
func (f *feed) translate(ctx context.Context, decoded enginewire.Batch, seq uint64) {
	f.metrics.Events.WithLabelValues("bad").Add(float64(len(decoded.Bad)))
	f.metrics.Events.WithLabelValues("skipped").Add(float64(len(decoded.Skipped)))
	rank := f.rankOf(decoded)
	if !f.ranks[rank] {
		f.ranks[rank] = true
		if rank != f.rank {
			f.publisher.put(ctx, update{rank: rank, epoch: f.epoch})
		}
	}
	for i := range decoded.Events {
		if n := decoded.Events[i].BlockSize; n > 0 && full(&decoded.Events[i]) {
			f.sawBlockSize(n)
			break
		}
	}
	f.publisher.put(ctx, update{rank: rank, events: &events{
		batch: decoded, seq: seq, model: f.model(), groups: f.worker.KVGroups, seen: f.translated,
	}})
}

// translated is told what became of a batch's events, by the publisher's goroutine.
func (f *feed) translated(c *content, n applied) {
	if c.layout.changed {
		c.layout.changed = false
		f.sawGroups(c.layout.hello())
	}
	f.metrics.Events.WithLabelValues("applied").Add(float64(n.events))
	f.metrics.Events.WithLabelValues("unknown_parent").Add(float64(n.orphans))
	f.metrics.Events.WithLabelValues("unknown_block").Add(float64(n.strangers))
}

// full reports whether an event is about a group whose blocks are the worker's.
func full(e *enginewire.Event) bool {
	kind, _ := enginewire.KindOf(e.GroupKind)
	return kind == kvindex.GroupFull
}

// rankOf is the rank that a batch is about: its own word, or the feed's.
func (f *feed) rankOf(b enginewire.Batch) uint16 {
	if b.Rank != nil && *b.Rank >= 0 && *b.Rank < 1<<16 {
		return uint16(*b.Rank)
	}
	return f.rank
}
