package e2e_test

import (
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Once shows that the follow-up went where its conversation lies, and leaves
// nothing behind.
func TestUpOnce(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want string // a line of the table
	}{
		{"aggregated", nil, `follow-up +worker-\d +\d+ +[1-9]\d* +[1-9]\d* .* cached`},
		{"prefill and decode", []string{"--pd"}, `at once \d +worker-[23] > worker-[01] .* prefill`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := startUp(t, 4, append([]string{"--once"}, tc.args...)...)
			if code := s.end(t); code != 0 {
				t.Fatalf("exit status %d", code)
			}
			if !regexp.MustCompile(tc.want).MatchString(s.text.String()) {
				t.Errorf("no line like %q", tc.want)
			}
			if err := s.ports.CheckFree(); err != nil {
				t.Error(err)
			}
		})
	}
}

// However up ends, its processes and ports go with it.
func TestUpLeavesNothing(t *testing.T) {
	for _, tc := range []struct {
		signal os.Signal
		code   int
	}{{os.Interrupt, 0}, {syscall.SIGTERM, 0}, {os.Kill, -1}} {
		t.Run(tc.signal.String(), func(t *testing.T) {
			s := startReady(t, 2)
			all := descendants(t, s.cmd.Process.Pid)
			if len(all) < 6 { // picker, two agents, two engines, Envoy
				t.Fatalf("only %d processes", len(all))
			}
			if err := s.cmd.Process.Signal(tc.signal); err != nil {
				t.Fatal(err)
			}
			if code := s.end(t); code != tc.code {
				t.Errorf("exit status %d, want %d", code, tc.code)
			}
			for _, p := range all {
				p.gone(t)
			}
			if err := s.ports.CheckFree(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A process that dies takes the stack down, and one line says which it was.
func TestUpDeath(t *testing.T) {
	for name, args := range map[string]string{
		"picker": " epp --config ", "worker-1": "engine sim --listen 127.0.0.1:", "envoy": "envoy.yaml",
	} {
		t.Run(name, func(t *testing.T) {
			s := startReady(t, 2)
			all := descendants(t, s.cmd.Process.Pid)
			if name == "worker-1" {
				args += strconv.Itoa(s.ports.Engines[1].Engine)
			}
			killed := false
			for _, p := range all {
				if strings.Contains(p.args, args) && !strings.Contains(p.args, " agent ") {
					p.kill(t)
					killed = true
				}
			}
			if !killed {
				t.Fatalf("no process has %q", args)
			}
			if code := s.end(t); code != 1 {
				t.Errorf("exit status %d, want 1", code)
			}
			if want := "kvlane: " + name + " ended ("; !strings.HasPrefix(s.err.String(), want) {
				t.Errorf("got %q, want it to start with %q", s.err.String(), want)
			}
			for _, p := range all {
				p.gone(t)
			}
		})
	}
}

func TestUpRefuses(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	for want, args := range map[string][]string{
		"kvlane: port " + port + " (Envoy) is in use": {"--port", port},
		"kvlane: --redis: ":                           {"--redis", "redis://127.0.0.1:6379"},
		"kvlane: --deployment: ":                      {"--deployment", "none"},
	} {
		s := startUp(t, 1, args...)
		if code := s.end(t); code != 1 || !strings.HasPrefix(s.err.String(), want) || strings.Count(s.err.String(), "\n") != 1 {
			t.Errorf("%v: exit status %d, %q; want 1 and one line that starts with %q", args, code, s.err.String(), want)
		}
	}
}
