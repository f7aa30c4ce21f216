package observability_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/observability"
)

func TestLogger(t *testing.T) {
	for _, tc := range []struct {
		format observability.Format
		want   string
	}{
		{observability.Text, `level=INFO msg=picked worker=a` + "\n"},
		{observability.JSON, `"level":"INFO","msg":"picked","worker":"a"}` + "\n"},
	} {
		var out strings.Builder
		log, err := observability.NewLogger(&out, slog.LevelInfo, tc.format)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("not shown")
		log.Info("picked", "worker", "a")
		if got := out.String(); !strings.HasSuffix(got, tc.want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: got %q, want it to end in %q", tc.format, got, tc.want)
		}
	}
	if _, err := observability.NewLogger(io.Discard, slog.LevelInfo, "xml"); err == nil {
		t.Error("format xml was taken")
	}
}

func TestAdmin(t *testing.T) {
	var ready error
	admin := observability.Admin{Gatherer: observability.NewRegistry(), Ready: func() error { return ready }}
	with := admin
	with.Pprof = true
	for _, tc := range []struct {
		path, body string
		admin      observability.Admin
		ready      error
		status     int
	}{
		{path: "/healthz", body: "ok\n", admin: admin, status: 200},
		{path: "/healthz", body: "no workers\n", admin: admin, ready: errors.New("no workers"), status: 503},
		{path: "/metrics", body: "go_goroutines", admin: admin, status: 200},
		{path: "/debug/pprof/", admin: admin, status: 404},
		{path: "/debug/pprof/cmdline", admin: with, status: 200},
	} {
		ready = tc.ready
		w := httptest.NewRecorder()
		tc.admin.Mux().ServeHTTP(w, httptest.NewRequest(http.MethodGet, tc.path, nil))
		if w.Code != tc.status || !strings.Contains(w.Body.String(), tc.body) {
			t.Errorf("%s: got %d %q, want %d %q", tc.path, w.Code, w.Body, tc.status, tc.body)
		}
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- observability.Serve(ctx, listener, http.NotFoundHandler()) }()
	resp, err := http.Get("http://" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	cancel()
	if err := <-done; err != nil || resp.StatusCode != http.StatusNotFound {
		t.Fatalf("got status %d, end %v", resp.StatusCode, err)
	}
}
