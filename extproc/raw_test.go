package extproc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/kvlane/kvlane/picker"
)

// bench is a world behind a real gRPC connection, with the machine's clock.
type bench struct {
	*world
	client extprocv3.ExternalProcessorClient
	conn   *grpc.ClientConn
	stop   func()
	// left is how many bookings stay open: their requests go on.
	left int
}

func newBench(t testing.TB, cfg Config, addresses ...string) *bench {
	t.Helper()
	return newBenchWith(t, cfg, picker.DefaultConfig(), addresses...)
}

func newBenchWith(t testing.TB, cfg Config, pc picker.Config, addresses ...string) *bench {
	t.Helper()
	w := newWorld(t, cfg, pc)
	w.now = time.Now()
	w.server.clock = time.Now
	w.server.newID = randomID
	for i, a := range addresses {
		w.worker(fmt.Sprintf("w%d", i+1), hello(a))
	}
	l := bufconn.Listen(1 << 20)
	g := grpc.NewServer(cfg.ServerOptions()...)
	w.server.Register(g)
	health := NewHealth()
	health.Register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///picker", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{world: w, client: extprocv3.NewExternalProcessorClient(conn), conn: conn}
	b.stop = func() {
		b.stop = func() {}
		_ = conn.Close()
		g.GracefulStop() // waits for every stream's goroutine
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { b.stop() })
	return b
}

// exchange sends all messages, half-closes, and returns every answer.
func (b *bench) exchange(in ...*extprocv3.ProcessingRequest) responses {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	st, err := b.client.Process(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for _, m := range in {
			if st.Send(m) != nil {
				return // the server has ended the stream; Recv tells how
			}
		}
		_ = st.CloseSend()
	}()
	var out responses
	for {
		a, err := st.Recv()
		if errors.Is(err, io.EOF) {
			<-sent
			return out
		}
		if err != nil {
			b.t.Fatalf("the stream ended with a gRPC error: %v", err)
		}
		out = append(out, a)
	}
}

// settle waits until the server has ended every stream, and checks that nothing
// is left of them.
func (b *bench) settle() {
	b.t.Helper()
	b.stop()
	for name, v := range b.metrics() {
		if v != 0 && (name == "streams" || name == "open_bookings" || name == "buffered_body_bytes") {
			b.t.Errorf("%s is %g after the last stream", name, v)
		}
	}
	if open := b.pool.Stats(time.Now()).Bookings; open != b.left {
		b.t.Errorf("the pool has %d bookings after the last stream, want %d", open, b.left)
	}
	if n := len(b.server.ids.open); n != 0 {
		b.t.Errorf("%d ids are in use after the last stream", n)
	}
}

// checkOrder holds the rules that Envoy has for a full-duplex stream: the
// headers once and first, pieces that are streamed, their end once and last. It
// returns the request's body as the server gave it back.
func checkOrder(t testing.TB, out responses) (requestBody, responseBody []byte) {
	t.Helper()
	var headers, requestEnds, responseEnds, immediate int
	for i, a := range out {
		if immediate > 0 {
			t.Fatalf("answer %d follows an immediate response: %v", i, a)
		}
		switch v := a.GetResponse().(type) {
		case *extprocv3.ProcessingResponse_RequestHeaders:
			headers++
			checkDestination(t, a)
			checkMutation(t, v.RequestHeaders.GetResponse().GetHeaderMutation())
		case *extprocv3.ProcessingResponse_RequestBody:
			if headers != 1 || requestEnds > 0 {
				t.Fatalf("answer %d: a body after %d headers and %d ends", i, headers, requestEnds)
			}
			piece := v.RequestBody.GetResponse().GetBodyMutation().GetStreamedResponse()
			if piece == nil || len(piece.GetBody()) > maxPiece {
				t.Fatalf("answer %d is not a streamed piece of at most %d bytes: %v", i, maxPiece, a)
			}
			requestBody = append(requestBody, piece.GetBody()...)
			if piece.GetEndOfStream() {
				requestEnds++
			}
		case *extprocv3.ProcessingResponse_ResponseHeaders:
			checkMutation(t, v.ResponseHeaders.GetResponse().GetHeaderMutation())
		case *extprocv3.ProcessingResponse_ResponseBody:
			piece := v.ResponseBody.GetResponse().GetBodyMutation().GetStreamedResponse()
			if piece == nil || responseEnds > 0 || len(piece.GetBody()) > maxPiece {
				t.Fatalf("answer %d: not a streamed piece, too long, or after the end: %v", i, a)
			}
			responseBody = append(responseBody, piece.GetBody()...)
			if piece.GetEndOfStream() {
				responseEnds++
			}
		case *extprocv3.ProcessingResponse_ImmediateResponse:
			immediate++
			if !json.Valid(v.ImmediateResponse.GetBody()) {
				t.Errorf("the error body is not JSON: %q", v.ImmediateResponse.GetBody())
			}
		}
	}
	if headers > 1 || headers == 0 && immediate == 0 && len(out) > 0 && requestBody != nil {
		t.Fatalf("want one answer to the headers, got %d", headers)
	}
	return requestBody, responseBody
}

