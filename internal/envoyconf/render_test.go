package envoyconf_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kvlane/kvlane/internal/envoyconf"
)

// envoy is the binary to check with: KVLANE_ENVOY, the PATH, or the one that
// `make deps` put into the checkout.
func envoy(t *testing.T) string {
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

func options() envoyconf.Options {
	o := envoyconf.Default()
	o.Endpoints = []string{"192.0.2.10:8000", "[2001:db8::10]:8000"}
	o.StripHeaders = []string{"x-gateway-destination-endpoint", "x-prefiller-host-port"}
	return o
}

// TestEnvoyAccepts renders every shape of the options and has Envoy check it.
func TestEnvoyAccepts(t *testing.T) {
	bin := envoy(t)
	for name, change := range map[string]func(*envoyconf.Options){
		"defaults":        func(*envoyconf.Options) {},
		"response bodies": func(o *envoyconf.Options) { o.ResponseBodies = true },
		"no admin":        func(o *envoyconf.Options) { o.Admin = "" },
		"no retries":      func(o *envoyconf.Options) { o.Retries = 0 },
		"nothing to strip": func(o *envoyconf.Options) {
			o.StripHeaders = nil
		},
		"picker by name": func(o *envoyconf.Options) { o.ExtProc = []string{"picker.kvlane.svc.cluster.local:9002"} },
		"two pickers":    func(o *envoyconf.Options) { o.ExtProc = []string{"192.0.2.1:9002", "192.0.2.2:9002"} },
		"an address and a name": func(o *envoyconf.Options) {
			o.ExtProc = []string{"192.0.2.1:9002", "picker.kvlane.svc.cluster.local:9002"}
		},
		"IPv6 everywhere": func(o *envoyconf.Options) {
			o.Listen, o.Admin, o.ExtProc = "[::]:8080", "[::1]:9901", []string{"[::1]:9002"}
		},
		"the same endpoint twice": func(o *envoyconf.Options) { o.Endpoints = append(o.Endpoints, o.Endpoints[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			o := options()
			change(&o)
			b, err := envoyconf.Render(o)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "envoy.yaml")
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			out, err := exec.CommandContext(ctx, bin, "--mode", "validate", "--log-level", "warn", "-c", file).CombinedOutput()
			if err != nil {
				t.Errorf("envoy --mode validate: %v\n%s\n%s", err, out, b)
			}
		})
	}
}

// TestValidateListsAllFaults checks that faults come together, and that no
// value can carry YAML of its own.
func TestValidateListsAllFaults(t *testing.T) {
	o := options()
	o.Listen = "8080"
	o.Admin = "localhost:9901"
	o.ExtProc = []string{"127.0.0.1:9002", "picker\n:9002"}
	o.Endpoints = []string{"worker:8000", "192.0.2.1:0", "192.0.2.1:8000\"}", "[fe80::1%\"x]:80"}
	o.StripHeaders = []string{"X-Upper", "a: b", ""}
	o.MessageTimeout = 0
	o.ConnectTimeout = 2 * time.Hour
	o.Retries = 11
	o.MaxRequestBytes = 0
	o.ConnectionBufferBytes = -1
	o.MaxRequests = 1 << 31
	_, err := envoyconf.Render(o)
	if err == nil {
		t.Fatal("faulty options accepted")
	}
	for _, want := range []string{
		`listen "8080"`, `admin "localhost:9901"`, `ext-proc "picker\n:9002"`,
		`endpoint "worker:8000"`, `endpoint "192.0.2.1:0"`, `endpoint "192.0.2.1:8000\"}"`,
		`strip header "X-Upper"`, `strip header "a: b"`, `strip header ""`,
		"message timeout 0s", "connect timeout 2h0m0s", "retries 11", "max request bytes 0", "connection buffer bytes -1", "max requests 2147483648",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("want %q among the faults:\n%v", want, err)
		}
	}
	o = options()
	o.Endpoints, o.ExtProc = nil, nil
	for _, want := range []string{"endpoints: want at least one", "ext-proc: want at least one"} {
		if _, err := envoyconf.Render(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// FuzzRender: whatever is accepted is YAML of the expected outline.
func FuzzRender(f *testing.F) {
	f.Add("127.0.0.1:8080", "[::1]:1", "picker:9002", "192.0.2.1:8000", "x-a")
	f.Add("[fe80::1%eth0]:80", "", "a.b:1", "[::ffff:1.2.3.4]:5", "x_b")
	f.Fuzz(func(t *testing.T, listen, admin, extProc, endpoint, header string) {
		o := envoyconf.Default()
		o.Listen, o.Admin, o.ExtProc, o.Endpoints, o.StripHeaders = listen, admin, []string{extProc}, []string{endpoint}, []string{header}
		b, err := envoyconf.Render(o)
		if err != nil {
			return
		}
		var doc struct {
			Admin  any `yaml:"admin"`
			Static struct {
				Listeners []any `yaml:"listeners"`
				Clusters  []any `yaml:"clusters"`
			} `yaml:"static_resources"`
		}
		dec := yaml.NewDecoder(strings.NewReader(string(b)))
		dec.KnownFields(true)
		if err := dec.Decode(&doc); err != nil {
			t.Fatalf("not the YAML we meant: %v\n%s", err, b)
		}
		if len(doc.Static.Listeners) != 1 || len(doc.Static.Clusters) != 2 {
			t.Fatalf("want one listener and two clusters:\n%s", b)
		}
	})
}
