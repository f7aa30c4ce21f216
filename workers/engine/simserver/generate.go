package simserver

import (
	"context"
	"net/http"
	"strings"

	"github.com/kvlane/kvlane/workers/engine/sim"
)

func (s *Server) chat(w http.ResponseWriter, r *http.Request) error {
	j, err := s.chatJob(w, r)
	if err != nil {
		return err
	}
	return s.generate(w, r, j)
}

func (s *Server) complete(w http.ResponseWriter, r *http.Request) error {
	j, err := s.completionJob(w, r)
	if err != nil {
		return err
	}
	return s.generate(w, r, j)
}

// generate runs a job from start to answer. However it ends, its sequences are
// gone from the engine afterwards.
func (s *Server) generate(w http.ResponseWriter, r *http.Request, j *job) error {
	ctx := r.Context()
	remote, err := s.pull(ctx, j)
	if err != nil {
		return err
	}
	run := newRun(s, j, remote)
	if err := s.engine.submit(ctx, &run.submission); err != nil {
		return err
	}
	// Without the request's context: this must happen when it has ended, too.
	defer run.end(context.WithoutCancel(ctx))
	if j.Stream {
		return run.stream(ctx, w)
	}
	return run.unary(ctx, w)
}

// run is a job in the engine.
type run struct {
	submission
	s       *Server
	job     *job
	choices []output
	open    int // choices without an end
}

// newRun prepares the sequences. remote is the number of prompt tokens that
// came from a prefill engine.
func newRun(s *Server, j *job, remote int) *run {
	n := j.choices()
	run := &run{
		s: s, job: j, choices: make([]output, n), open: n,
		submission: submission{requests: j.sequences(), sink: newSink()},
	}
	for i := range run.requests {
		run.requests[i].RemoteTokens = remote
		run.choices[i].stops = newStops(j)
	}
	if j.Transfer != nil && j.Transfer.RemoteDecode && n == 1 {
		p := j.prompts[0]
		run.requests[0].HoldKV = true
		run.holds = []*hold{{promptHash: promptHash(p, j.lora, j.salt), tokens: len(p)}}
	}
	return run
}

// end takes what is left of the run out of the engine: sequences that a stop
// string ended early, and all of them when the client went away.
func (run *run) end(ctx context.Context) {
	if run.open > 0 {
		run.abort(ctx, run.requests)
	}
}

// abort ends sequences early. The engine answers at once; one that has stopped
// has nothing to abort.
func (run *run) abort(ctx context.Context, requests []sim.Request) {
	_ = run.s.engine.do(ctx, func() { run.s.engine.abort(requests) })
}

// take waits for tokens and adds them to their choices. It returns the items,
// which are valid until the next call.
func (run *run) take(ctx context.Context, used []item) ([]item, error) {
	items, err := run.sink.take(ctx, used)
	if err != nil {
		return nil, err
	}
	for _, it := range items {
		if it.err != nil {
			return nil, it.err
		}
		c := &run.choices[it.choice]
		if c.finish != sim.Running {
			continue
		}
		c.add(it.token, run.s.tok.Text(it.token.Token))
		if c.finish == sim.Running {
			continue
		}
		run.open--
		if it.token.Finish == sim.Running {
			// A stop string: the engine does not know of it.
			run.abort(context.WithoutCancel(ctx), run.requests[it.choice:it.choice+1])
		}
	}
	return items, nil
}

// usage are the token counts of the whole answer.
func (run *run) usage() usage {
	var u usage
	for _, p := range run.job.prompts {
		u.PromptTokens += len(p)
	}
	for i := range run.choices {
		u.CompletionTokens += len(run.choices[i].tokens)
		if i%run.job.n == 0 {
			u.Details.CachedTokens += run.choices[i].cached
		}
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// usage is vLLM's, in its order of members.
type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	TotalTokens      int `json:"total_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	Details          struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// output is one choice as far as it is generated.
type output struct {
	stops  *stops
	tokens []uint32
	text   []byte
	cached int
	finish sim.Reason
	// stopString ended the text; empty for another end.
	stopString string
	// sentText and sentTokens have been streamed.
	sentText, sentTokens int
}

// add appends a token and looks for a stop string.
func (o *output) add(t sim.Token, text string) {
	if t.Index == 0 {
		o.cached = t.CachedTokens
	}
	before := len(o.text)
	o.tokens = append(o.tokens, t.Token)
	o.text = append(o.text, text...)
	o.finish = t.Finish
	if o.stops == nil || len(o.tokens) < o.stops.minTokens {
		return
	}
	if s, end, ok := o.stops.find(o.text, before); ok {
		o.text = o.text[:end]
		o.finish, o.stopString = sim.Stop, s
	}
}

// fresh is the text that may be streamed now: all but what could turn out to
// be the start of a stop string.
func (o *output) fresh() []byte {
	end := len(o.text)
	if o.stops != nil && o.finish == sim.Running {
		end = max(o.sentText, end-o.stops.hold)
	}
	return o.text[o.sentText:end]
}

// stops are a request's stop strings.
type stops struct {
	list      []string
	include   bool
	minTokens int
	hold      int // one less than the longest: so many bytes may begin one
}

// newStops is nil where there are none.
func newStops(j *job) *stops {
	if len(j.Stop) == 0 {
		return nil
	}
	s := &stops{list: j.Stop, include: j.IncludeStop, minTokens: j.MinTokens}
	for _, w := range j.Stop {
		s.hold = max(s.hold, len(w)-1)
	}
	return s
}

// find looks for the first stop string that ends after before, and returns
// where the text is to be cut.
func (s *stops) find(text []byte, before int) (which string, end int, ok bool) {
	from := max(0, before-s.hold)
	tail := string(text[from:])
	at := -1
	for _, w := range s.list {
		if i := strings.Index(tail, w); i >= 0 && (at < 0 || i < at) {
			at, which = i, w
		}
	}
	if at < 0 {
		return "", 0, false
	}
	end = from + at
	if s.include {
		end += len(which)
	}
	return which, end, true
}