// checkDestination wants the same value in the header and the metadata, and
// returns it.
func checkDestination(t testing.TB, a *extprocv3.ProcessingResponse) string {
	t.Helper()
	var header string
	for _, h := range a.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetKey() == HeaderDestination {
			header = string(h.GetHeader().GetRawValue())
		}
	}
	meta := a.GetDynamicMetadata().GetFields()[MetadataNamespace].GetStructValue().GetFields()[HeaderDestination].GetStringValue()
	if header == "" || header != meta {
		t.Errorf("destination: header %q, metadata %q", header, meta)
	}
	return header
}

// checkMutation refuses changes that break a connection or a message.
func checkMutation(t testing.TB, m *extprocv3.HeaderMutation) {
	t.Helper()
	for _, h := range m.GetSetHeaders() {
		k := h.GetHeader().GetKey()
		switch {
		case strings.HasPrefix(k, ":"), k == "transfer-encoding", k == "connection", k == "keep-alive", k == "content-length":
			t.Errorf("header change of %s", k)
		case k != strings.ToLower(k):
			t.Errorf("header %s is not lower case", k)
		}
	}
}

// lines decodes a JSON lines file of the cases.
func lines[T any](t testing.TB, name string) []T {
	t.Helper()
	f, err := os.Open(filepath.Join("../test/data/cases", name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out []T
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		var v T
		if err := json.Unmarshal(sc.Bytes(), &v); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out = append(out, v)
	}
	return out
}

func fill(size int) []byte {
	head, tail := `{"model":"base","max_tokens":4,"prompt":"`, `"}`
	if size < len(head)+len(tail) {
		return bytes.Repeat([]byte(" "), size)
	}
	return []byte(head + strings.Repeat("a", size-len(head)-len(tail)) + tail)
}

func post(path string, pairs ...string) *extprocv3.ProcessingRequest {
	return requestHeadersMessage(false, append([]string{":method", "POST", ":path", path, "content-type", "application/json"}, pairs...)...)
}

// TestStop: when the server stops, a stream whose request is with a worker ends
// as if all were said, so that Envoy lets the answer go on. One that Envoy needs
// goes on: the request is not answered yet, or the answer's bytes pass here.
func TestStop(t *testing.T) {
	b := newBench(t, Default(), "192.0.2.10:8000")
	open := func(answers extprocfilterv3.ProcessingMode_BodySendMode, in ...*extprocv3.ProcessingRequest) extprocv3.ExternalProcessor_ProcessClient {
		st, err := b.client.Process(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		in[0].ProtocolConfig = &extprocv3.ProtocolConfiguration{
			RequestBodyMode: extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: answers,
		}
		for _, m := range in {
			if err := st.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		return st
	}
	answers := func(st extprocv3.ExternalProcessor_ProcessClient, n int) {
		t.Helper()
		for i := range n {
			if _, err := st.Recv(); err != nil {
				t.Fatalf("answer %d: %v", i, err)
			}
		}
	}
	whole := func() []*extprocv3.ProcessingRequest {
		return []*extprocv3.ProcessingRequest{post("/v1/completions"), requestBodyMessage(fill(100), true)}
	}
	none, duplex := extprocfilterv3.ProcessingMode_NONE, extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	waiting := open(none, whole()...)
	answers(waiting, 2)
	begun := open(none, append(whole(), responseHeadersMessage(false))...)
	answers(begun, 3)
	uploading := open(none, post("/v1/completions"))
	passing := open(duplex, whole()...)
	answers(passing, 2)

	b.server.Stop()
	b.server.Stop()
	for name, st := range map[string]extprocv3.ExternalProcessor_ProcessClient{"waiting": waiting, "begun": begun} {
		if _, err := st.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: want the end, got %v", name, err)
		}
	}
	if err := uploading.Send(requestBodyMessage(fill(100), true)); err != nil {
		t.Fatal(err)
	}
	answers(uploading, 2)
	if _, err := uploading.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("a request that was answered after the stop: want the end, got %v", err)
	}
	if err := passing.Send(responseHeadersMessage(false)); err != nil {
		t.Fatal(err)
	}
	answers(passing, 1)
	_ = passing.CloseSend()
	b.left = 3 // their workers go on with them
	b.settle()
}
