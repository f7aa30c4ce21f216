package child_test

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/child"
)

// helperEnv turns the test binary into a parent that starts a child, says so
// and hangs, for the test that kills it.
const helperEnv = "KVLANE_TEST_CHILD_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) == "" {
		os.Exit(m.Run())
	}
	_, err := child.Start(child.Spec{Name: "family", Path: "sh", Args: []string{"-c", family}, Output: os.Stdout})
	if err != nil {
		panic(err)
	}
	select {}
}

// family is a shell that ignores SIGTERM with a child that does too. Each prints its process id.
const family = `trap "" TERM; sh -c 'trap "" TERM; echo $$; sleep 600' & echo $$; wait`

// pipe is an output that the test can read lines from.
func pipe(t *testing.T) (*bufio.Reader, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return bufio.NewReader(r), w
}

// watched is a handle on a process that stays valid when its id is reused.
type watched struct{ pid, fd int }

func watch(t *testing.T, r *bufio.Reader) watched {
	t.Helper()
	line, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("read a process id: %v", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("watch process %d: %v", pid, err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return watched{pid, fd}
}

// gone waits up to ten seconds for the process's end.
func (w watched) gone(t *testing.T) {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
	deadline := time.Now().Add(10 * time.Second)
	for {
		n, err := unix.Poll(fds, int(time.Until(deadline).Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n != 1 {
			t.Fatalf("process %d is still there (%v)", w.pid, err)
		}
		return
	}
}

func TestExit(t *testing.T) {
	for _, tc := range []struct{ script, want, out string }{
		{"echo hello; echo there >&2", "", "hello\nthere\n"},
		{"exit 3", "test: exit status 3", ""},
		{"kill -9 $$", "test: signal: killed", ""},
		{`echo "$KVLANE_X"`, "", "y\n"},
	} {
		var out strings.Builder
		p, err := child.Start(child.Spec{
			Name: "test", Path: "sh", Args: []string{"-c", tc.script},
			Env: []string{"KVLANE_X=y"}, Output: &out,
		})
		if err != nil {
			t.Fatalf("%s: %v", tc.script, err)
		}
		<-p.Done()
		got := ""
		if err := p.Err(); err != nil {
			got = err.Error()
		}
		if got != tc.want || out.String() != tc.out {
			t.Errorf("%s: got error %q output %q, want %q %q", tc.script, got, out.String(), tc.want, tc.out)
		}
		p.Stop(time.Second) // after the end: nothing happens
	}
}

func TestMissingProgram(t *testing.T) {
	_, err := child.Start(child.Spec{Name: "engine 0", Path: "kvlane-no-such-program"})
	if !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "start engine 0") {
		t.Fatalf("got %v", err)
	}
}

func TestStopKillsTheGroup(t *testing.T) {
	r, w := pipe(t)
	p, err := child.Start(child.Spec{Name: "family", Path: "sh", Args: []string{"-c", family}, Output: w})
	if err != nil {
		t.Fatal(err)
	}
	a, b := watch(t, r), watch(t, r)
	p.Stop(10 * time.Millisecond)
	a.gone(t)
	b.gone(t)
	var exit *exec.ExitError
	if err := p.Err(); !errors.As(err, &exit) {
		t.Fatalf("got %v, want an exit error", err)
	}
}

func TestStopIsGentleFirst(t *testing.T) {
	r, w := pipe(t)
	script := `trap 'echo bye; exit 0' TERM; sleep 600 & echo $$; wait`
	p, err := child.Start(child.Spec{Name: "polite", Path: "sh", Args: []string{"-c", script}, Output: w})
	if err != nil {
		t.Fatal(err)
	}
	watch(t, r)
	p.Stop(10 * time.Second)
	_ = w.Close()
	out, err := io.ReadAll(r) // the shell may report the end of its own child first
	if !strings.HasSuffix(string(out), "bye\n") || err != nil || p.Err() != nil {
		t.Fatalf("got %q %v, process %v", out, err, p.Err())
	}
}

func TestOrphansGoWithTheirParent(t *testing.T) {
	r, w := pipe(t)
	p, err := child.Start(child.Spec{
		Name: "short", Path: "sh", Args: []string{"-c", `sleep 600 & exit 0`}, Output: w,
	})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	_ = w.Close()
	rest, err := io.ReadAll(r) // ends only when no process holds the pipe
	if err != nil {
		t.Fatalf("got %q %v", rest, err)
	}
}

func TestKilledParentLeavesNothing(t *testing.T) {
	r, w := pipe(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"=1")
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a, b := watch(t, r), watch(t, r)
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	a.gone(t)
	b.gone(t)
	_ = w.Close()
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Fatalf("got %q %v", rest, err)
	}
}
