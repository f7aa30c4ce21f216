package extproc

import (
	"strconv"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvlane/kvlane/extproc/scoring"
	"github.com/kvlane/kvlane/picker"
)

// phase is how far a stream's request side is.
type phase uint8

const (
	awaiting phase = iota // no headers yet
	reading               // the body is kept until its end, then the request is routed
	queued                // the body is complete, the request waits in the gate for room
	passing               // the request is routed, pieces of its body go back as they come
	sent                  // the whole request has been answered
	refused               // an HTTP answer was given; nothing follows
)

// stream is one request. Its methods take a message and the time and append the
// answers to out; they do no I/O. One goroutine at a time.
type stream struct {
	srv *Server

	phase        phase
	requestMode  extprocfilterv3.ProcessingMode_BodySendMode
	responseMode extprocfilterv3.ProcessingMode_BodySendMode
	head         head
	hints        Hints
	headers      []scoring.Header // that scorers may see
	id           string
	subset       []string
	hasSubset    bool

	body      []byte  // only in reading and queued
	bodyEnds  bool    // the body's end was marked with its last piece
	length    int     // of the body that goes on, where it is not the client's; else 0
	ticket    *ticket // in queued
	reserved  int64   // of the server's memory for bodies
	started   time.Time
	deadline  time.Time // of the next piece of the body, in reading
	trailers  bool      // the request's trailers are answered
	admitted  bool      // counted in the server's streams
	observing bool      // Envoy ignores answers: none are given, nothing is booked

	decision Decision
	booked   bool
	answered bool   // the response side has begun
	complete bool   // the answer's end was seen
	wellFrom string // the address whose answer is well so far
	left     bool   // the answer goes on without us, its agent will report the end
}

func newStream(s *Server) *stream {
	// Without a protocol_config (gateways before Envoy 1.34) the mode is the one
	// that the endpoint picker protocol prescribes.
	return &stream{srv: s,
		requestMode:  extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
		responseMode: extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED}
}

type responses = []*extprocv3.ProcessingResponse

// step answers one message.
func (s *stream) step(now time.Time, in *extprocv3.ProcessingRequest, out responses) responses {
	if s.phase == refused || s.observing {
		return out
	}
	if c := in.GetProtocolConfig(); c != nil && s.phase == awaiting { // it comes with the first message
		s.requestMode, s.responseMode = c.GetRequestBodyMode(), c.GetResponseBodyMode()
	}
	switch v := in.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		return s.requestHeaders(now, in, v.RequestHeaders, out)
	case *extprocv3.ProcessingRequest_RequestBody:
		return s.requestBody(now, v.RequestBody, out)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return s.requestTrailers(now, out)
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return s.responseHeaders(now, in, v.ResponseHeaders, out)
	case *extprocv3.ProcessingRequest_ResponseBody:
		return s.responseBody(v.ResponseBody, out)
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return s.responseTrailers(out)
	}
	return s.unexpected(out) // a message without a request, from a newer protocol
}

func (s *stream) requestHeaders(now time.Time, in *extprocv3.ProcessingRequest, h *extprocv3.HttpHeaders, out responses) responses {
	if s.phase != awaiting {
		return s.unexpected(out)
	}
	s.started = now
	if in.GetObservabilityMode() {
		s.observing = true
		return out
	}
	s.head = readHead(h.GetHeaders(), s.srv.routing)
	s.hints = s.srv.clients.hints(&s.head.client, s.srv.fault)
	s.headers = s.srv.router.wanted(h.GetHeaders())
	s.subset, s.hasSubset = readSubset(in.GetMetadataContext())
	s.id = s.srv.ids.take(requestID(s.head.requestID), s.srv.router.booked, s.srv.newID)
	if !s.srv.admit() {
		return s.refuse(now, &Refusal{Cause: CauseStreams, RetryAfter: time.Second}, out)
	}
	s.admitted = true
	if h.GetEndOfStream() || !s.mustRead() {
		return s.answerHeaders(now, h.GetEndOfStream(), out)
	}
	if n, err := strconv.ParseInt(s.head.contentLength, 10, 64); err == nil && n > int64(s.srv.cfg.MaxBodyBytes) {
		return s.refuse(now, s.srv.tooLarge(), out)
	}
	s.phase = reading
	if s.fullDuplex() {
		s.deadline = now.Add(s.srv.cfg.BodyIdleTimeout)
		return out
	}
	// A buffered body comes only after the headers are answered, and all at once;
	// its own answer can still change the headers.
	return append(out, requestHeadersAnswer(nil))
}

// fullDuplex reports whether bodies are pieces that both sides send when they
// like.
func (s *stream) fullDuplex() bool {
	return s.requestMode == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
}

