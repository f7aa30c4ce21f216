package extproc

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"

	"github.com/kvlane/kvlane/picker"
)

// Server answers ext_proc streams. It is safe for concurrent use; it starts no
// goroutine of its own (gRPC starts one for each stream). Where requests may wait
// for room, [Server.Run] has to run.
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer

	cfg     Config
	router  *Router
	metrics *Metrics
	log     *slog.Logger
	plans   *Plans
	routing map[string]bool // RoutingHeaders as a set
	clock   func() time.Time
	newID   func() string
	ids     ids
	clients clients
	gate    *gate // nil: no request waits
	streams atomic.Int64
	buffers budget
	silent  atomic.Bool // no agent's report comes now

	stop     sync.Once
	stopping chan struct{} // closed by Stop
}

// New makes a server for a valid configuration.
func New(cfg Config, router *Router, m *Metrics, log *slog.Logger) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("ext_proc: %w", err)
	}
	s := &Server{
		cfg: cfg, router: router, metrics: m, log: log, plans: NewPlans(cfg.Plans),
		routing: make(map[string]bool), clock: time.Now, newID: randomID,
		ids: ids{open: make(map[string]struct{})}, clients: newClients(cfg),
		buffers: budget{limit: cfg.MaxBufferedBytes, gauge: m.BufferedBytes},

		stopping: make(chan struct{}),
	}
	for _, h := range RoutingHeaders() {
		s.routing[h] = true
	}
	if cfg.Flow.Enabled {
		m.Flow.limit = cfg.Flow.TenantLabels
		s.gate = newGate(cfg.Flow, router, m.Flow, func() time.Time { return s.clock() }, s.panicked)
	}
	return s, nil
}

// Run lets requests that wait go as soon as there is room, until ctx ends. It has to
// outlive the streams.
func (s *Server) Run(ctx context.Context) error {
	if s.gate != nil {
		s.gate.run(ctx)
	}
	return nil
}

// Reported says that a worker's state changed: there may be room for requests that
// wait. It takes no time and may be called as often as that happens.
func (s *Server) Reported() {
	if s.gate != nil {
		s.gate.reported()
	}
}

// room says that a request has ended.
func (s *Server) room() {
	if s.gate != nil {
		s.gate.changed()
	}
}

// Register adds the ext_proc service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { extprocv3.RegisterExternalProcessorServer(r, s) }

// SetReports says whether the agents' reports arrive; at first they do. While they
// do not, answers that stream keep their streams: nothing else would tell their end.
func (s *Server) SetReports(arrive bool) { s.silent.Store(!arrive) }

// Plans are the last requests, for `kvlane explain`.
func (s *Server) Plans() *Plans { return s.plans }

// ServerOptions are the gRPC settings that fit the configuration: messages of
// any size, and windows that let most bodies pass without waiting.
func (c Config) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		// gRPC answers a message over its limit with an error of its own. The sizes
		// are Envoy's to bound; what we keep of them is bounded by the stream.
		grpc.MaxRecvMsgSize(math.MaxInt32),
		grpc.InitialWindowSize(1 << 20),
		grpc.InitialConnWindowSize(16 << 20),
		grpc.MaxConcurrentStreams(uint32(min(c.MaxStreams, 1<<31-1))),
	}
}

// Stop ends the streams whose request is with a worker, politely: Envoy lets
// their answers go on without us, where it would cut each of them if the
// connection broke. Requests that are not answered yet are served as before; those
// that wait for room may do so for DrainTimeout.
func (s *Server) Stop() {
	s.stop.Do(func() {
		if s.gate != nil {
			s.gate.stop(s.clock().Add(s.cfg.Flow.DrainTimeout))
		}
		close(s.stopping)
	})
}

// Process serves one request. It never returns an error: Envoy would answer it
// with a 500 of its own.
func (s *Server) Process(g extprocv3.ExternalProcessor_ProcessServer) error {
	s.metrics.Streams.Inc()
	defer s.metrics.Streams.Dec()
	r := &run{server: s, grpc: g, stream: newStream(s)}
	defer r.close()
	for {
		in, ok := r.receive()
		if !ok || !r.handle(in) {
			return nil
		}
	}
}

// run joins a stream to its gRPC connection and its timer.
type run struct {
	server *Server
	grpc   extprocv3.ExternalProcessor_ProcessServer
	// inbox is what the next message comes from; nil if nobody waits for one.
	inbox chan *extprocv3.ProcessingRequest

	mu     sync.Mutex // guards what follows; the timer's goroutine is the second user
	stream *stream
	timer  *time.Timer // of stream.deadline; nil if none was needed yet
	closed bool
	out    responses // reused
}

// receive waits for a message, or nil for the gate's decision. False is the end, a
// client that left, or that this server stops: all are ordinary.
func (r *run) receive() (*extprocv3.ProcessingRequest, bool) {
	decided, stopping := r.others()
	if r.inbox == nil {
		if decided == nil && stopping == nil {
			in, err := r.grpc.Recv()
			return in, err == nil
		}
		r.inbox = make(chan *extprocv3.ProcessingRequest, 1)
		go func(inbox chan<- *extprocv3.ProcessingRequest) { // ends at the latest when the stream does
			in, err := r.grpc.Recv()
			if err != nil {
				in = nil
			}
			inbox <- in
		}(r.inbox)
	}
	select {
	case in := <-r.inbox:
		r.inbox = nil
		return in, in != nil
	case <-decided:
		return nil, true
	case <-stopping:
		r.part()
		return nil, false
	}
}

