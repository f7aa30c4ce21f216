package protocol

import (
	"context"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/kvlane/kvlane/internal/config"
	"github.com/kvlane/kvlane/internal/epp"
	"github.com/kvlane/kvlane/internal/porttest"
)

// patience bounds an answer on a busy machine under the race detector.
const patience = 30 * time.Second

// startPicker runs our picker, with limits that the suite can reach, until the end
// of the test.
func startPicker(t *testing.T) Target {
	t.Helper()
	c := config.Default()
	c.ExtProc.MaxBodyBytes = 6 << 20
	c.ExtProc.BodyIdleTimeout, c.ExtProc.BodyTimeout = 2*time.Second, 10*time.Second
	c.ExtProc.LeaveStreaming = false // the suite's endpoints are no agents, nobody reports their ends
	c.Picker.MaxRequests = 50
	port := porttest.Take(t, 4)
	l := epp.Listen{ExtProc: porttest.Join(port), Health: porttest.Join(port + 1), Log: porttest.Join(port + 2), Admin: porttest.Join(port + 3)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- epp.Run(ctx, c, epp.Options{Listen: l, Secret: "secret"}, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for end := time.Now().Add(patience); ; {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Log)
		if err == nil {
			_ = conn.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	return Target{
		Name: "kvlane", Address: l.ExtProc, Health: l.Health, Log: l.Log,
		MaxBody: c.ExtProc.MaxBodyBytes, MaxRequests: c.Picker.MaxRequests, BodyTimeout: c.ExtProc.BodyIdleTimeout,
	}
}

// run runs the suite; every check that fails or does not apply is a fault.
func run(t *testing.T, target Target, o Options) {
	t.Helper()
	o.Timeout = patience
	start := time.Now()
	o.Progress = func(r Result) {
		switch {
		case r.Outcome == Failed:
			t.Errorf("%s: %v\n%s", r.ID, r.Failure, lines(r.Failure.Messages))
		case r.Outcome == NotApplicable:
			t.Logf("%s: %s", r.ID, r.Reason)
		case r.Ms > 1000:
			t.Logf("%s took %.1f s", r.ID, r.Ms/1000)
		}
	}
	report, err := Run(t.Context(), target, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s, in %v", report.Summary(), time.Since(start).Round(time.Millisecond))
}

func lines(all []string) string {
	out := ""
	for _, l := range all {
		out += "    " + l + "\n"
	}
	return out
}

// TestOwnPicker: our picker keeps every rule, over gRPC.
func TestOwnPicker(t *testing.T) {
	run(t, startPicker(t), Options{Only: regexp.MustCompile(`^([^e]|e[^n])`)})
}

// TestOwnPickerBehindEnvoy: and through a stock Envoy.
func TestOwnPickerBehindEnvoy(t *testing.T) {
	target := startPicker(t)
	target.Envoy = binary(t)
	run(t, target, Options{Only: regexp.MustCompile(`^envoy/`)})
}

// TestTLS: a picker with a certificate of its own is tested like any other, also
// through Envoy.
func TestTLS(t *testing.T) {
	web := httptest.NewTLSServer(nil)
	certificate := web.TLS.Certificates[0]
	web.Close()
	target := startPicker(t)
	target.Address, target.TLS = detour(t, target.Address, distortion{}, grpc.Creds(credentials.NewServerTLSFromCert(&certificate))), true
	target.Envoy, target.Health = binary(t), ""
	run(t, target, Options{Only: regexp.MustCompile(`^(order/headers-once|envoy/post)$`)})
}

// binary is KVLANE_ENVOY, the PATH's envoy, or the one that `make deps` installed.
func binary(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("KVLANE_ENVOY"); p != "" {
		return p
	}
	if p, err := exec.LookPath("envoy"); err == nil {
		return p
	}
	p, err := filepath.Abs("../../.tools/envoy/bin/envoy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		t.Fatal("no Envoy found: run `make deps`, or name one in KVLANE_ENVOY")
	}
	return p
}
