package protocol

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/status"
)

// session is one ext_proc stream that the suite drives. One goroutine at a time.
type session struct {
	trace
	requestMode, responseMode bodyMode
	timeout                   time.Duration
	stream                    extprocv3.ExternalProcessor_ProcessClient
	cancel                    context.CancelFunc
	inbox                     *inbox
	reading                   sync.WaitGroup
	due                       due
}

// due is how much must have come by now.
type due struct {
	requestBodies, responseBodies int // answers, in modes that give one a message
	responseBytes                 int // in full duplex
}

// inbox takes the answers off the wire, so that a sender never waits for a reader.
type inbox struct {
	mu    sync.Mutex
	items []*answer
	err   error // io.EOF: the server ended the stream without a fault
	wake  chan struct{}
}

// open starts a stream. A stream that cannot be opened ends at once, with the
// reason as its error.
func (l *lab) open(ctx context.Context) *session {
	ctx, cancel := context.WithCancel(ctx)
	s := &session{
		requestMode: modeDuplex, responseMode: modeDuplex, timeout: l.timeout, cancel: cancel,
		inbox: &inbox{wake: make(chan struct{}, 1)},
	}
	var err error
	if s.stream, err = extprocv3.NewExternalProcessorClient(l.conn).Process(ctx); err != nil {
		s.over, s.broken, s.err = true, true, fmt.Errorf("open the stream: %w", err)
		return s
	}
	s.reading.Go(s.read)
	return s
}

func (s *session) read() {
	for {
		a, err := s.stream.Recv()
		s.inbox.mu.Lock()
		if err != nil {
			s.inbox.err = err
		} else {
			s.inbox.items = append(s.inbox.items, a)
		}
		s.inbox.mu.Unlock()
		select {
		case s.inbox.wake <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// take moves what has come into the trace.
func (s *session) take() {
	s.inbox.mu.Lock()
	items, err := s.inbox.items, s.inbox.err
	s.inbox.items = nil
	s.inbox.mu.Unlock()
	for _, a := range items {
		s.received(a)
	}
	if err != nil && !s.over {
		s.over = true
		if !errors.Is(err, io.EOF) {
			st, _ := status.FromError(err)
			s.err, s.broken = fmt.Errorf("the stream ended with gRPC status %s: %s", st.Code(), st.Message()), true
			s.note("<- " + s.err.Error())
		}
	}
}

// send gives the picker a message; false if the stream is over. One that does not
// read its stream is cut off.
func (s *session) send(m *request) bool {
	if s.over {
		return false
	}
	s.sent(m)
	if m.GetProtocolConfig() != nil {
		s.requestMode, s.responseMode = declared(m)
	}
	cut := time.AfterFunc(s.timeout, s.cancel)
	err := s.stream.Send(m)
	if !cut.Stop() && s.err == nil {
		s.err = fmt.Errorf("the picker does not read its stream: a message could not be sent within %v", s.timeout)
	}
	switch {
	case m.GetRequestBody() != nil:
		s.due.requestBodies++
	case m.GetResponseBody() != nil:
		s.due.responseBodies++
		s.due.responseBytes += len(m.GetResponseBody().GetBody())
	}
	return err == nil
}

// await waits until done holds; false if the stream is over, an HTTP answer came,
// or the time is up, which is a fault.
func (s *session) await(what string, done func() bool) bool {
	timer := time.NewTimer(s.timeout)
	defer timer.Stop()
	for {
		s.take()
		if done() {
			return true
		}
		if s.over || s.immediate != nil {
			return false
		}
		select {
		case <-s.inbox.wake:
		case <-timer.C:
			s.err = fmt.Errorf("no %s within %v", what, s.timeout)
			s.note("<- (" + s.err.Error() + ")")
			return false
		}
	}
}

// settle waits for what a picker has to say to a message before Envoy goes on.
func (s *session) settle(m *request) bool {
	duplex, back := s.requestMode == modeDuplex, s.responseMode == modeDuplex
	switch v := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		if v.RequestHeaders.GetEndOfStream() || !duplex {
			return s.await("answer to the request's headers", func() bool { return s.headers > 0 })
		}
	case *extprocv3.ProcessingRequest_RequestBody:
		if !duplex {
			return s.await("answer to the request's body", func() bool { return s.requestBodies >= s.due.requestBodies })
		}
		if v.RequestBody.GetEndOfStream() {
			return s.awaitBody()
		}
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return s.await("answer to the request's trailers", func() bool { return s.trailers > 0 })
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return s.await("answer to the response's headers", func() bool { return s.responseHeaders > 0 })
	case *extprocv3.ProcessingRequest_ResponseBody:
		if !back {
			return s.await("answer to the response's body", func() bool { return s.responseBodies >= s.due.responseBodies })
		}
		end := v.ResponseBody.GetEndOfStream()
		return s.await("return of the response's bytes", func() bool {
			return len(s.responseBody) >= s.due.responseBytes && (!end || s.responseEnds > 0)
		})
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return s.await("answer to the response's trailers", func() bool { return s.responseTrailers > 0 })
	}
	return true
}

// awaitBody waits for the headers' answer and the whole body in full-duplex mode.
func (s *session) awaitBody() bool {
	late := s.err == nil
	if s.await("answer to the headers", func() bool { return s.headers > 0 }) &&
		s.await("end of the body", func() bool { return s.requestEnds > 0 }) {
		return true
	}
	if late && s.err != nil && !s.over && s.headers > 0 {
		s.err = fmt.Errorf("%w: %d answers to the body gave %d bytes back", s.err, s.requestBodies, len(s.requestBody))
	}
	return false
}

// finish half-closes the stream and gathers what still comes.
func (s *session) finish() {
	if s.stream != nil && !s.over {
		_ = s.stream.CloseSend() // what is wrong with the stream, Recv says
		err := s.err
		immediate := s.immediate
		s.immediate = nil // wait for the end, not for the answer that is already here
		s.await("end of the stream after the half-close", func() bool { return s.over })
		if !s.over {
			s.err, s.endless = err, true // a check of its own
		}
		if immediate != nil {
			s.immediate = immediate
		}
	}
	s.stop()
}

// stop ends the stream as a gateway does that lost its client.
func (s *session) stop() {
	s.cancel()
	s.reading.Wait()
}

// sessions are streams that are open at the same time.
type sessions []*session

// stop ends them all.
func (all *sessions) stop() {
	for _, s := range *all {
		s.stop()
	}
}

// play runs a script as Envoy would: it waits for answers where Envoy does, and
// ends the stream when all is said.
func (l *lab) play(ctx context.Context, in ...*request) *trace {
	s := l.open(ctx)
	for _, m := range in {
		if !s.send(m) || !s.settle(m) {
			break
		}
	}
	s.finish()
	return &s.trace
}

// blurt runs a script without waiting in between.
func (l *lab) blurt(ctx context.Context, in ...*request) *trace {
	s := l.open(ctx)
	for _, m := range in {
		if !s.send(m) {
			break
		}
	}
	s.finish()
	return &s.trace
}
