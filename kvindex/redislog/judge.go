package redislog

import (
	"fmt"

	"github.com/kvlane/kvlane/kvindex"
)

// plan is what becomes of records by the state that the writer knows.
type plan struct {
	accepted []*kvindex.Record
	owners   map[kvindex.Owner]ownerState // changed ones
	repeats  int
	judged   int   // accepted or repeats
	fault    error // of the record behind them
	bytes    int
	content  bool // what an owner holds is changed
	bye      bool
}

// judge decides what is written, up to the first faulty record.
func (w *writer) judge(records []kvindex.Record) *plan {
	p := &plan{owners: map[kvindex.Owner]ownerState{}}
	for i := range records {
		r := &records[i]
		if p.bytes > maxRunBytes {
			break
		}
		fresh, err := w.one(p, r)
		if err != nil {
			p.fault = err
			break
		}
		p.judged++
		if !fresh {
			p.repeats++
			continue
		}
		p.accepted = append(p.accepted, r)
		p.bytes += recordBytes(r)
		p.bye = r.Kind == kvindex.KindBye
	}
	return p
}

// changes reports whether a record that follows changes what an owner holds. A
// Removed without blocks only asks whether the log still knows the owner.
func changes(r *kvindex.Record) bool {
	switch r.Kind {
	case kvindex.KindStored, kvindex.KindCleared:
		return true
	case kvindex.KindRemoved:
		return len(r.Removed.Hashes) > 0
	default:
		return false
	}
}

// one judges a record and reports whether it says anything new.
func (w *writer) one(p *plan, r *kvindex.Record) (bool, error) {
	if r.Owner.Worker == "" {
		return false, nameless(r)
	}
	if recordBytes(r) > maxRecordBytes {
		return false, fmt.Errorf("%s of owner %s: %w", r.Kind, r.Owner, ErrTooLarge)
	}
	state, there := p.owners[r.Owner]
	if !there {
		state, there = w.owners[r.Owner]
	}
	if there && r.Term < state.term {
		return false, fenced(r)
	}
	next := state.cursor
	step, err := next.Advance(r)
	switch {
	case err != nil:
		return false, err
	case r.Kind == kvindex.KindBye:
		return true, w.bye(p, r)
	case r.Kind.Sequenced() && r.Seq == 0: // only a log's own snapshot has these
		return false, &kvindex.GapError{Owner: r.Owner, Want: state.cursor.Seq + 1}
	case r.Kind.Sequenced() && step == kvindex.StepIgnore:
		return false, nil
	}
	p.content = p.content || step == kvindex.StepReset || changes(r)
	p.owners[r.Owner] = ownerState{cursor: next, term: r.Term}
	return true, nil
}

func (w *writer) bye(p *plan, r *kvindex.Record) error {
	for o, s := range w.owners {
		if n, ok := p.owners[o]; ok {
			s = n
		}
		if s.term > r.Term {
			return fenced(r)
		}
	}
	for _, s := range p.owners {
		if s.term > r.Term {
			return fenced(r)
		}
	}
	return nil
}

func fenced(r *kvindex.Record) error {
	return fmt.Errorf("%s of owner %s, term %d: %w", r.Kind, r.Owner, r.Term, kvindex.ErrFenced)
}

func nameless(r *kvindex.Record) error {
	return fmt.Errorf("%s without a worker: %w", r.Kind, kvindex.ErrMalformed)
}

// gauges is a Load for late readers. The samples were for those who were there;
// Accepted says which bookings the figures include.
func gauges(r *kvindex.Record) *kvindex.Record {
	load := *r.Load
	load.FirstToken, load.Done, load.Failed = nil, nil, nil
	short := *r
	short.Load = &load
	return &short
}

// recordBytes is at least the length of a record's encoding.
func recordBytes(r *kvindex.Record) int {
	n := 128 + len(r.Owner.Worker) + len(r.Rest)
	switch {
	case r.Stored != nil:
		n += 8 * len(r.Stored.Hashes)
	case r.Removed != nil:
		n += 8 * len(r.Removed.Hashes)
	case r.Learned != nil:
		n += 8 * (len(r.Learned.Chunks) + len(r.Learned.Blocks))
	case r.Hello != nil:
		n += 64 + len(r.Hello.Address) + len(r.Hello.Model) + len(r.Hello.Deployment) +
			stringBytes(r.Hello.Served) + stringBytes(r.Hello.Adapters)
	case r.Load != nil:
		n += 64 + stringBytes(r.Load.Accepted) + sampleBytes(r.Load.FirstToken) + sampleBytes(r.Load.Done) + stringBytes(r.Load.Failed)
	}
	return n
}

func stringBytes(list []string) int {
	n := 4 * len(list)
	for _, s := range list {
		n += len(s)
	}
	return n
}

func sampleBytes(list []kvindex.Sample) int {
	n := 48 * len(list)
	for i := range list {
		n += len(list[i].Booking)
	}
	return n
}
