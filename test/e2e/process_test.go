package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/child"
)

const (
	// patience bounds what a healthy system does in well under a second; the rest
	// is for a busy machine.
	patience = 20 * time.Second
	// grace is how long a process may take to end by itself. kvlane up gives its
	// own children five seconds.
	grace = 15 * time.Second
	// markName is a variable in the environment of every process that a test
	// starts. Children inherit it, which is how those left behind are found.
	markName = "KVLANE_E2E_TEST"
)

// waitFor asks until ok returns nil.
func waitFor(t *testing.T, what string, limit time.Duration, ok func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit) // also in a cleanup
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		case <-tick.C:
		}
	}
}

// family is a folder for logs and a mark for all processes of one test.
type family struct {
	dir, mark string
}

// newFamily checks at the end of the test that no process is left and that no
// log tells of a race. On a failure it shows the ends of all logs.
func newFamily(t *testing.T) *family {
	t.Helper()
	f := &family{dir: t.TempDir(), mark: fmt.Sprintf("%s=%d-%d", markName, os.Getpid(), rand.Uint64())}
	t.Cleanup(func() {
		waitFor(t, "end of all processes", patience, func() error {
			if left := f.processes(""); len(left) > 0 {
				return fmt.Errorf("left behind: %v", left)
			}
			return nil
		})
		f.checkLogs(t)
	})
	return f
}

func (f *family) checkLogs(t *testing.T) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(f.dir, "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range logs {
		text := read(t, path)
		if i := strings.Index(text, "WARNING: DATA RACE"); i >= 0 {
			t.Errorf("%s: %.6000s", filepath.Base(path), text[i:])
		}
		if i := strings.Index(text, "\npanic: "); i >= 0 {
			t.Errorf("%s: %.6000s", filepath.Base(path), text[i:])
		}
	}
	if !t.Failed() {
		return
	}
	for _, path := range logs {
		text := read(t, path)
		t.Logf("end of %s:\n%s", filepath.Base(path), text[max(0, len(text)-2500):])
	}
}

// process is a running program with its output in a file.
type process struct {
	*child.Process
	log string
}

// start runs a program until the end of the test.
func (f *family) start(t *testing.T, name, path string, args ...string) *process {
	t.Helper()
	p := f.run(t, name, nil, path, args...)
	t.Cleanup(func() { p.Stop(grace) })
	return p
}

// run starts a program; the caller waits for its end.
func (f *family) run(t *testing.T, name string, env []string, path string, args ...string) *process {
	t.Helper()
	log, err := os.Create(filepath.Join(f.dir, name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close() // the child has its own
	c, err := child.Start(child.Spec{Name: name, Path: path, Args: args, Env: append(env, f.mark), Output: log})
	if err != nil {
		t.Fatal(err)
	}
	return &process{c, log.Name()}
}

// wait returns the program's error, nil for exit status 0.
func (p *process) wait(t *testing.T, limit time.Duration) error {
	t.Helper()
	select {
	case <-p.Done():
		return p.Err()
	case <-time.After(limit):
		p.Stop(time.Second)
		t.Fatalf("%s does not end within %v:\n%s", p.Name(), limit, read(t, p.log))
		return nil
	}
}

// awaitLine waits until the program has printed a text.
func (p *process) awaitLine(t *testing.T, text string, limit time.Duration) {
	t.Helper()
	waitFor(t, p.Name()+" to print "+strconv.Quote(text), limit, func() error {
		select {
		case <-p.Done():
			t.Fatalf("%s ended: %v\n%s", p.Name(), p.Err(), read(t, p.log))
		default:
		}
		if out := read(t, p.log); !strings.Contains(out, text) {
			return fmt.Errorf("it printed:\n%s", out)
		}
		return nil
	})
}

// processes are the ids of the family's processes whose command line contains a
// text; all of them for an empty one.
func (f *family) processes(text string) []int {
	var out []int
	environments, _ := filepath.Glob("/proc/[0-9]*/environ") // a bad pattern is the only error
	for _, path := range environments {
		env, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(env, []byte(f.mark)) {
			continue // gone, or of another user
		}
		line, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err != nil || !strings.Contains(string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})), text) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

func portsFree(base, n int) error {
	for port := base; port < base+n; port++ {
		l, err := net.Listen("tcp", addr(port))
		if err != nil {
			return err
		}
		_ = l.Close() // it served only to ask
	}
	return nil
}

func addr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
