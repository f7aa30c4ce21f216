package extproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"
)

// TestEndSaidTwice: case C06.
func TestEndSaidTwice(t *testing.T) {
	type line struct {
		Send        string
		Headers     map[string]string
		From, Bytes int
		EndOfStream bool `json:"end_of_stream"`
		Literal     string
	}
	for _, name := range []string{"C06-repeat-empty.jsonl", "C06-repeat-nonempty.jsonl", "C06-repeat-last.jsonl"} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Default(), "192.0.2.10:8000")
			body := fill(1_200_000)
			var in []*extprocv3.ProcessingRequest
			for _, l := range lines[line](t, name) {
				switch l.Send {
				case "request_headers":
					var pairs []string
					for k, v := range l.Headers {
						pairs = append(pairs, k, v)
					}
					in = append(in, requestHeadersMessage(l.EndOfStream, pairs...))
				case "request_body":
					piece := []byte(l.Literal)
					if l.Literal == "" {
						piece = body[l.From : l.From+l.Bytes]
					}
					in = append(in, requestBodyMessage(piece, l.EndOfStream))
				}
			}
			if len(in) != 21 {
				t.Fatalf("want headers, 19 pieces and one more, got %d messages", len(in))
			}
			got, _ := checkOrder(t, b.exchange(in...))
			if !bytes.Equal(got, body) {
				t.Errorf("want the body once, got %d bytes", len(got))
			}
			got, _ = checkOrder(t, b.exchange(post("/v1/completions"), requestBodyMessage(fill(100), true)))
			if !bytes.Equal(got, fill(100)) {
				t.Error("the next request was not answered")
			}
			b.settle()
		})
	}
}

// TestOrderAndShape: case C07, sizes on one connection, in turn with requests
// without a body.
func TestOrderAndShape(t *testing.T) {
	b := newBench(t, Default(), "192.0.2.10:8000", "192.0.2.11:8000")
	for _, size := range []int{0, 1, 62_000, 62_001, 65_536, 1 << 20, 10 << 20} {
		for _, piece := range []int{65_536, 16_384} {
			for _, path := range []string{"/v1/completions", "/v1/audio"} {
				body := fill(size)
				in := append([]*extprocv3.ProcessingRequest{post(path)}, cut(body, piece)...)
				in = append(in, responseHeadersMessage(false))
				for i := 0; i < size; i += piece {
					end := min(i+piece, size)
					in = append(in, responseBodyMessage(body[i:end], end == size))
				}
				out := b.exchange(in...)
				req, resp := checkOrder(t, out)
				if size == 1 && path == "/v1/completions" {
					if out[0].GetImmediateResponse().GetStatus().GetCode() != 400 {
						t.Errorf("a body of one blank: want 400, got %v", out[0])
					}
					continue
				}
				if !bytes.Equal(req, body) || !bytes.Equal(resp, body) {
					t.Errorf("%s, %d bytes in pieces of %d: got %d and %d back", path, size, piece, len(req), len(resp))
				}
				if !out[lastRequestBody(out)].GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream() {
					t.Errorf("%s, %d bytes: the last piece has no end", path, size)
				}
			}
		}
		out := b.exchange(requestHeadersMessage(true, ":method", "GET", ":path", "/v1/models"))
		if len(out) != 1 || out[0].GetRequestHeaders() == nil {
			t.Errorf("without a body: want one answer, got %v", out)
		}
	}
	b.settle()
}

func cut(body []byte, piece int) []*extprocv3.ProcessingRequest {
	var out []*extprocv3.ProcessingRequest
	for len(body) > piece {
		out = append(out, requestBodyMessage(body[:piece], false))
		body = body[piece:]
	}
	return append(out, requestBodyMessage(body, true))
}

func lastRequestBody(out responses) int {
	last := 0
	for i, a := range out {
		if a.GetRequestBody() != nil {
			last = i
		}
	}
	return last
}