// mustRead reports whether the body decides where the request goes, and can be
// had before the headers are answered for good.
func (s *stream) mustRead() bool {
	if !hasPrompt(s.head) {
		return false
	}
	if compressed(s.head.contentEncoding) {
		s.srv.fault("compressed")
		s.unread()
		return false
	}
	switch s.requestMode {
	case extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED, extprocfilterv3.ProcessingMode_BUFFERED,
		extprocfilterv3.ProcessingMode_BUFFERED_PARTIAL:
		return true
	default:
		// In STREAMED mode Envoy keeps the body back until the headers are answered.
		s.unread()
		return false
	}
}

// answerHeaders routes a request by load and answers its headers.
func (s *stream) answerHeaders(now time.Time, end bool, out responses) responses {
	if r := s.route(now, s.ask(nil)); r != nil {
		return s.refuse(now, r, out)
	}
	s.phase = passing
	if end {
		s.phase = sent
	}
	return append(out, s.routedHeaders())
}

// routedHeaders is the headers answer of a routed request.
func (s *stream) routedHeaders() *extprocv3.ProcessingResponse {
	c := s.routed()
	c.ClearRouteCache = s.srv.cfg.ClearRouteCache
	if s.trailers {
		c.HeaderMutation.SetHeaders = append(c.HeaderMutation.SetHeaders, set(HeaderTrailers, "1"))
		c.ClearRouteCache = true
	}
	a := requestHeadersAnswer(c)
	a.DynamicMetadata = metadata(s.decision.Plan)
	return a
}

func (s *stream) requestBody(now time.Time, b *extprocv3.HttpBody, out responses) responses {
	s.srv.metrics.RequestBytes.Add(float64(len(b.GetBody())))
	switch s.phase {
	case reading:
		if r := s.keep(b.GetBody()); r != nil {
			return s.refuse(now, r, out)
		}
		if b.GetEndOfStream() || !s.fullDuplex() {
			return s.endOfBody(now, b.GetEndOfStream(), out)
		}
		s.deadline = earlier(now.Add(s.srv.cfg.BodyIdleTimeout), s.started.Add(s.srv.cfg.BodyTimeout))
		return out
	case passing:
		if b.GetEndOfStream() {
			s.phase = sent
		}
		if !s.fullDuplex() {
			return append(out, requestBodyAnswer(nil))
		}
		pieces(b.GetBody(), b.GetEndOfStream(), func(p []byte, end bool) {
			out = append(out, requestBodyAnswer(streamed(p, end)))
		})
		return out
	case sent:
		s.srv.fault("body-after-end")
		return out
	default:
		return s.unexpected(out)
	}
}

// endOfBody routes a request whose body is complete, and gives back the body.
// end is false where trailers follow, or where a partial buffer was full.
func (s *stream) endOfBody(now time.Time, end bool, out responses) responses {
	s.bodyEnds = end
	ask := s.ask(s.body)
	if !end && s.requestMode == extprocfilterv3.ProcessingMode_BUFFERED_PARTIAL {
		ask.Body = nil // half a document says nothing that can be relied on
		if r := s.srv.router.cannotRewrite(&ask, s.body); r != nil {
			return s.refuse(now, r, out)
		}
	}
	if s.srv.gate != nil && s.srv.gate.busy() {
		return s.enqueue(now, ask, out)
	}
	switch r := s.route(now, ask); {
	case r == nil:
		return s.pass(now, out)
	case r.Cause == CauseOverloaded && s.srv.gate != nil:
		return s.enqueue(now, ask, out)
	default:
		return s.refuse(now, r, out)
	}
}

// pass sends a routed request on.
func (s *stream) pass(now time.Time, out responses) responses {
	if r := s.splice(); r != nil {
		return s.refuse(now, r, out)
	}
	s.phase = passing
	if s.bodyEnds || s.trailers {
		s.phase = sent
	}
	if !s.fullDuplex() {
		c := s.routed()
		c.ClearRouteCache = s.srv.cfg.ClearRouteCache
		if s.length > 0 {
			c.BodyMutation = replaced(s.body)
		}
		a := requestBodyAnswer(c)
		a.DynamicMetadata = metadata(s.decision.Plan)
		return append(out, a)
	}
	out = append(out, s.routedHeaders())
	pieces(s.body, s.bodyEnds, func(p []byte, last bool) {
		out = append(out, requestBodyAnswer(streamed(p, last)))
	})
	return out
}

