package up

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/kvlane/kvlane/internal/porttest"
)

func TestOptions(t *testing.T) {
	datadriven.RunTest(t, "testdata/options.txt", func(t *testing.T, d *datadriven.TestData) string {
		o := Default()
		o.Binary, o.Envoy = "kvlane", "envoy"
		var base int
		d.MaybeScanArgs(t, "engines", &o.Engines)
		d.MaybeScanArgs(t, "deployment", &o.Deployment)
		d.MaybeScanArgs(t, "blocks", &o.Blocks)
		d.MaybeScanArgs(t, "block-size", &o.BlockSize)
		d.MaybeScanArgs(t, "base", &base)
		o.PD, o.Once, o.NoDemo = d.HasArg("pd"), d.HasArg("once"), d.HasArg("no-demo")
		o.RedisServer = "redis-server"
		d.MaybeScanArgs(t, "redis", &o.Redis)
		d.MaybeScanArgs(t, "replicas", &o.Replicas)
		o.Ports = o.DefaultPorts()
		if base > 0 {
			o.Ports = o.PortsFrom(base)
		}
		if err := o.Validate(); err != nil {
			return err.Error() + "\n"
		}
		switch d.Cmd {
		case "describe":
			return o.describe() + "\n"
		case "processes":
			var out strings.Builder
			for _, p := range o.processes() {
				out.WriteString(p.name + ": ")
				for _, e := range p.env {
					if strings.HasPrefix(e, "KVLANE_REDIS=") && o.Redis != "" {
						out.WriteString(e + " ")
					}
				}
				out.WriteString(p.path + " " + strings.Join(p.args, " ") + "\n")
			}
			return out.String()
		case "ports":
			var out strings.Builder
			for _, u := range o.Ports.uses() {
				fmt.Fprintf(&out, "%d %s\n", u.port, u.what)
			}
			return out.String()
		}
		d.Fatalf(t, "unknown command %s", d.Cmd)
		return ""
	})
}

func TestPorts(t *testing.T) {
	if err := Default().PortsFrom(65530).CheckFree(t.Context()); err == nil || !strings.Contains(err.Error(), "65536") {
		t.Errorf("got %v", err)
	}
	base := porttest.Take(t, 2)
	p := Ports{Envoy: base, EnvoyAdmin: base}
	if err := p.CheckFree(t.Context()); err == nil || !strings.Contains(err.Error(), "wanted for both Envoy and Envoy's admin page") {
		t.Errorf("got %v", err)
	}
	taken, err := net.Listen("tcp", addr(base))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	p.EnvoyAdmin = base + 1
	err = p.CheckFree(t.Context())
	if want := fmt.Sprintf("port %d (Envoy) is in use", base); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want it to say %q", err, want)
	}
}

// A process that dies while the stack starts is the error, with the end of its
// log; everything else is stopped.
func TestDeath(t *testing.T) {
	s := newStack(t.TempDir(), 2)
	never := func(context.Context) error { return os.ErrNotExist }
	if err := s.start(process{name: "idle", path: "sh", args: []string{"-c", "sleep 600"}}); err != nil {
		t.Fatal(err)
	}
	failing := process{name: "engine", path: "sh", args: []string{"-c", "echo one; echo two >&2; exit 7"}, up: never}
	if err := s.start(failing); err != nil {
		t.Fatal(err)
	}
	err := s.wait(t.Context(), failing)
	s.stop()
	want := "engine ended (exit status 7); its log is " + filepath.Join(s.dir, "engine.log") + " and ends with:\n    one\n    two"
	if err == nil || err.Error() != want {
		t.Fatalf("got %v\nwant %s", err, want)
	}
	for _, m := range s.members {
		<-m.Done()
	}
}

func TestMissingProgram(t *testing.T) {
	s := newStack(t.TempDir(), 2)
	defer s.stop()
	err := s.start(process{name: "envoy", path: filepath.Join(s.dir, "absent")})
	if err == nil || !strings.HasPrefix(err.Error(), "start envoy: ") {
		t.Fatalf("got %v", err)
	}
}

// A process that never answers is named when the time is over.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
		defer cancel()
		begun := time.Now()
		err := newStack("", 0).wait(ctx, process{name: "envoy", up: func(context.Context) error { return os.ErrNotExist }})
		if want := "envoy does not answer after 1m0s: file does not exist"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if took := time.Since(begun); took != startTimeout {
			t.Errorf("took %s", took)
		}
	})
}

func TestFindEnvoy(t *testing.T) {
	root := t.TempDir()
	t.Chdir(root)
	t.Setenv("PATH", root)
	t.Setenv("KVLANE_ENVOY", "")
	binary := filepath.Join(root, "bin", "kvlane")
	install := func(path string) string {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if _, err := FindEnvoy(binary); err == nil || !strings.Contains(err.Error(), "make deps") {
		t.Errorf("none: got %v", err)
	}
	install(filepath.Join(root, ".tools", "envoy", "bin", "envoy"))
	if got, err := FindEnvoy(binary); err != nil || got != filepath.Join(".tools", "envoy", "bin", "envoy") {
		t.Errorf("tools: got %s %v", got, err)
	}
	onPath := install(filepath.Join(root, "envoy"))
	if got, err := FindEnvoy(binary); err != nil || got != onPath {
		t.Errorf("PATH: got %s %v", got, err)
	}
	t.Setenv("KVLANE_ENVOY", install(filepath.Join(root, "mine")))
	if got, err := FindEnvoy(binary); err != nil || got != filepath.Join(root, "mine") {
		t.Errorf("KVLANE_ENVOY: got %s %v", got, err)
	}
	t.Setenv("KVLANE_ENVOY", filepath.Join(root, "absent"))
	if _, err := FindEnvoy(binary); err == nil || !strings.Contains(err.Error(), "KVLANE_ENVOY") {
		t.Errorf("absent: got %v", err)
	}
}

// A Redis that is not there is found out before anything starts.
func TestDeadRedis(t *testing.T) {
	o := Default()
	o.Redis, o.Dir = "redis://user:secret@"+porttest.Address(t), t.TempDir()
	err := o.askRedis(t.Context())
	if err == nil || !strings.Contains(err.Error(), "Redis at 127.0.0.1:") || !strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}