// part leaves the request to its worker, which has not ended it: a booking that was
// closed here would look like room for one that waits.
func (r *run) part() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream.left = true
}

// others are what a stream may wait for beside a message; nil for what it does
// not. At a stop those end of which Envoy needs nothing any more: the request is with
// a worker, and the answer's bytes do not pass here.
func (r *run) others() (decided, stopping <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.stream; s.phase == sent && s.responseMode == extprocfilterv3.ProcessingMode_NONE {
		stopping = r.server.stopping
	}
	return r.stream.decided(), stopping
}

// handle answers one message, or nil for the gate's decision; false ends the stream.
func (r *run) handle(in *extprocv3.ProcessingRequest) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.out = r.server.step(r.stream, in, r.out[:0])
	return r.send()
}

// send writes the answers and sets the timer anew. The caller holds mu.
func (r *run) send() bool {
	for _, a := range r.out {
		if err := r.grpc.Send(a); err != nil {
			r.server.fault("send") // the peer is gone; Recv says so too
			return false
		}
	}
	clear(r.out)
	r.stream.release()
	if r.stream.phase == refused || r.stream.left {
		return false
	}
	r.setTimer()
	return true
}

// setTimer follows the stream's deadline. The caller holds mu.
func (r *run) setTimer() {
	waiting := r.stream.phase == reading && !r.stream.deadline.IsZero()
	switch {
	case waiting && r.timer == nil:
		r.timer = time.AfterFunc(time.Until(r.stream.deadline), r.expire)
	case waiting:
		r.timer.Reset(time.Until(r.stream.deadline))
	case r.timer != nil:
		r.timer.Stop()
	}
}

// expire refuses a body that does not come. The goroutine in Recv goes on
// until Envoy closes the stream, which it does after an HTTP answer.
func (r *run) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.out = r.stream.expire(r.server.clock(), r.out[:0])
	if !r.send() {
		r.end()
	}
}

func (r *run) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
	r.end()
}

// end frees what the stream holds. The caller holds mu.
func (r *run) end() {
	if !r.closed {
		r.closed = true
		r.stream.end(r.server.clock())
	}
}

// step is stream.step that survives a fault in our own code: a request that
// has not been answered gets 503, one that has been goes on untouched.
func (s *Server) step(st *stream, in *extprocv3.ProcessingRequest, out responses) (answers responses) {
	before := len(out)
	defer func() {
		if p := recover(); p != nil {
			s.panicked("step", st.id, p)
			answers = st.refuse(s.clock(), &Refusal{Cause: CauseInternal}, out[:before])
		}
	}()
	if in == nil {
		return st.settle(s.clock(), out)
	}
	return st.step(s.clock(), in, out)
}

// pick asks the router, and where that panics, for a choice by load alone.
func (s *Server) pick(now time.Time, ask Ask) (d Decision, r *Refusal) {
	defer func() {
		if p := recover(); p != nil {
			s.panicked("pick", ask.ID, p)
			ask.Body = nil
			d, r = s.router.Route(now, ask)
		}
	}()
	return s.router.Route(now, ask)
}

// panicked notes a fault in our own code.
func (s *Server) panicked(what, id string, reason any) {
	s.fault("panic")
	s.log.Error("fault in our own code", "in", what, "panic", fmt.Sprint(reason), "request", id)
}

// admit counts a stream in, unless there are too many.
func (s *Server) admit() bool {
	if s.streams.Add(1) > int64(s.cfg.MaxStreams) {
		s.streams.Add(-1)
		return false
	}
	return true
}

func (s *Server) leave() { s.streams.Add(-1) }

func (s *Server) fault(reason string) { s.metrics.Faults.WithLabelValues(reason).Inc() }

func (s *Server) tooLarge() *Refusal {
	return &Refusal{Cause: CauseTooLarge, Detail: fmt.Sprintf("The request body is larger than %d bytes.", s.cfg.MaxBodyBytes)}
}

func (s *Server) refused(r *Refusal) { s.metrics.Requests.WithLabelValues(string(r.Cause)).Inc() }

// finished counts and logs a request that was sent to a worker, or left before. The
// line has what was predicted, and what the worker has reported by now.
func (s *Server) finished(st *stream, outcome string) {
	s.metrics.Requests.WithLabelValues(outcome).Inc()
	report, reported := s.router.Reported(st.id)
	s.plans.update(st.id, func(e *Entry) {
		e.Outcome = outcome
		if reported {
			e.Reported = &report
		}
	})
	p := st.decision.Plan
	attrs := []slog.Attr{
		slog.String("id", st.id), slog.String("path", st.head.path), slog.String("outcome", outcome),
		slog.String("worker", string(p.Decode.Worker)), slog.String("prefill", prefillWorker(p)),
		slog.String("reason", string(p.Reason)), slog.Int("isl", p.ISL), slog.Int("cached", p.Cached),
		slog.Float64("ttft_ms", p.TTFTMs), slog.Int("priority", st.decision.Priority),
		slog.Float64("waited_ms", float64(st.decision.Waited)/float64(time.Millisecond)),
	}
	if reported {
		attrs = append(attrs, slog.Float64("reported_ttft_ms", report.TTFTMs), slog.Int("reported_cached", report.Cached))
	}
	s.log.LogAttrs(context.Background(), slog.LevelDebug, "request", attrs...)
}

func prefillWorker(p picker.Plan) string {
	if p.Prefill == nil {
		return ""
	}
	return string(p.Prefill.Worker)
}

// randomID makes a request id for a gateway that sends none.
func randomID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	return hex.EncodeToString(b[:])
}
