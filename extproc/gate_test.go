package extproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// gated is a server with flow control and one worker that takes one request at a
// time, behind a real gRPC connection, on the test's own clock.
type gated struct {
	*bench
	cancel  context.CancelFunc
	stopped chan error
	answers chan string // "ID status" of each request, in order
	// unseen says that answers do not pass the server.
	unseen bool
}

func newGated(t *testing.T, change func(*Config, *picker.Config)) *gated {
	cfg, pc := Default(), picker.DefaultConfig()
	cfg.Flow.Enabled, pc.MaxRequests = true, 1
	if change != nil {
		change(&cfg, &pc)
	}
	g := &gated{bench: newBenchWith(t, cfg, pc, "192.0.2.10:8000"), stopped: make(chan error, 1), answers: make(chan string, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	go func() { g.stopped <- g.server.Run(ctx) }()
	return g
}

// end ends all, and checks that nothing is left.
func (g *gated) end() {
	g.t.Helper()
	g.settle()
	g.cancel()
	if err := <-g.stopped; err != nil {
		g.t.Error(err)
	}
	if n := g.server.gate.queue.Len() + len(g.server.gate.tickets); n != 0 {
		g.t.Errorf("%d are left in the gate", n)
	}
}

// request is one that is under way.
type request struct {
	g      *gated
	id     string
	grpc   extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
	answer chan string // the one answer, as in gated.answers
	ended  chan struct{}
}

// ask sends a whole request. Its answer is told to g.answers.
func (g *gated) ask(id string, size int, headers ...string) *request {
	g.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	st, err := g.client.Process(ctx)
	if err != nil {
		g.t.Fatal(err)
	}
	in := post("/v1/completions", append([]string{HeaderRequestID, id}, headers...)...)
	in.ProtocolConfig = &extprocv3.ProtocolConfiguration{
		RequestBodyMode: extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
	}
	if g.unseen {
		in.ProtocolConfig.ResponseBodyMode = extprocfilterv3.ProcessingMode_NONE
	}
	for _, m := range []*extprocv3.ProcessingRequest{in, requestBodyMessage(fill(size), true)} {
		if err := st.Send(m); err != nil {
			g.t.Fatal(err)
		}
	}
	r := &request{g: g, id: id, grpc: st, cancel: cancel, answer: make(chan string, 2), ended: make(chan struct{})}
	go r.wait(size)
	return r
}

// wait reports the answer and reads on to the stream's end.
func (r *request) wait(size int) {
	defer close(r.ended)
	body := 0
	for {
		a, err := r.grpc.Recv()
		if err != nil {
			return
		}
		switch v := a.GetResponse().(type) {
		case *extprocv3.ProcessingResponse_RequestHeaders:
			r.tell("routed")
		case *extprocv3.ProcessingResponse_RequestBody:
			piece := v.RequestBody.GetResponse().GetBodyMutation().GetStreamedResponse()
			if body += len(piece.GetBody()); piece.GetEndOfStream() && body != size {
				r.g.t.Errorf("%s: %d bytes of %d came back", r.id, body, size)
			}
		case *extprocv3.ProcessingResponse_ImmediateResponse:
			r.tell(fmt.Sprintf("%d %s", v.ImmediateResponse.GetStatus().GetCode(), v.ImmediateResponse.GetDetails()))
		}
	}
}

func (r *request) tell(answer string) {
	r.answer <- answer
	r.g.answers <- r.id + " " + answer
}

// done ends a routed request as a worker does that has answered it.
func (r *request) done() {
	if err := r.grpc.Send(responseHeadersMessage(true)); err != nil && !errors.Is(err, io.EOF) {
		r.g.t.Error(err)
	}
	_ = r.grpc.CloseSend()
	<-r.ended
	r.cancel()
}

// abort is a client that leaves.
func (r *request) abort() {
	r.cancel()
	<-r.ended
}

// want checks the next answers, in this order, and that there are no others.
func (g *gated) want(answers ...string) {
	g.t.Helper()
	synctest.Wait()
	var got []string
	for {
		select {
		case a := <-g.answers:
			got = append(got, a)
			continue
		default:
		}
		break
	}
	if fmt.Sprint(got) != fmt.Sprint(answers) {
		g.t.Errorf("answers %q, want %q", got, answers)
	}
}

// TestGateOrder: two tenants ask for more than there is. They take turns, the
// higher band comes first, and a client that leaves while it waits is gone at once.
func TestGateOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated(t, func(c *Config, _ *picker.Config) { c.MaxPriority = 1 })
		first := g.ask("first", 100)
		g.want("first routed")
		open := map[string]*request{"first": first}
		for i := range 4 { // the one floods, the other asks twice
			id := fmt.Sprint("flood", i)
			open[id] = g.ask(id, 40_000, HeaderTenant, "flood")
			synctest.Wait()
		}
		for i := range 2 {
			id := fmt.Sprint("other", i)
			open[id] = g.ask(id, 40_000, "x-llm-d-inference-fairness-id", "other")
			synctest.Wait()
		}
		open["high"] = g.ask("high", 300_000, HeaderPriority, "1")
		g.want()
		if got := g.metrics()["flow_waiting_requests{0}"]; got != 6 {
			t.Errorf("%v wait in band 0", got)
		}
		open["flood1"].abort()
		open["flood1"] = nil
		synctest.Wait()
		if got := g.metrics(); got["flow_waiting_requests{0}"] != 5 || got["buffered_body_bytes"] < 5*40_000 {
			t.Errorf("after one left: %v", got)
		}
		ended := "first"
		for _, next := range []string{"high", "flood0", "other0", "flood2", "other1", "flood3"} {
			open[ended].done()
			g.want(next + " routed")
			ended = next
		}
		open[ended].done()
		g.end()
	})
}