// TestWithoutBody: case C09, each request many times among ordinary ones.
func TestWithoutBody(t *testing.T) {
	type request struct {
		Method, Path string
		Headers      map[string]string
		End          bool `json:"end_of_stream_in_headers"`
	}
	b := newBench(t, Default(), "192.0.2.10:8000", "192.0.2.11:8000")
	for round := range 50 {
		for i, r := range lines[request](t, "C09-requests.jsonl") {
			pairs := []string{":method", r.Method, ":path", r.Path}
			for k, v := range r.Headers {
				pairs = append(pairs, k, v)
			}
			in := []*extprocv3.ProcessingRequest{requestHeadersMessage(r.End, pairs...)}
			if !r.End {
				in = append(in, requestBodyMessage(nil, true))
			}
			in = append(in, responseHeadersMessage(false), responseBodyMessage([]byte("{}"), false), responseTrailersMessage())
			out := b.exchange(in...)
			checkOrder(t, out)
			if len(out) != len(in) {
				t.Fatalf("round %d, request %d: want %d answers, got %d", round, i, len(in), len(out))
			}
			checkOrder(t, b.exchange(post("/v1/completions"), requestBodyMessage(fill(200), true)))
		}
	}
	if got := b.metrics()["requests_total{done}"]; got != 50*8 {
		t.Errorf("want %d requests done, got %g", 50*8, got)
	}
	b.settle()
}

// TestSubset: case C21.
func TestSubset(t *testing.T) {
	type row struct {
		About, Name, Absent string
		Workers             []string
		Value               any
		Want                []any
	}
	rows := lines[row](t, "C21-subset.jsonl")
	b := newBench(t, Default(), rows[0].Workers...)
	for _, r := range rows[1:] {
		t.Run(r.Name, func(t *testing.T) {
			b.t = t
			want := make(map[string]bool)
			for _, w := range r.Want {
				want[fmt.Sprint(w)] = true
			}
			for range 50 {
				in := requestHeadersMessage(true, ":method", "GET", ":path", "/v1/models")
				in.MetadataContext = subsetContext(t, r.Absent, r.Value)
				out := b.exchange(in)
				got := fmt.Sprint(int(out[0].GetImmediateResponse().GetStatus().GetCode()))
				if out[0].GetImmediateResponse() == nil {
					got = checkDestination(t, out[0])
				}
				for part := range strings.SplitSeq(got, ",") {
					if !want[part] {
						t.Fatalf("got %s, want only %v", got, r.Want)
					}
				}
			}
		})
	}
	b.t = t
	b.settle()
}

func subsetContext(t *testing.T, absent string, value any) *corev3.Metadata {
	switch absent {
	case "namespace":
		return nil
	case "key":
		return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{SubsetNamespace: {}}}
	}
	v, err := structpb.NewValue(value)
	if err != nil {
		t.Fatal(err)
	}
	return metadataContext(SubsetNamespace, KeySubset, v)
}

// TestForgedHeaders: case C25 on every path: routed by body, by load, refused.
func TestForgedHeaders(t *testing.T) {
	type row struct {
		Name    string
		Headers [][2]string
	}
	b := newBench(t, Default(), "192.0.2.10:8000")
	for _, r := range lines[row](t, "C25-headers.jsonl") {
		var pairs []string
		for _, h := range r.Headers {
			if !strings.HasPrefix(h[0], "<") {
				pairs = append(pairs, h[0], h[1])
				continue
			}
			for _, name := range RoutingHeaders() {
				pairs = append(pairs, name, h[1])
			}
		}
		for _, path := range []string{"/v1/completions", "/v1/other"} {
			out := b.exchange(post(path, pairs...), requestBodyMessage(fill(100), true))
			m := out[0].GetRequestHeaders().GetResponse().GetHeaderMutation()
			gone := make(map[string]bool)
			for _, h := range m.GetRemoveHeaders() {
				gone[h] = true
			}
			for _, h := range m.GetSetHeaders() {
				gone[h.GetHeader().GetKey()] = true
				if strings.Contains(string(h.GetHeader().GetRawValue()), "192.0.2.99") {
					t.Errorf("%s: %s is set to the forged value", r.Name, h.GetHeader().GetKey())
				}
			}
			for i := 0; i < len(pairs); i += 2 {
				if !gone[strings.ToLower(pairs[i])] {
					t.Errorf("%s on %s: %s reaches the worker", r.Name, path, pairs[i])
				}
			}
		}
	}
	b.settle()
}

