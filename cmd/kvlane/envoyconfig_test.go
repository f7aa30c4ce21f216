package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/extproc"
)

// updateSamples writes rendered samples anew in place of comparing them.
var updateSamples = flag.Bool("update", false, "write manifests/envoy/bootstrap.yaml anew")

const sampleFile = "../../manifests/envoy/bootstrap.yaml"

// envoyBinary is KVLANE_ENVOY, the PATH's, or the one that `make deps` installed.
func envoyBinary(t *testing.T) string {
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

func printConfig(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newEnvoyConfigCommand()
	cmd.SetOut(&out)
	cmd.SetErr(&bytes.Buffer{})
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

// TestEnvoySample checks that the sample is what the command prints today and
// that Envoy accepts it.
func TestEnvoySample(t *testing.T) {
	got, err := printConfig(t, "--endpoints", "192.0.2.10:8000,192.0.2.11:8000")
	if err != nil {
		t.Fatal(err)
	}
	if *updateSamples {
		if err := os.WriteFile(sampleFile, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(sampleFile)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not what the command prints; write it anew with go test ./cmd/kvlane -run EnvoySample -update", sampleFile)
	}
	for _, h := range extproc.RoutingHeaders() {
		if !strings.Contains(got, `- {remove: "`+h+`"}`) {
			t.Errorf("header %s is not removed from what clients send", h)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, envoyBinary(t), "--mode", "validate", "--log-level", "warn", "-c", sampleFile).CombinedOutput()
	if err != nil {
		t.Errorf("envoy --mode validate: %v\n%s", err, out)
	}
}

func TestEnvoyConfigFaults(t *testing.T) {
	if out, err := printConfig(t, "--listen", "8080"); err == nil || strings.Contains(out, "static_resources") ||
		!strings.Contains(err.Error(), "endpoints") || !strings.Contains(err.Error(), `listen "8080"`) {
		t.Errorf("want both faults and no configuration, got %v and %q", err, out)
	}
}
