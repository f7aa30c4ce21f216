package verify

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/internal/epp"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/listing"
)

// Options say what to compare.
type Options struct {
	// Pickers are the admin addresses of the replicas, host:port, at least one.
	Pickers []string
	// Wait is how long a block may be wrong.
	Wait time.Duration
	// Probes is how many known prompts an engine is asked for that cannot say all
	// that it holds; 0 for none. Each is a request with one output token.
	Probes int
}

const (
	// pause lies between two looks.
	pause = 250 * time.Millisecond
	// workersAtOnce bounds the memory: each takes three lists of its blocks.
	workersAtOnce = 4
	// askTimeout bounds one question.
	askTimeout = 30 * time.Second
)

type verifier struct {
	opts    Options
	http    *http.Client
	pickers []*epp.Client

	mu   sync.Mutex
	rows []Row
}

// Run compares every worker that any picker knows. It fails only when ctx ends;
// everything else is in the report.
func Run(ctx context.Context, o Options) (Report, error) {
	began := time.Now()
	v := &verifier{opts: o, http: &http.Client{Timeout: askTimeout}}
	for _, p := range o.Pickers {
		v.pickers = append(v.pickers, epp.NewClient(p))
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workersAtOnce)
	workers := v.workers(ctx)
	for _, w := range slices.Sorted(maps.Keys(workers)) {
		g.Go(func() error { return v.worker(gctx, w, workers[w]) })
	}
	if err := g.Wait(); err != nil {
		return Report{}, err
	}
	if err := ctx.Err(); err != nil {
		return Report{}, err
	}
	slices.SortFunc(v.rows, compareRows)
	r := Report{Rows: v.rows, TookMs: float64(time.Since(began).Microseconds()) / 1000}
	r.count()
	return r, nil
}

func compareRows(a, b Row) int {
	return compareFirst(
		slices.Compare([]string{a.Picker, string(a.Worker)}, []string{b.Picker, string(b.Worker)}),
		int(a.Rank)-int(b.Rank), slices.Compare([]string{a.Tier}, []string{b.Tier}),
	)
}

func compareFirst(results ...int) int {
	for _, r := range results {
		if r != 0 {
			return r
		}
	}
	return 0
}

func (v *verifier) add(rows ...Row) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.rows = append(v.rows, rows...)
}

// workers are all that any picker knows or holds blocks of, with the addresses
// of their agents. A picker that does not answer has its row here.
func (v *verifier) workers(ctx context.Context) map[kvindex.WorkerID]epp.WorkerView {
	found := map[kvindex.WorkerID]epp.WorkerView{}
	for i, p := range v.pickers {
		view, err := p.Index(ctx)
		if err != nil {
			v.add(Row{Picker: v.opts.Pickers[i], State: Unreachable, Detail: err.Error()})
			v.pickers[i] = nil
			continue
		}
		for _, o := range view.Owners {
			if _, known := found[o.Worker]; !known {
				found[o.Worker] = epp.WorkerView{Worker: o.Worker}
			}
		}
		for _, w := range view.Workers {
			if found[w.Worker].Admin == "" {
				found[w.Worker] = w
			}
		}
	}
	return found
}