// TestGateTime: a request that waits too long is refused then, one whose target
// cannot be met any more at that moment, and what has booked is closed.
func TestGateTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated(t, func(c *Config, _ *picker.Config) { c.Flow.Queue.TTL = 10 * time.Second })
		first := g.ask("first", 100)
		g.want("first routed")
		patient, targeted := g.ask("patient", 1000), g.ask("targeted", 1000, HeaderSLOTTFT, "3000")
		began := time.Now()
		synctest.Wait()
		<-targeted.ended
		if d := time.Since(began); d < 2500*time.Millisecond || d > 3*time.Second {
			t.Errorf("its target of 3 s was given up after %v", d)
		}
		<-patient.ended
		if d := time.Since(began); d != 10*time.Second {
			t.Errorf("the patient one was refused after %v", d)
		}
		g.want("targeted 429 kvlane_slo_hopeless", "patient 429 kvlane_queue_ttl")
		first.done()
		g.end()
	})
}

// TestGateStop: at a stop those that wait are served while there is room, and
// refused when the time is over.
func TestGateStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated(t, nil)
		first := g.ask("first", 100)
		g.want("first routed")
		second := g.ask("second", 1000)
		g.want()
		third := g.ask("third", 1000)
		g.want()
		g.server.Stop()
		began := time.Now()
		first.done()
		g.want("second routed")
		<-third.ended
		if d := time.Since(began); d != 2*time.Second {
			t.Errorf("refused after %v", d)
		}
		g.want("third 503 kvlane_stopping")
		fourth := g.ask("fourth", 1000)
		<-fourth.ended
		g.want("fourth 503 kvlane_stopping")
		second.done()
		g.end()
	})
}

// TestGateStopUnseen: the streams of those that were sent on end at a stop, but that is
// no room for who waits.
func TestGateStopUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated(t, nil)
		g.unseen = true
		first := g.ask("first", 100)
		g.want("first routed")
		second := g.ask("second", 1000)
		g.want()
		g.server.Stop()
		<-first.ended
		g.want()
		<-second.ended
		g.want("second 503 kvlane_stopping")
		g.left = 1
		g.end()
	})
}

// TestGateReports: a worker that reports to be free makes room, although no
// request of ours has ended.
func TestGateReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated(t, func(_ *Config, pc *picker.Config) { pc.MaxRequests = 2 })
		g.load("w1", 2)
		second := g.ask("second", 1000)
		g.want()
		g.load("w1", 1)
		g.server.Reported()
		g.want()
		<-time.After(soon) // on the test's clock: reports are looked at together
		g.want("second routed")
		second.done()
		g.end()
	})
}

// TestGateTargets: with a target in its headers a request is refused at once if the
// worker's queue makes it miss, and sent on if it would miss without that, too.
func TestGateTargets(t *testing.T) {
	cfg, pc := Default(), picker.DefaultConfig()
	cfg.Flow.Enabled = true
	w := newWorld(t, cfg, pc)
	w.worker("w1", hello("192.0.2.10:8000"))
	ask := func(id string, size int, target string) responses {
		st := w.stream(id)
		w.send(st, post("/v1/completions", HeaderRequestID, id, HeaderSLOTTFT, target))
		return w.send(st, requestBodyMessage(fill(size), true))
	}
	cause := func(out responses) string { return out[0].GetImmediateResponse().GetDetails() }
	if out := ask("long", 400_000, "100"); cause(out) != "" { // seconds of prefill
		t.Errorf("a target that no worker meets: %s", cause(out))
	}
	if out := ask("short", 1000, "500"); cause(out) != "kvlane_slo_hopeless" {
		t.Errorf("behind a long prompt: %q", cause(out))
	}
	if out := ask("patient", 1000, "500000"); cause(out) != "" {
		t.Errorf("with time to wait: %s", cause(out))
	}
	if n := w.pool.Stats(w.now).Bookings; n != 2 {
		t.Errorf("%d bookings, want those of the two that were sent on", n)
	}
}

