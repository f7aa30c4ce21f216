package scoring

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	scorerv1 "github.com/kvlane/kvlane/api/scorer/v1"
	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// function is a scorer in one line.
type function func(ctx context.Context, r *Request, candidates []Candidate) ([]picker.Adjust, error)

func (f function) Score(ctx context.Context, r *Request, candidates []Candidate) ([]picker.Adjust, error) {
	return f(ctx, r, candidates)
}

// patient is a deadline that nothing in a test reaches.
const patient = time.Minute

// setOf is a set with a clock that stands still unless it is moved.
func setOf(t *testing.T, deadline time.Duration, list ...Named) (*Set, *prometheus.Registry, *time.Time) {
	t.Helper()
	now, reg := time.Unix(1000, 0), prometheus.NewRegistry()
	for i := range list {
		if list[i].Deadline == 0 {
			list[i].Deadline = time.Second
		}
	}
	s, err := NewSet(list, NewMetrics(reg), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range s.members {
		m.Deadline = deadline
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s, reg, &now
}

func facts() (*Request, []Candidate) {
	return &Request{
			ID: "r1", Model: "m", PromptTokens: 100, MaxOutputTokens: 10, Session: "s\xff", Tenant: "t", Priority: -3,
			Headers: []Header{{"x-a", "1"}, {"x-b", "2\xff"}},
		}, []Candidate{
			{Worker: "w1", Address: "192.0.2.1:80", CachedTokens: 64, QueueMs: 1.5, Requests: 2, ContextTokens: 3, KVFree: -1},
			{Worker: "w1", Rank: 1, Address: "192.0.2.1:81", Role: kvindex.RolePrefill},
		}
}

func (s *Set) score() []picker.Adjust { return s.Score(facts, nil) }

// outcomes are the counters of a scorer that are not 0.
func outcomes(t *testing.T, reg *prometheus.Registry, scorer string) string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		if f.GetName() != "kvlane_scorer_calls_total" {
			continue
		}
		for _, m := range f.GetMetric() { // labels are sorted by name: outcome, scorer
			if m.GetLabel()[1].GetValue() == scorer && m.GetCounter().GetValue() > 0 {
				out = append(out, fmt.Sprintf("%s=%g", m.GetLabel()[0].GetValue(), m.GetCounter().GetValue()))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestScorersAddUp(t *testing.T) {
	var saw [2]*Request
	s, reg, _ := setOf(t, patient,
		Named{Name: "a", Headers: []string{"X-A"}, Scorer: function(func(_ context.Context, r *Request, c []Candidate) ([]picker.Adjust, error) {
			saw[0] = r
			c[0].Worker = "changed" // its own copy
			return []picker.Adjust{{Worker: "w1", Ms: 5}, {Worker: "w1", Rank: 1, Exclude: "no\xff GPU" + strings.Repeat("!", 200)}}, nil
		})},
		Named{Name: "b", Scorer: function(func(_ context.Context, r *Request, c []Candidate) ([]picker.Adjust, error) {
			saw[1] = r
			return []picker.Adjust{{Worker: c[0].Worker, Ms: -7}}, nil
		})})
	got := s.Score(facts, []picker.Adjust{{Worker: "before"}})
	want := []picker.Adjust{
		{Worker: "before"}, {Worker: "w1", Ms: 5},
		{Worker: "w1", Rank: 1, Exclude: "a: no GPU" + strings.Repeat("!", maxReason-len("no\xff GPU"))}, {Worker: "w1", Ms: -7},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if len(saw[0].Headers) != 1 || saw[0].Headers[0].Name != "x-a" || len(saw[1].Headers) != 0 {
		t.Errorf("headers: %v and %v", saw[0].Headers, saw[1].Headers)
	}
	if !s.Wants("x-a") || s.Wants("x-b") || s.Empty() || !(*Set)(nil).Empty() {
		t.Error("wants")
	}
	if a, b := outcomes(t, reg, "a"), outcomes(t, reg, "b"); a != "ok=1" || b != "ok=1" {
		t.Errorf("counted %q and %q", a, b)
	}
}

// Whatever one scorer does, the choice goes on with what the others say.
func TestScorersAbstain(t *testing.T) {
	many := make([]picker.Adjust, 9)
	for _, c := range []struct {
		outcome string
		score   function
	}{
		{"error", func(context.Context, *Request, []Candidate) ([]picker.Adjust, error) { return nil, errors.New("no") }},
		{"panic", func(context.Context, *Request, []Candidate) ([]picker.Adjust, error) { panic("no") }},
		{"invalid", func(context.Context, *Request, []Candidate) ([]picker.Adjust, error) {
			return []picker.Adjust{{Worker: "w1", Ms: math.NaN()}}, nil
		}},
		{"invalid", func(context.Context, *Request, []Candidate) ([]picker.Adjust, error) {
			return []picker.Adjust{{Worker: "w1", Ms: math.Inf(1)}}, nil
		}},
		{"invalid", func(context.Context, *Request, []Candidate) ([]picker.Adjust, error) { return many, nil }},
	} {
		s, reg, now := setOf(t, patient, Named{Name: "bad", Scorer: c.score},
			Named{Name: "good", Scorer: function(func(context.Context, *Request, []Candidate) ([]picker.Adjust, error) {
				return []picker.Adjust{{Worker: "w1", Ms: 1}}, nil
			})})
		for range 5 {
			if got := s.score(); len(got) != 1 || got[0].Ms != 1 {
				t.Errorf("%s: got %+v", c.outcome, got)
			}
		}
		// After three failures it is not asked any more, and then once.
		if got := outcomes(t, reg, "bad"); got != c.outcome+"=3 open=2" && got != "open=2 "+c.outcome+"=3" {
			t.Errorf("%s: counted %q", c.outcome, got)
		}
		*now = now.Add(firstBreak)
		s.score()
		s.score()
		if got := outcomes(t, reg, "bad"); got != c.outcome+"=4 open=3" && got != "open=3 "+c.outcome+"=4" {
			t.Errorf("%s: counted %q", c.outcome, got)
		}
	}
}

// A scorer that is slow is not waited for, not even one that does not heed its
// context; Close waits for it.
func TestSlowScorer(t *testing.T) {
	release := make(chan struct{})
	var running atomic.Int32
	s, reg, _ := setOf(t, time.Millisecond,
		Named{Name: "stuck", Scorer: function(func(context.Context, *Request, []Candidate) ([]picker.Adjust, error) {
			running.Add(1)
			defer running.Add(-1)
			<-release
			return []picker.Adjust{{Worker: "w1", Ms: 1}}, nil
		})},
		Named{Name: "late", Scorer: function(func(ctx context.Context, _ *Request, _ []Candidate) ([]picker.Adjust, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})})
	for range 4 {
		if got := s.score(); len(got) != 0 {
			t.Errorf("got %+v", got)
		}
	}
	for _, name := range []string{"stuck", "late"} {
		if got := outcomes(t, reg, name); got != "late=3 open=1" {
			t.Errorf("%s: counted %q", name, got)
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Close(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("close with a stuck scorer: %v", err)
	}
	close(release)
	if err := s.Close(context.Background()); err != nil || running.Load() != 0 {
		t.Errorf("close: %v, %d run", err, running.Load())
	}
}

// Calls that never return are not added to without bound.
func TestStuckCallsAreBounded(t *testing.T) {
	release := make(chan struct{})
	s, reg, now := setOf(t, time.Nanosecond, Named{Name: "stuck", Scorer: function(func(context.Context, *Request, []Candidate) ([]picker.Adjust, error) {
		<-release
		return nil, nil
	})})
	for range maxInFlight {
		s.score()
		*now = now.Add(longBreak)
	}
	s.score()
	if got := outcomes(t, reg, "stuck"); got != fmt.Sprintf("busy=1 late=%d", maxInFlight) {
		t.Errorf("counted %q", got)
	}
	close(release)
}

func TestNewSetRefuses(t *testing.T) {
	_, err := NewSet([]Named{
		{Name: "a b", Deadline: time.Millisecond},
		{Name: "a", Deadline: time.Hour, Headers: []string{":path", "ok", "a b"}},
		{Name: "a", Deadline: time.Millisecond},
	}, NewMetrics(nil), time.Now)
	want := `scorers[0].name: "a b" is not 1 to 64 of letters, digits, - and _
scorers[1].deadline: 1h0m0s is not within 100µs to 1s
scorers[1].headers: ":path" is not a header's name
scorers[1].headers: "a b" is not a header's name
scorers[2].name: "a" is given twice`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	err = Validate([]Config{{Name: "a", Deadline: time.Millisecond}, {Name: "a", Address: "x:1"}})
	want = `scorers[0].address: "" is not host:port or unix:/path
scorers[1].deadline: 0s is not within 100µs to 1s
scorers[1].name: "a" is given twice`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// service is a scorer behind gRPC.
type service struct {
	scorerv1.UnimplementedScorerServer

	score func(*scorerv1.ScoreRequest) (*scorerv1.ScoreResponse, error)
}

func (s *service) Score(_ context.Context, r *scorerv1.ScoreRequest) (*scorerv1.ScoreResponse, error) {
	return s.score(r)
}

// serve starts a gRPC server on an address; the returned function ends it.
func serve(t *testing.T, address string, s *service) (stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server, done := grpc.NewServer(), make(chan struct{})
	scorerv1.RegisterScorerServer(server, s)
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	stop = func() {
		server.Stop()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

func TestRemoteScorer(t *testing.T) {
	address := porttest.Address(t)
	var saw *scorerv1.ScoreRequest
	answer := &scorerv1.ScoreResponse{Adjustments: []*scorerv1.Adjustment{{Candidate: 1, Ms: 2.5}, {Candidate: 0, Exclude: "full"}}}
	stop := serve(t, address, &service{score: func(r *scorerv1.ScoreRequest) (*scorerv1.ScoreResponse, error) {
		saw = r
		return answer, nil
	}})
	named, err := Dial(Config{Name: "far", Address: address, Deadline: time.Second, Headers: []string{"x-b"}})
	if err != nil {
		t.Fatal(err)
	}
	s, reg, now := setOf(t, patient, named)
	got := s.score()
	if want := []picker.Adjust{{Worker: "w1", Rank: 1, Ms: 2.5}, {Worker: "w1", Exclude: "far: full"}}; !slices.Equal(got, want) {
		t.Fatalf("got %+v, want %+v (%s)", got, want, outcomes(t, reg, "far"))
	}
	want := &scorerv1.ScoreRequest{
		Id: "r1", Model: "m", PromptTokens: 100, MaxOutputTokens: 10, Session: "s\ufffd", Tenant: "t", Priority: -3,
		Headers: []*scorerv1.Header{{Name: "x-b", Value: "2\ufffd"}},
		Candidates: []*scorerv1.Candidate{
			{Worker: "w1", Address: "192.0.2.1:80", Role: "aggregated", CachedTokens: 64, QueueMs: 1.5, Requests: 2, ContextTokens: 3, KvFreeTokens: -1},
			{Worker: "w1", Rank: 1, Address: "192.0.2.1:81", Role: "prefill"},
		},
	}
	if saw.String() != want.String() {
		t.Errorf("the scorer saw\n%s\nwant\n%s", saw, want)
	}
	answer = &scorerv1.ScoreResponse{Adjustments: []*scorerv1.Adjustment{{Candidate: 2, Ms: 1}}}
	if got := s.score(); len(got) != 0 {
		t.Errorf("a candidate that is not there: %+v", got)
	}
	stop()
	for range 4 {
		if got := s.score(); len(got) != 0 {
			t.Errorf("a dead scorer says %+v", got)
		}
	}
	if got := outcomes(t, reg, "far"); got != "error=2 invalid=1 ok=1 open=2" {
		t.Errorf("counted %q", got)
	}
	// It comes back, and is asked again after the pause.
	answer = &scorerv1.ScoreResponse{Adjustments: []*scorerv1.Adjustment{{Candidate: 0, Ms: 1}}}
	serve(t, address, &service{score: func(*scorerv1.ScoreRequest) (*scorerv1.ScoreResponse, error) { return answer, nil }})
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for deadline := time.After(patient); len(s.score()) == 0; *now = now.Add(longBreak) {
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("not asked again: %s", outcomes(t, reg, "far"))
		}
	}
}