// TestCancel: case C19, clients that leave at every point; each cut is of the
// gRPC stream, without half-close.
func TestCancel(t *testing.T) {
	b := newBench(t, Default(), "192.0.2.10:8000")
	whole := []*extprocv3.ProcessingRequest{
		post("/v1/completions"), requestBodyMessage(fill(70_000), false), requestBodyMessage(nil, true),
		responseHeadersMessage(false), responseBodyMessage([]byte("data"), false),
	}
	answers := []int{0, 0, 3, 4, 5} // how many are due after each message
	for range 100 {
		for cutAt := range whole {
			ctx, cancel := context.WithCancel(t.Context())
			st, err := b.client.Process(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range whole[:cutAt+1] {
				if err := st.Send(m); err != nil {
					t.Fatal(err)
				}
			}
			for range answers[cutAt] {
				if _, err := st.Recv(); err != nil {
					t.Fatal(err)
				}
			}
			cancel()
		}
	}
	b.settle()
	if got := b.metrics()["requests_total{done}"]; got != 0 {
		t.Errorf("%g cancelled requests count as done", got)
	}
}

// TestMemoryIsBounded: case C26 (a): many bodies that never end. What is
// reserved never exceeds the total, the surplus is refused, and a request that
// fits in the rest is answered meanwhile.
func TestMemoryIsBounded(t *testing.T) {
	cfg := Default()
	cfg.MaxBodyBytes, cfg.MaxBufferedBytes = 1<<20, 4<<20
	b := newBench(t, cfg, "192.0.2.10:8000")
	half := fill(600_000)[:500_000]
	var open []grpc.ClientStream
	refusedNow := 0
	for range 40 {
		st, err := b.client.Process(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, st)
		// The answer's headers come from an upstream that answers early; their
		// answer says that the server has read the piece before them.
		for _, m := range []*extprocv3.ProcessingRequest{post("/v1/completions"), requestBodyMessage(half, false), responseHeadersMessage(false)} {
			if err := st.Send(m); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		a, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(open)*len(half) <= int(cfg.MaxBufferedBytes) {
			if a.GetResponseHeaders() == nil {
				t.Fatalf("stream %d: want its body kept, got %v", len(open), a)
			}
			continue
		}
		if got := a.GetImmediateResponse().GetStatus().GetCode(); got != 503 {
			t.Fatalf("stream %d: want 503, got %v", len(open), a)
		}
		refusedNow++
		if used := b.server.buffers.used.Load(); used > cfg.MaxBufferedBytes {
			t.Fatalf("%d bytes are reserved, the limit is %d", used, cfg.MaxBufferedBytes)
		}
		got, _ := checkOrder(t, b.exchange(post("/v1/completions"), requestBodyMessage(fill(1000), true)))
		if len(got) != 1000 {
			t.Fatal("a small request is not answered any more")
		}
	}
	if refusedNow != 32 {
		t.Errorf("want 32 of 40 streams refused, got %d", refusedNow)
	}
	for _, st := range open {
		_ = st.CloseSend()
	}
	b.settle()
	if got := b.metrics()["requests_total{body-memory}"]; got != 32 {
		t.Errorf("want 32 refusals counted, got %g", got)
	}
}

// TestHugeBodies: case C26 (b), (c), (e).
func TestHugeBodies(t *testing.T) {
	cfg := Default()
	cfg.MaxBodyBytes = 20 << 20
	b := newBench(t, cfg, "192.0.2.10:8000")
	deep := `{"model":"base","x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `,"prompt":"p"}`
	var keys strings.Builder
	for i := range 1_000_000 {
		fmt.Fprintf(&keys, `,"k%d":%d`, i, i)
	}
	many := `{"model":"base","prompt":"p","x":{` + keys.String()[1:] + `}}`
	for _, c := range []struct {
		name string
		body []byte
		want int32 // 0: routed
	}{
		{"too large", fill(21 << 20), 413},
		{"deep", []byte(deep), 400},
		{"a million keys", []byte(many), 0},
	} {
		out := b.exchange(append([]*extprocv3.ProcessingRequest{post("/v1/completions")}, cut(c.body, 65_536)...)...)
		got, _ := checkOrder(t, out)
		if code := int32(out[0].GetImmediateResponse().GetStatus().GetCode()); code != c.want {
			t.Errorf("%s: want %d, got %d", c.name, c.want, code)
		} else if c.want == 0 && !bytes.Equal(got, c.body) {
			t.Errorf("%s: the body changed", c.name)
		}
	}
	// One buffered message over gRPC's own limit is a body over ours.
	buffered := post("/v1/completions")
	buffered.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: mode("buffered")}
	out := b.exchange(buffered, requestBodyMessage(fill(22<<20), true))
	if code := out[len(out)-1].GetImmediateResponse().GetStatus().GetCode(); code != 413 {
		t.Errorf("buffered: want 413, got %v", out)
	}
	b.settle()
}

// TestBodyTimeout: case C26 (d) on the machine's clock.
func TestBodyTimeout(t *testing.T) {
	cfg := Default()
	cfg.BodyIdleTimeout = 20 * time.Millisecond
	cfg.BodyTimeout = 50 * time.Millisecond
	b := newBench(t, cfg, "192.0.2.10:8000")
	st, err := b.client.Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Send(post("/v1/completions")); err != nil {
		t.Fatal(err)
	}
	a, err := st.Recv()
	if err != nil || a.GetImmediateResponse().GetStatus().GetCode() != 408 {
		t.Fatalf("want 408, got %v, %v", a, err)
	}
	if err := st.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("want the stream's end, got %v", err)
	}
	b.settle()
}

// TestCompressedBodies: case C05: by load, bytes untouched.
func TestCompressedBodies(t *testing.T) {
	b := newBench(t, Default(), "192.0.2.10:8000")
	for encoding, file := range map[string]string{"gzip": "C05-body.json.gz", "GZIP": "C05-body.json.gz", "zstd": "C05-body.json.zst", "br": "C05-body.json"} {
		body, err := os.ReadFile(filepath.Join("../test/data/cases", file))
		if err != nil {
			t.Fatal(err)
		}
		got, _ := checkOrder(t, b.exchange(post("/v1/chat/completions", "content-encoding", encoding), requestBodyMessage(body, true)))
		if !bytes.Equal(got, body) {
			t.Errorf("%s: the body changed", encoding)
		}
	}
	b.settle()
}

func TestHealth(t *testing.T) {
	h := NewHealth()
	g := grpc.NewServer()
	h.Register(g)
	l := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///health", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	c := healthv1.NewHealthClient(conn)
	for _, ready := range []bool{false, true, false} {
		h.SetReady(ready)
		for _, name := range []string{"", "readiness", "liveness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension"} {
			r, err := c.Check(t.Context(), &healthv1.HealthCheckRequest{Service: name})
			if err != nil {
				t.Fatal(err)
			}
			if want := ready || name == "liveness"; (r.GetStatus() == healthv1.HealthCheckResponse_SERVING) != want {
				t.Errorf("ready %t: service %q is %s", ready, name, r.GetStatus())
			}
		}
	}
	_ = conn.Close()
	g.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