// worker looks at one worker in all pickers until no suspects are left or the
// time is over.
func (v *verifier) worker(ctx context.Context, id kvindex.WorkerID, w epp.WorkerView) error {
	var left []*subject
	for i, p := range v.pickers {
		if p != nil {
			left = append(left, &subject{picker: v.opts.Pickers[i], client: p, worker: id})
		}
	}
	all := slices.Clone(left)
	for {
		v.look(ctx, w.Admin, left)
		left = slices.DeleteFunc(left, func(s *subject) bool { return s.settled(v.opts.Wait) })
		if len(left) == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
	if v.opts.Probes > 0 {
		v.probe(ctx, w, all)
	}
	for _, s := range all {
		v.add(s.rows(v.opts.Wait)...)
	}
	return ctx.Err()
}

// look asks the engine, the pickers and the engine again.
func (v *verifier) look(ctx context.Context, admin string, subjects []*subject) {
	before, err := v.truth(ctx, admin)
	for _, s := range subjects {
		s.looks++
		s.index, s.indexErr = s.dump(ctx)
	}
	var after *listing.Listing
	if err == nil {
		after, err = v.truth(ctx, admin)
	}
	for _, s := range subjects {
		s.judge(before, after, err)
	}
}

var errNoAgent = errors.New("the picker does not know where its agent's page is")

func (v *verifier) truth(ctx context.Context, admin string) (*listing.Listing, error) {
	if admin == "" {
		return nil, errNoAgent
	}
	return v.held(ctx, admin)
}

// subject is one worker in one picker's index.
type subject struct {
	picker string
	client *epp.Client
	worker kvindex.WorkerID
	probe  *Probe

	began    time.Time // the first look
	looks    int
	index    content
	indexErr error
	suspects suspects
	// Of the last look:
	at      time.Time
	last    []look
	sources []listing.Source
	oldest  time.Time // since when a block is wrong
	moving  bool      // the engine worked since the look before
	state   State
	detail  string
}

// dump is what the picker's index says now.
func (s *subject) dump(ctx context.Context) (content, error) {
	body, err := s.client.Dump(ctx, s.worker)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	l, err := listing.Read(body)
	if err != nil {
		return nil, err
	}
	return contentOf(l, s.worker), nil
}

// judge takes in one look; err is why the agent could not be asked.
func (s *subject) judge(before, after *listing.Listing, err error) {
	s.at = time.Now()
	if s.looks == 1 {
		s.began, s.oldest = s.at, s.at
	}
	s.last, s.detail = nil, ""
	if s.indexErr != nil || err != nil {
		s.sources = nil
	}
	switch {
	case s.indexErr != nil:
		s.state, s.detail = Unreachable, s.indexErr.Error()
		return
	case err != nil:
		s.orphaned(err)
		return
	}
	old := s.sources
	s.sources = after.Sources
	s.moving = !slices.Equal(old, after.Sources) || !slices.Equal(before.Sources, after.Sources)
	for _, source := range append(slices.Clone(before.Sources), after.Sources...) {
		if source.Kind == listing.Unknown {
			s.state, s.detail = Unverifiable, source.Problem
			s.last = compare(nil, s.index, nil)
			return
		}
	}
	s.last = compare(contentOf(before, s.worker), s.index, contentOf(after, s.worker))
	s.state = Same
	var differs bool
	if s.oldest, differs = s.suspects.keep(s.last, s.at); differs {
		s.state = Differs
	}
}

// orphaned judges an index whose worker cannot be asked. Where nothing listens
// any more the index must hold nothing; that it does not proves nothing.
func (s *subject) orphaned(err error) {
	s.detail = err.Error()
	s.last = compare(nil, s.index, nil)
	blocks := 0
	for _, l := range s.last {
		blocks += l.index
	}
	switch {
	case blocks == 0:
		s.state = Unverifiable
	case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, errNoAgent):
		s.state = Stale
	default:
		s.state = Unverifiable
	}
}

const (
	// doubtLooks is how often an engine is asked that cannot say all that it holds.
	// Most such answers are final; one that came too late is not.
	doubtLooks = 2
	// longest is how many waits the looks at one worker take at most.
	longest = 3
)

// settled reports whether the verdict stands. An index that follows a working
// engine is a moment behind in every look; it is right if what was wrong in one
// look is right in the next.
func (s *subject) settled(wait time.Duration) bool {
	switch s.state {
	case Same:
		return true
	case Unverifiable:
		return s.looks >= doubtLooks
	case Differs:
		if s.at.Sub(s.oldest) >= wait {
			return true
		}
		if s.looks > 1 && s.moving && s.oldest.Equal(s.at) || s.at.Sub(s.began) >= longest*wait {
			s.state = Same
			return true
		}
		return false
	default:
		return s.at.Sub(s.began) >= wait
	}
}

// rows are the last look's owners, one row at least.
func (s *subject) rows(wait time.Duration) []Row {
	head := Row{Picker: s.picker, Worker: s.worker, State: s.state, Looks: s.looks, Detail: s.detail, Probe: s.probe, Tier: kvindex.Device.String()}
	if len(s.last) == 0 {
		return []Row{head}
	}
	var rows []Row
	for _, l := range s.last {
		r := head
		r.Rank, r.Tier = l.owner.Rank, l.owner.Tier.String()
		r.Index, r.Engine, r.Moving = l.index, l.engine, l.moving
		for _, source := range s.sources {
			if source.Rank == l.owner.Rank {
				r.Source, r.Next, r.Unnamed = source.Kind, source.Next, source.Unnamed
			}
		}
		if s.state == Differs {
			moment := s.at.Add(-wait)
			missing, extra := s.suspects.missing.before(l.owner, moment), s.suspects.extra.before(l.owner, moment)
			r.Missing, r.Extra = len(missing), len(extra)
			r.MissingBlocks, r.ExtraBlocks = sample(missing), sample(extra)
			if r.Missing+r.Extra == 0 {
				r.State = Same
			}
		}
		rows = append(rows, r)
	}
	return rows
}