func (s *stream) requestTrailers(now time.Time, out responses) responses {
	if s.phase == awaiting || s.trailers {
		return s.unexpected(out)
	}
	s.trailers = true
	if s.phase == reading {
		if s.fullDuplex() {
			out = s.endOfBody(now, false, out)
		} else {
			out = s.trailersOnly(now, out)
		}
	}
	if s.phase == refused || s.phase == queued {
		return out // once it is decided, they are answered too
	}
	s.phase = sent
	return append(out, requestTrailersAnswer())
}

// trailersOnly routes a buffered request that had no body but trailers. The
// trailers' answer cannot change headers, so the metadata alone has the choice.
func (s *stream) trailersOnly(now time.Time, out responses) responses {
	if r := s.route(now, s.ask(nil)); r != nil {
		return s.refuse(now, r, out)
	}
	return out
}

// expire refuses a request whose body has not come in time.
func (s *stream) expire(now time.Time, out responses) responses {
	if s.phase != reading || s.deadline.IsZero() || now.Before(s.deadline) {
		return out
	}
	return s.refuse(now, &Refusal{Cause: CauseTimeout}, out)
}

// ask is the request for the router. body is nil where only the load counts.
func (s *stream) ask(body []byte) Ask {
	return Ask{ID: s.id, Method: s.head.method, Path: s.head.path, Body: body,
		Subset: s.subset, HasSubset: s.hasSubset, Policy: s.policy(), Hints: s.hints, clients: &s.srv.clients, headers: s.headers, gate: s.srv.gate}
}

// route asks the router and books.
func (s *stream) route(now time.Time, ask Ask) *Refusal {
	began := s.srv.clock()
	d, r := s.srv.pick(now, ask)
	s.srv.metrics.PickSeconds.Observe(s.srv.clock().Sub(began).Seconds())
	s.decision = d
	if r == nil && s.srv.gate != nil && !light(s.head.method) {
		if r = s.srv.gate.judge(now, s.id, &d.Plan, ask.SLO); r == nil {
			s.srv.gate.passed(now, ask.Tenant, &d)
		}
	}
	if r == nil {
		s.book(now)
	}
	return r
}

// book takes over the booking of the decision.
func (s *stream) book(now time.Time) {
	d := s.decision
	s.booked = true
	s.srv.metrics.OpenBookings.Inc()
	s.srv.metrics.KnownTokens.Add(float64(d.KnownTokens))
	s.srv.metrics.PromptTokens.Add(float64(d.Plan.ISL))
	s.srv.plans.add(Entry{At: now, Path: s.head.path, Decision: d})
}

// policy is what the client asks for, where that is allowed.
func (s *stream) policy() picker.Policy {
	if s.head.policy == "" || !s.srv.cfg.AllowPolicyHeader {
		return ""
	}
	switch p := picker.Policy(s.head.policy); p {
	case picker.PolicyKV, picker.PolicyRoundRobin, picker.PolicyLeastRequests, picker.PolicyRandom:
		return p
	}
	s.srv.fault("bad-policy")
	return ""
}

// refuse answers the client and ends the stream.
func (s *stream) refuse(now time.Time, r *Refusal, out responses) responses {
	s.phase = refused
	s.srv.refused(r)
	d := s.decision
	if d.Plan.Request == "" {
		d.Plan.Request = s.id
	}
	s.srv.plans.add(Entry{At: now, Path: s.head.path, Decision: d, Refusal: r.Error(), Outcome: string(r.Cause)})
	return append(out, r.immediate(s.srv.cfg.Overloaded529))
}

// unexpected counts a message that has no place in the protocol and gives no
// answer: Envoy would take one for a fault of ours.
func (s *stream) unexpected(out responses) responses {
	s.srv.fault("unexpected-message")
	return out
}

// end closes the booking and whatever else the stream holds, once.
func (s *stream) end(now time.Time) {
	if s.phase == awaiting {
		return
	}
	outcome := "aborted"
	switch {
	case s.complete:
		outcome = "done"
	case s.answered && s.responseMode == extprocfilterv3.ProcessingMode_NONE:
		// Without bodies and trailers nothing says whether the answer was whole. Envoy
		// 1.40 resets the stream if it was and half-closes it if not, but promises neither.
		outcome = "answered"
	}
	if s.phase != refused && !s.observing {
		s.srv.finished(s, outcome)
	}
	if s.ticket != nil {
		s.leaveQueue()
	}
	if s.booked {
		s.booked = false
		s.praise(now)
		if !s.left {
			s.srv.router.Close(now, s.id)
			s.srv.room()
		}
		s.srv.metrics.OpenBookings.Dec()
	}
	s.phase = refused
	s.release()
	if s.id != "" {
		s.srv.ids.drop(s.id)
		s.id = ""
	}
	if s.admitted {
		s.admitted = false
		s.srv.leave()
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
