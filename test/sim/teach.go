package sim

import (
	"fmt"
	"time"

	"github.com/kvlane/kvlane/extproc"
	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
	"github.com/kvlane/kvlane/test/sim/policies"
	"github.com/kvlane/kvlane/workers/teach"
)

// prefixBytes is the memory of a map of learned prefixes: production's default of
// a picker, more than any workload here takes.
const prefixBytes = 256 << 20

// poolSecret is the pool's secret, which agents and pickers share.
const poolSecret = "simulated"

// school is the learning part of an agent: what it published, and the requests
// that may still teach something.
type school struct {
	published *kvindex.PrefixMap
	pupils    map[int]*teach.Pupil // by the request's place in the trace
}

// pupil is what a turn's request can teach.
func (t *TextTurn) pupil(blockSize int) (*teach.Pupil, error) {
	req, err := openai.Parse(openai.APIChat, t.Body)
	if err != nil {
		return nil, fmt.Errorf("read request: %w", err)
	}
	return teach.New(req, poolSecret, space(blockSize)), nil
}

// answer is the engine's, as the agent reads it.
func (t *TextTurn) answer(whole bool) *openai.Answer {
	a := &openai.Answer{PromptTokenIDs: t.Prompt, Started: true}
	if whole {
		finish := "stop"
		if t.Cut {
			finish = "length"
		}
		a.Choices = []openai.Choice{{Text: t.Reply, TokenIDs: t.Answer, Finish: finish, Plain: true}}
		a.Done = true
	}
	return a
}

// teach publishes what the engine's answer says of a request's text, as the agent
// does: the prompt with the first token, the reply at the end.
func (e *engine) teach(c *call, ended bool) {
	if e.fleet.cfg.Texts == nil {
		return
	}
	if e.school == nil {
		e.school = &school{published: kvindex.NewPrefixMap(prefixBytes), pupils: map[int]*teach.Pupil{}}
	}
	t, s := &e.fleet.cfg.Texts[c.Index], e.school
	if ended {
		if p := s.pupils[c.Index]; p != nil {
			e.learned(p.Reply(t.answer(true)))
			delete(s.pupils, c.Index)
		}
		return
	}
	p, err := t.pupil(e.fleet.cfg.Trace.BlockSize)
	if err != nil {
		e.fleet.failed = err
		return
	}
	s.pupils[c.Index] = p
	for _, d := range p.Prompts(t.answer(false)) {
		e.learned(d)
	}
}

// learned publishes a lesson that says something new.
func (e *engine) learned(d *kvindex.Learned) {
	if d == nil || teach.Empty(d) || teach.Known(e.school.published, d) {
		return
	}
	e.school.published.Learn(d)
	e.seq++
	r := kvindex.Record{Owner: e.owner, Epoch: e.epoch, Term: 1, Seq: e.seq, Kind: kvindex.KindLearned, Learned: d}
	e.fleet.send(e, []kvindex.Record{r}, e.fleet.cfg.EventLag, true)
}

// reading is the production picker as the gateway uses it: it sees bodies and
// what it learned of texts, no tokens.
type reading struct {
	*ours
	router   *extproc.Router
	index    *kvindex.Index
	prefixes *kvindex.PrefixMap
	texts    []TextTurn
}

// Reading is the policy for requests that are texts: the router of the ext_proc
// edge in place of exact blocks.
func Reading(texts []TextTurn) func(Setup) policies.Policy {
	return func(s Setup) policies.Policy {
		r := &reading{
			ours: newOurs(s, picker.DefaultConfig()), index: kvindex.NewIndex(), prefixes: kvindex.NewPrefixMap(prefixBytes), texts: texts,
		}
		r.router = extproc.NewRouter(r.index, r.prefixes, r.pool, poolSecret)
		return r
	}
}

// Pick implements [policies.Policy].
func (r *reading) Pick(q *policies.Request, _ policies.Fleet) int {
	d, refusal := r.router.Route(at(q.Now), extproc.Ask{ID: q.ID, Method: "POST", Path: "/v1/chat/completions", Body: r.texts[q.Index].Body})
	if refusal != nil {
		return -1
	}
	r.plan, r.prefiller = d.Plan, -1
	return r.places[kvindex.Owner{Worker: d.Plan.Decode.Worker, Rank: d.Plan.Decode.Rank}]
}

// Apply follows the log, as the picker's process does.
func (r *reading) Apply(rec *kvindex.Record, now time.Duration) {
	if rec.Kind == kvindex.KindLearned {
		r.prefixes.Learn(rec.Learned)
	}
	if rec.Kind.Sequenced() || rec.Kind == kvindex.KindBye {
		// The simulation's own index met the same record and reports what is wrong.
		_ = r.index.Apply(rec)
	}
	r.ours.Apply(rec, now)
}
