package sim

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/kvlane/kvlane/internal/benchfile"
	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/test/sim/policies"
	"github.com/kvlane/kvlane/workers/teach"
)

// Foresight is how well learned prefixes predict what an engine has cached, in
// tokens over a workload.
type Foresight struct {
	Prompts int `json:"prompts"`
	Tokens  int `json:"tokens"` // of all prompts
	// Exact is what exact tokenization predicts, Over what learned prefixes claim
	// beyond it and Under what they miss of it.
	Exact int `json:"exact"`
	Over  int `json:"over"`
	Under int `json:"under"`
}

// Points is a number of tokens in percent of the prompts.
func (f *Foresight) Points(tokens int) float64 {
	return 100 * float64(tokens) / float64(max(1, f.Tokens))
}

// Add sums two workloads up.
func (f *Foresight) Add(o Foresight) {
	f.Prompts += o.Prompts
	f.Tokens += o.Tokens
	f.Exact += o.Exact
	f.Over += o.Over
	f.Under += o.Under
}

// Foresee sends a workload's requests past one worker that keeps everything, on
// the path of production: body, canonical text, learned prefixes, index. Prompts
// are learned and cached half a second after they come, replies 30 ms a token
// later.
func Foresee(trace *Trace, turns []TextTurn) (Foresight, error) {
	w := foresight{trace: trace, turns: turns, index: kvindex.NewIndex(), prefixes: kvindex.NewPrefixMap(prefixBytes)}
	type step struct {
		at time.Duration
		do func() error
	}
	var steps []step
	for i := range turns {
		come := trace.Entries[i].At
		first := come + 500*time.Millisecond
		steps = append(steps, step{come, func() error { return w.predict(i) }}, step{first, func() error { return w.prompt(i) }},
			step{first + time.Duration(len(turns[i].Answer))*30*time.Millisecond, func() error { return w.reply(i) }})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
	w.pupils = make([]*teach.Pupil, len(turns))
	for _, s := range steps {
		if err := s.do(); err != nil {
			return w.sum, err
		}
	}
	return w.sum, nil
}

// foresight is a run of [Foresee].
type foresight struct {
	trace    *Trace
	turns    []TextTurn
	index    *kvindex.Index
	prefixes *kvindex.PrefixMap
	pupils   []*teach.Pupil
	seq      uint64
	sum      Foresight
	chain    []kvindex.BlockHash
	matches  []kvindex.Match
}

func (w *foresight) depth(chain []kvindex.BlockHash) int {
	w.matches = w.index.Overlap(chain, w.matches[:0])
	if len(w.matches) == 0 {
		return 0
	}
	return int(w.matches[0].Depth[kvindex.Device])
}

// predict compares both predictions for the i-th request.
func (w *foresight) predict(i int) error {
	req, err := openai.Parse(openai.APIChat, w.turns[i].Body)
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	h := req.Hashers(req.Seed(poolSecret, model, ""))[0]
	known := w.prefixes.Lookup(h.Chunks(), w.chain)
	w.chain = known.Blocks
	truth := w.trace.Entries[i].Blocks
	right := 0
	for right < min(len(known.Blocks), len(truth)) && known.Blocks[right] == truth[right] {
		right++
	}
	exact, learned := w.depth(truth), w.depth(known.Blocks)
	right = min(right, learned, exact)
	w.sum.Prompts++
	w.sum.Tokens += len(w.turns[i].Prompt)
	w.sum.Exact += exact * w.trace.BlockSize
	w.sum.Over += (learned - right) * w.trace.BlockSize
	w.sum.Under += (exact - right) * w.trace.BlockSize
	return nil
}

func (w *foresight) prompt(i int) error {
	p, err := w.turns[i].pupil(w.trace.BlockSize)
	if err != nil {
		return err
	}
	w.pupils[i] = p
	for _, d := range p.Prompts(w.turns[i].answer(false)) {
		w.prefixes.Learn(d)
	}
	return w.store(space(w.trace.BlockSize).Root(), w.trace.Entries[i].Blocks)
}

func (w *foresight) reply(i int) error {
	if d := w.pupils[i].Reply(w.turns[i].answer(true)); d != nil {
		w.prefixes.Learn(d)
	}
	w.pupils[i] = nil
	e := &w.trace.Entries[i]
	parent := space(w.trace.BlockSize).Root()
	if n := len(e.Blocks); n > 0 {
		parent = e.Blocks[n-1]
	}
	return w.store(parent, e.Answer)
}

func (w *foresight) store(parent kvindex.BlockHash, blocks []kvindex.BlockHash) error {
	if len(blocks) == 0 {
		return nil
	}
	w.seq++
	err := w.index.Apply(&kvindex.Record{
		Owner: seat(0, 1), Epoch: 1, Term: 1, Seq: w.seq, Kind: kvindex.KindStored, Stored: &kvindex.Stored{Parent: parent, Hashes: blocks},
	})
	if err != nil {
		return fmt.Errorf("index: %w", err)
	}
	return nil
}

// PrefixSeeds is how many workloads the benchmark compares.
const PrefixSeeds = 10

// Prefixes is the comparison of learned prefixes with exact tokenization.
type Prefixes struct {
	Foresight Foresight `json:"foresight"`
	// Learned and Exact are the fleet's results, means over the seeds.
	Learned *Result `json:"learned"`
	Exact   *Result `json:"exact"`
	Seeds   int     `json:"seeds"`
}

// TextFleet is the fleet that routes texts: four workers that compute for three
// quarters of the time and whose caches of 60,000 tokens hold half of the system
// prompts, so that a request sent to the wrong one costs time.
func TextFleet(trace Trace, turns []TextTurn) (Config, error) {
	d, err := timing.Known().Find(timing.DefaultDeployment)
	if err != nil {
		return Config{}, err
	}
	c := DefaultConfig(Of(d), 60_000/trace.BlockSize)
	c.Trace, c.Texts, c.Workers, c.DynamoEngine = trace, turns, 4, false
	return c, nil
}

// ComparePrefixes plays a text workload of as many seeds under the production
// picker with learned prefixes and with exact ones.
func ComparePrefixes(ctx context.Context, plan TextPlan, seeds int) (*Prefixes, error) {
	if seeds < 1 {
		return nil, fmt.Errorf("%d workloads: want at least 1", seeds)
	}
	exact, err := Find(Ours)
	if err != nil {
		return nil, err
	}
	sums := make([]Foresight, seeds)
	learned, told := make([]*Result, seeds), make([]*Result, seeds)
	tasks := make([]func(context.Context) error, seeds)
	for i := range tasks {
		tasks[i] = func(ctx context.Context) error {
			trace, turns, err := plan.Make(uint64(i + 1))
			if err != nil {
				return err
			}
			if sums[i], err = Foresee(&trace, turns); err != nil {
				return err
			}
			play := func(policy func(Setup) policies.Policy) (*Result, error) {
				cfg, err := TextFleet(trace, turns)
				if err != nil {
					return nil, err
				}
				cfg.Seed, cfg.Policy = uint64(i+1), policy
				return Run(ctx, cfg)
			}
			if learned[i], err = play(Reading(turns)); err != nil {
				return err
			}
			told[i], err = play(exact.New)
			return err
		}
	}
	if err := sideBySide(ctx, tasks); err != nil {
		return nil, err
	}
	p := &Prefixes{Learned: average(learned), Exact: average(told), Seeds: seeds}
	for _, s := range sums {
		p.Foresight.Add(s)
	}
	return p, nil
}

// Print writes the comparison for people.
func (p *Prefixes) Print(w io.Writer) error {
	f := &p.Foresight
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	// Flush reports what goes wrong.
	_, _ = fmt.Fprintf(t, "texts: %d prompts of %d tokens, %.2f %% cached; learned prefixes miss %.3f points and claim %.4f too much\n",
		f.Prompts, f.Tokens/max(1, f.Prompts), f.Points(f.Exact), f.Points(f.Under), f.Points(f.Over))
	_, _ = fmt.Fprintln(t, "prefixes\thit %\tTTFT mean\tp99\tTPOT\tin SLO %\tbusy %")
	for _, row := range []struct {
		name string
		r    *Result
	}{{"learned", p.Learned}, {"exact", p.Exact}} {
		r := row.r
		_, _ = fmt.Fprintf(t, "%s\t%.2f\t%.1f\t%.0f\t%.1f\t%.1f\t%.0f\n",
			row.name, 100*r.HitRate, r.TTFT.Mean, r.TTFT.P99, r.TPOT.Mean, 100*r.Goodput, 100*r.Busy)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print prefixes: %w", err)
	}
	return nil
}

// AddPrefixes writes the goals: within a point of exact tokenization, over by at
// most a tenth, and routing as good to within 1 %.
func AddPrefixes(f *benchfile.File, p *Prefixes) {
	name := fmt.Sprintf("learned prefixes, %d texts of %d tokens, %.1f %% cached", p.Foresight.Prompts,
		p.Foresight.Tokens/max(1, p.Foresight.Prompts), p.Foresight.Points(p.Foresight.Exact))
	f.Bound(name, "predicted too little", "points", "lower", p.Foresight.Points(p.Foresight.Under), 1)
	f.Bound(name, "predicted too much", "points", "lower", p.Foresight.Points(p.Foresight.Over), 0.1)
	name = fmt.Sprintf("fleet with learned prefixes, %d seeds", p.Seeds)
	const peer = "exact tokenization"
	f.Compare(name, "hit rate", "share", "higher", p.Learned.HitRate, peer, p.Exact.HitRate, 0.99)
	f.Compare(name, "TTFT mean", "ms", "lower", p.Learned.TTFT.Mean, peer, p.Exact.TTFT.Mean, 1.01)
}