// TestGatePanics: a fault in our own code refuses the request that met it, and no
// other one.
func TestGatePanics(t *testing.T) {
	cfg, pc := Default(), picker.DefaultConfig()
	cfg.Flow.Enabled, pc.MaxRequests = true, 1
	w := newWorld(t, cfg, pc)
	w.worker("w1", hello("192.0.2.10:8000"))
	tokens := []byte(`{"model":"base","prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}`)
	send := func(id string, body []byte) {
		w.send(w.stream(id), post("/v1/completions", HeaderRequestID, id))
		w.send(w.stream(id), requestBodyMessage(body, true))
	}
	send("a", fill(100))
	send("b", tokens)
	send("c", fill(100))
	w.stream("a").end(w.now)
	delete(w.streams, "a")
	w.server.router.index = nil
	w.now = w.now.Add(time.Second) // b is read anew
	w.server.gate.look(w.now)
	w.settle()
	if got := w.metrics(); got["faults_total{panic}"] != 1 || got["flow_left_total{internal}"] != 1 || got["requests_total{internal}"] != 1 ||
		got["flow_left_total{released}"] != 1 {
		t.Errorf("metrics: %v", got)
	}
}

// TestGateHistory: many clients at once, of several tenants and bands, that wait,
// leave, or are answered as it comes: each has one answer, and nothing is left of
// any.
func TestGateHistory(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		g := newGated(t, func(c *Config, pc *picker.Config) {
			pc.MaxRequests = 2
			c.MaxPriority, c.Flow.Queue.MaxRequests, c.Flow.Queue.TTL = 2, 12, 300*time.Millisecond
		})
		var clients sync.WaitGroup
		var routed, shed, left atomic.Int64
		for c := range 12 {
			rng := rand.New(rand.NewPCG(seed, uint64(c)))
			clients.Go(func() {
				for i := range 25 {
					pause := func(most int) <-chan time.Time {
						return time.After(time.Duration(rng.IntN(most*1000)) * time.Microsecond)
					}
					r := g.ask(fmt.Sprintf("c%d-%d", c, i), 100+rng.IntN(50_000), HeaderTenant, fmt.Sprint(c%3), HeaderPriority, fmt.Sprint(rng.IntN(4)-1))
					most := 0
					select {
					case a := <-r.answer:
						if a == "routed" {
							routed.Add(1)
							<-pause(60)
							r.done()
							break
						}
						shed.Add(1)
						<-r.ended
						r.cancel()
					case <-pause(500):
						left.Add(1)
						r.abort()
						most = 1 // the answer that it did not wait for
					}
					if n := len(r.answer); n > most {
						t.Errorf("%s has %d answers too many", r.id, n-most)
					}
					<-pause(40)
				}
			})
		}
		clients.Wait()
		synctest.Wait()
		t.Logf("%d routed, %d shed, %d left", routed.Load(), shed.Load(), left.Load())
		if n := routed.Load() + shed.Load() + left.Load(); n != 300 || routed.Load() == 0 || shed.Load() == 0 {
			t.Errorf("%d of 300 ended; %d routed, %d shed", n, routed.Load(), shed.Load())
		}
		g.end()
	})
}

// TestLightRequests: the list of models and the health check are answered while no
// worker has room, and while none would be in time.
func TestLightRequests(t *testing.T) {
	cfg, pc := Default(), picker.DefaultConfig()
	cfg.Flow.Enabled, pc.MaxRequests, pc.MaxQueueMs, pc.SLOTTFTMs = true, 1, 1000, 500
	w := newWorld(t, cfg, pc)
	w.worker("w1", hello("192.0.2.10:8000"))
	w.pool.Apply(&kvindex.Record{Owner: kvindex.Owner{Worker: "w1"}, Epoch: 1, Term: 1, Kind: kvindex.KindLoad,
		Load: &kvindex.Load{Waiting: 2, QueuedTokens: 100_000}}, w.now)
	for _, path := range []string{"/v1/models", "/health"} {
		out := w.send(w.stream(path), requestHeadersMessage(true, ":method", "GET", ":path", path))
		if len(out) != 1 || out[0].GetRequestHeaders() == nil {
			t.Errorf("%s: %v", path, out)
		}
	}
	if out := w.send(w.stream("post"), requestHeadersMessage(true, ":method", "POST", ":path", "/v1/completions")); out[0].GetImmediateResponse() == nil {
		t.Errorf("a prompt: %v", out)
	}
}

// TestRetryAfterBounded: a client is told to come back after ten minutes at most,
// whatever a worker says of its queue.
func TestRetryAfterBounded(t *testing.T) {
	pc := picker.DefaultConfig()
	pc.MaxQueueMs = 1
	w := newWorld(t, Default(), pc)
	w.worker("w1", hello("192.0.2.10:8000"))
	w.pool.Apply(&kvindex.Record{Owner: kvindex.Owner{Worker: "w1"}, Epoch: 1, Term: 1, Kind: kvindex.KindLoad,
		Load: &kvindex.Load{Waiting: 1, QueuedTokens: math.MaxUint64}}, w.now)
	_, r := w.server.router.Route(w.now, Ask{ID: "r", Method: "POST", Path: "/v1/completions", Body: fill(100)})
	if r == nil || r.Cause != CauseOverloaded || r.RetryAfter != maxRetryAfter {
		t.Errorf("got %+v, want %s for %v", r, CauseOverloaded, maxRetryAfter)
	}
}
