package e2e_test

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kvlane/kvlane/internal/porttest"
)

// up runs `kvlane up` with these arguments to its own end and returns what it
// printed and its error.
func (f *family) up(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	p := f.run(t, "up", append([]string{"KVLANE_ENVOY=" + found.envoy}, env...), found.kvlane,
		append([]string{"up", "--dir", f.dir}, args...)...)
	err := p.wait(t, stackStart)
	return read(t, p.log), err
}

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
		{"two pickers", []string{"--redis", "embedded"}, `picker-0 +(worker-\d) +(\d+) of (\d+) tokens cached .*\n +picker-1 +worker-\d +[1-9]\d* of \d+ tokens cached`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFamily(t)
			base := porttest.Take(t, 29)
			out, err := f.up(t, nil, append([]string{"--once", "--port-base", strconv.Itoa(base)}, tc.args...)...)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, want := range []string{tc.want, `curl -s http://127\.0\.0\.1:` + strconv.Itoa(base) + `/v1/chat/completions`, `explain --admin `} {
				if !regexp.MustCompile(want).MatchString(out) {
					t.Errorf("nothing like %q in:\n%s", want, out)
				}
			}
			if err := portsFree(base, 29); err != nil {
				t.Error(err)
			}
		})
	}
}

// However up ends, its processes and ports go with it.
func TestUpLeavesNothing(t *testing.T) {
	for _, tc := range []struct {
		signal syscall.Signal
		want   string // the end of the error; empty for none
	}{{syscall.SIGTERM, ""}, {syscall.SIGKILL, "signal: killed"}} { // Ctrl-C is how all other tests end
		t.Run(tc.signal.String(), func(t *testing.T) {
			s := launch(t, 2)
			if all := s.processes(""); len(all) < 7 { // up, picker, two agents, two engines, Envoy
				t.Fatalf("only %d processes", len(all))
			}
			if err := syscall.Kill(s.process.PID(), tc.signal); err != nil {
				t.Fatal(err)
			}
			err := s.process.wait(t, grace)
			if err == nil && tc.want != "" || err != nil && (tc.want == "" || !strings.HasSuffix(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			s.awaitGone(t)
		})
	}
}

// A process that dies takes the stack down, and one line says which it was.
func TestUpDeath(t *testing.T) {
	for _, name := range []string{"picker", "worker-1", "envoy"} {
		t.Run(name, func(t *testing.T) {
			s := launch(t, 2)
			args := map[string]string{
				"picker": "kvlane epp ", "worker-1": "kvlane engine sim --listen " + s.workers[1].engineAddr, "envoy": "-c " + filepath.Join(s.dir, "envoy.yaml"),
			}[name]
			var killed int
			for _, pid := range s.processes(args) {
				if slices.Contains(s.processes("kvlane agent "), pid) {
					continue // its command line has the engine's at the end
				}
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				killed++
			}
			if killed == 0 {
				t.Fatalf("no process has %q", args)
			}
			if err := s.process.wait(t, grace); err == nil || !strings.HasSuffix(err.Error(), "exit status 1") {
				t.Errorf("got %v, want exit status 1", err)
			}
			wantLine(t, read(t, s.process.log), "kvlane: "+name+" ended (")
			s.awaitGone(t)
		})
	}
}

// What cannot start says so in one line, and starts nothing.
func TestUpRefuses(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	taken := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	base := strconv.Itoa(porttest.Take(t, 11))
	absent := filepath.Join(t.TempDir(), "envoy")
	for _, tc := range []struct {
		args []string
		env  string
		want string
	}{
		{[]string{"--port", taken}, "", "kvlane: port " + taken + " (Envoy) is in use"},
		{[]string{"--replicas", "2"}, "", "kvlane: --replicas 2: "},
		{[]string{"--redis", "embedded"}, "PATH=" + t.TempDir(), "kvlane: no redis-server on PATH; install one (Debian: sudo apt-get install redis-server)"},
		{[]string{"--deployment", "none"}, "", "kvlane: --deployment: "},
		{[]string{"--engines", "0"}, "", "kvlane: --engines 0: "},
		{nil, "KVLANE_ENVOY=" + absent, "kvlane: KVLANE_ENVOY: "},
	} {
		t.Run(tc.want, func(t *testing.T) {
			f := newFamily(t)
			args := append([]string{"--engines", "1", "--port-base", base}, tc.args...)
			out, err := f.up(t, []string{tc.env}, args...)
			if err == nil || !strings.HasSuffix(err.Error(), "exit status 1") {
				t.Errorf("got %v, want exit status 1", err)
			}
			if !strings.HasPrefix(out, tc.want) || strings.Count(out, "\n") != 1 {
				t.Errorf("got %q, want one line that starts with %q", out, tc.want)
			}
		})
	}
}

// wantLine wants exactly one line that starts with a text.
func wantLine(t *testing.T, out, start string) {
	t.Helper()
	n := 0
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, start) {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d lines start with %q in:\n%s", n, start, out)
	}
}

// awaitGone waits until no process and no port of a stack is left.
func (s *stack) awaitGone(t *testing.T) {
	t.Helper()
	waitFor(t, "end of the stack", patience, func() error {
		if left := s.processes(""); len(left) > 0 {
			return fmt.Errorf("processes %v are left", left)
		}
		return portsFree(s.ports, s.count)
	})
}
