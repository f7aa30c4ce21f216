package e2e_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/up"
)

// root is the repository; tests run in their package's folder.
const root = "../.."

// binary is the kvlane under test.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "kvlane-e2e-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "kvlane")
	build := exec.Command("go", "build", raceFlag, "-o", binary, "./cmd/kvlane")
	build.Dir, build.Stdout, build.Stderr = root, os.Stderr, os.Stderr
	code := 1
	if err := build.Run(); err == nil {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// stack is a running `kvlane up`.
type stack struct {
	cmd   *exec.Cmd
	ports up.Ports
	dir   string // its logs
	out   *bufio.Reader
	text  strings.Builder // of out, as far as it was read
	err   bytes.Buffer
}

// startUp runs `kvlane up` on free ports. The test's end stops it.
func startUp(t *testing.T, engines int, args ...string) *stack {
	t.Helper()
	base := freeBase(t, engines)
	s := &stack{ports: up.PortsFrom(base, engines), dir: t.TempDir()}
	s.cmd = exec.Command(binary, append([]string{
		"up", "--port-base", strconv.Itoa(base), "--dir", s.dir, "--engines", strconv.Itoa(engines),
	}, args...)...)
	s.cmd.Dir, s.cmd.Stderr = root, &s.err
	pipe, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.out = bufio.NewReader(io.TeeReader(pipe, &s.text))
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Signal(os.Interrupt)
		_, _ = io.Copy(io.Discard, s.out)
		_ = s.cmd.Wait()
		if t.Failed() {
			t.Logf("up printed:\n%s%s", s.text.String(), s.err.String())
			s.logLogs(t)
		}
	})
	return s
}

// startReady is startUp, without a demo, once the stack answers.
func startReady(t *testing.T, engines int, args ...string) *stack {
	t.Helper()
	s := startUp(t, engines, append([]string{"--no-demo"}, args...)...)
	s.waitFor(t, "ready")
	return s
}

// waitFor reads lines until one has the word.
func (s *stack) waitFor(t *testing.T, word string) {
	t.Helper()
	for {
		line, err := s.out.ReadString('\n')
		if strings.Contains(line, word) {
			return
		}
		if err != nil {
			t.Fatalf("no line with %q: %v", word, err)
		}
	}
}

// end waits for the process's end and returns its exit status.
func (s *stack) end(t *testing.T) int {
	t.Helper()
	if _, err := io.Copy(io.Discard, s.out); err != nil {
		t.Fatal(err)
	}
	err := s.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *stack) logLogs(t *testing.T) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(s.dir, "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range logs {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		t.Logf("%s ends with:\n%s", filepath.Base(path), data[max(0, len(data)-3000):])
	}
}

// freeBase finds consecutive free ports below those that the kernel gives to
// clients.
func freeBase(t *testing.T, engines int) int {
	t.Helper()
	var err error
	for range 100 {
		base := 10000 + rand.IntN(200)*100
		if err = up.PortsFrom(base, engines).CheckFree(); err == nil {
			return base
		}
	}
	t.Fatalf("no free ports: %v", err)
	return 0
}

// process is a handle on a process that stays valid when its id is reused.
type process struct {
	pid, fd int
	args    string
}

// descendants are the processes that a process started, directly or not.
func descendants(t *testing.T, pid int) []process {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	parents := map[int]int{}
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // gone
		}
		// pid (name) state parent ...; a name may have spaces and brackets.
		after := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parents[child], _ = strconv.Atoi(after[1])
	}
	var found []process
	for child := range parents {
		for p := child; p > 1; p = parents[p] {
			if parents[p] == pid {
				found = append(found, handle(t, child))
				break
			}
		}
	}
	slices.SortFunc(found, func(a, b process) int { return a.pid - b.pid })
	return found
}

func handle(t *testing.T, pid int) process {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("watch process %d: %v", pid, err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		t.Fatal(err)
	}
	return process{pid, fd, strings.ReplaceAll(string(args), "\x00", " ")}
}

// kill ends a process without asking it.
func (p process) kill(t *testing.T) {
	t.Helper()
	if err := unix.PidfdSendSignal(p.fd, syscall.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
}

// gone waits up to ten seconds for the process's end.
func (p process) gone(t *testing.T) {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	deadline := time.Now().Add(10 * time.Second)
	for {
		n, err := unix.Poll(fds, max(0, int(time.Until(deadline).Milliseconds())))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n != 1 {
			t.Errorf("process %d is still there (%v): %s", p.pid, err, p.args)
		}
		return
	}
}
