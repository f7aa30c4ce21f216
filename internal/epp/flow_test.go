package epp

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/kvlane/kvlane/internal/config"
	"github.com/kvlane/kvlane/kvindex"
)

// A request that waits for room goes when the log says that a worker has some.
func TestWaitingRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := config.Default()
		c.Picker.MaxRequests, c.ExtProc.Flow.Enabled = 1, true
		p, err := build(c, Options{Secret: "secret"}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 2)
		listener, server := bufconn.Listen(1<<20), grpc.NewServer()
		p.server.Register(server)
		go func() { done <- server.Serve(listener) }()
		go func() { done <- p.server.Run(ctx) }()
		hello(t, p, "10.0.0.1", kvindex.RoleAggregated)
		load := func(running uint32) {
			record := kvindex.Record{Owner: kvindex.Owner{Worker: "10.0.0.1"}, Epoch: 1, Term: 1, Kind: kvindex.KindLoad, Load: &kvindex.Load{Running: running}}
			if err := p.follower.apply([]kvindex.Record{record}); err != nil {
				t.Fatal(err)
			}
		}
		load(1)
		conn, err := grpc.NewClient("passthrough:///picker", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		answered := make(chan *extprocv3.ProcessingResponse, 10)
		ask(ctx, t, conn, answered)
		synctest.Wait()
		if len(answered) != 0 {
			t.Fatalf("answered although no worker has room: %v", <-answered)
		}
		began := time.Now()
		load(0)
		if a := <-answered; a.GetRequestHeaders() == nil {
			t.Errorf("got %v, want the headers' answer", a)
		}
		if d := time.Since(began); d > 10*time.Millisecond { // the bubble's clock
			t.Errorf("it went %v after the report", d)
		}
		cancel()
		_ = conn.Close()
		server.Stop()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// ask sends a request and passes on what it is answered.
func ask(ctx context.Context, t *testing.T, conn *grpc.ClientConn, answered chan<- *extprocv3.ProcessingResponse) {
	t.Helper()
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	headers := []*corev3.HeaderValue{{Key: ":method", Value: "POST"}, {Key: ":path", Value: "/v1/completions"}}
	for _, m := range []*extprocv3.ProcessingRequest{
		{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: headers}}}},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{
			Body: []byte(`{"model":"m","prompt":"hello"}`), EndOfStream: true,
		}}},
	} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		for {
			a, err := stream.Recv()
			if err != nil {
				return
			}
			answered <- a
		}
	}()
}
