package extproc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/extproc/scoring"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// opinion is a scorer that a test writes.
type opinion func(r *scoring.Request, candidates []scoring.Candidate) ([]picker.Adjust, error)

func (o opinion) Score(_ context.Context, r *scoring.Request, candidates []scoring.Candidate) ([]picker.Adjust, error) {
	return o(r, candidates)
}

func scored(t *testing.T, w *world, o opinion, headers ...string) {
	t.Helper()
	set, err := scoring.NewSet([]scoring.Named{{Name: "mine", Scorer: o, Deadline: time.Second, Headers: headers}},
		scoring.NewMetrics(w.registry), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = set.Close(context.Background()) })
	w.server.router.UseScorers(set)
}

// A scorer sees what is known of the request and of the workers that could serve it,
// and none of the prompt; what it says decides.
func TestScorerDecides(t *testing.T) {
	w := newWorld(t, Default(), picker.DefaultConfig())
	prompt := strings.Repeat("once upon a time ", 40)
	body := []byte(`{"model":"base","max_tokens":7,"prompt":"` + prompt + `"}`)
	for i := range 4 {
		w.worker(fmt.Sprint("w", i), hello(fmt.Sprintf("192.0.2.1%d:8000", i)))
	}
	down, other := hello("192.0.2.14:8000"), hello("192.0.2.15:8000")
	down.Ready, other.Served = false, []string{"else"}
	w.worker("w4", down)
	w.worker("w5", other)
	w.warm("w1", "/v1/completions", body)
	var request *scoring.Request
	var seen []scoring.Candidate
	scored(t, w, func(r *scoring.Request, c []scoring.Candidate) ([]picker.Adjust, error) {
		request, seen = r, c
		return []picker.Adjust{{Worker: "w1", Exclude: "no"}, {Worker: "w2", Ms: -1000}}, nil
	}, "X-Team")
	st, got := w.stream("a"), sentOn{}
	in := requestHeadersMessage(false, ":method", "POST", ":path", "/v1/completions", "x-request-id", "r1", "x-team", "blue", "x-secret", "s",
		HeaderSession, "agent-1", HeaderTenant, "acme", HeaderPriority, "-2")
	got.take(w.send(st, in))
	got.take(w.send(st, requestBodyMessage(body, true)))
	if got.headers[HeaderDestination] == "" || !strings.HasPrefix(got.headers[HeaderDestination], "192.0.2.12:8000") {
		t.Errorf("went to %q", got.headers[HeaderDestination])
	}
	facts := fmt.Sprintf("%+v", *request)
	if strings.Contains(facts, "upon") || request.ID != "r1" || request.Model != "base" || request.MaxOutputTokens != 7 || request.PromptTokens < 100 ||
		request.Session != "agent-1" || request.Tenant != "acme" || request.Priority != -2 ||
		fmt.Sprint(request.Headers) != "[{x-team blue}]" {
		t.Errorf("the scorer saw %s", facts)
	}
	var names []kvindex.WorkerID
	for _, c := range seen {
		names = append(names, c.Worker)
		if (c.CachedTokens > 0) != (c.Worker == "w1") || c.CachedTokens >= request.PromptTokens {
			t.Errorf("%s holds %d of %d tokens", c.Worker, c.CachedTokens, request.PromptTokens)
		}
	}
	if fmt.Sprint(names) != "[w0 w1 w2 w3]" {
		t.Errorf("candidates %v", names)
	}
	e, _ := w.server.Plans().Get("r1")
	for _, c := range e.Decision.Plan.Costs {
		if c.Target.Worker == "w1" && c.Excluded != "mine: no" || c.Target.Worker == "w2" && c.Adjust != -1000 {
			t.Errorf("cost %+v", c)
		}
	}
	st.end(w.now)
}

// Nobody is asked about a path without a prompt; a subset narrows the candidates; an
// error is no opinion; ruling out everything is a 503.
func TestScorerLimits(t *testing.T) {
	w := newWorld(t, Default(), picker.DefaultConfig())
	w.worker("w1", hello("192.0.2.10:8000"))
	w.worker("w2", hello("192.0.2.11:8000"))
	asked, all := 0, false
	scored(t, w, func(_ *scoring.Request, c []scoring.Candidate) ([]picker.Adjust, error) {
		asked++
		if !all {
			return nil, errors.New("no idea")
		}
		var out []picker.Adjust
		for i := range c {
			out = append(out, picker.Adjust{Worker: c[i].Worker, Exclude: "never"})
		}
		return out, nil
	})
	if _, r := w.server.router.Route(w.now, Ask{ID: "a", Method: "GET", Path: "/v1/models"}); r != nil || asked != 0 {
		t.Errorf("refused %v, asked %d times", r, asked)
	}
	post := Ask{ID: "b", Method: "POST", Path: "/v1/completions", Body: []byte(`{"model":"base","prompt":"hi"}`)}
	if _, r := w.server.router.Route(w.now, post); r != nil || asked != 1 {
		t.Errorf("refused %v, asked %d times", r, asked)
	}
	all = true
	_, r := w.server.router.Route(w.now, post)
	if r == nil || r.Answer(false).Status != 503 {
		t.Errorf("everything ruled out: %v", r)
	}
	post.Body, post.HasSubset, post.Subset = nil, true, []string{"192.0.2.11:8000"}
	if _, r := w.server.router.Route(w.now, post); r == nil || r.Answer(false).Status != 503 {
		t.Errorf("the subset ruled out: %v", r)
	}
}
