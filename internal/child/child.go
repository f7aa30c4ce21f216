package child

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pipeDelay is how long the output of a finished group may take to drain. Only
// a descendant that left the group can keep the pipe open that long.
const pipeDelay = 2 * time.Second

// Spec is a program to run.
type Spec struct {
	// Name is what errors call the process.
	Name string
	// Path is the program, looked up in PATH if it has no slash.
	Path string
	Args []string // without the program's name
	// Env is added to the parent's environment, as "KEY=value".
	Env []string
	// Output receives standard output and standard error; nil discards them. An
	// *os.File is handed to the process itself.
	Output io.Writer
}

// Process is a running program with its process group.
type Process struct {
	name       string
	pid, group int
	done       chan struct{}

	mu    sync.Mutex
	ended bool  // the group's id may belong to somebody else from now on
	err   error // set before done closes
}

// Start runs the program in a process group of its own. The caller must call
// [Process.Stop] or wait for [Process.Done].
func Start(spec Spec) (*Process, error) {
	p := &Process{name: spec.Name, done: make(chan struct{})}
	cmd := exec.Command(spec.Path, spec.Args...) //nolint:noctx // Stop ends the whole group, a context only the child
	cmd.Env = append(os.Environ(), spec.Env...)
	cmd.Stdout, cmd.Stderr = spec.Output, spec.Output
	cmd.WaitDelay = pipeDelay

	started := make(chan error)
	go p.run(cmd, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	return p, nil
}

// run starts the program and waits for it on one thread: the kernel sends
// Pdeathsig when the thread that forked ends, so that thread has to live as
// long as the child.
func (p *Process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g, err := startGuard()
	if err != nil {
		started <- fmt.Errorf("guard: %w", err)
		return
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: g.group(), Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		g.dismiss()
		started <- err
		return
	}
	p.pid, p.group = cmd.Process.Pid, g.group()
	if p.group == 0 {
		p.group = p.pid
	}
	started <- nil
	p.wait(cmd, g)
	close(p.done)
}

// wait returns when the whole group is gone.
func (p *Process) wait(cmd *exec.Cmd, g guard) {
	// WNOWAIT leaves the child a zombie, so that the group's id cannot be given
	// to another process before the rest of the group is killed.
	for {
		err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	p.mu.Lock()
	_ = unix.Kill(-p.group, unix.SIGKILL)
	p.ended = true
	p.mu.Unlock()

	err := cmd.Wait()
	g.dismiss()
	if err != nil {
		p.mu.Lock()
		p.err = fmt.Errorf("%s: %w", p.name, err)
		p.mu.Unlock()
	}
}

// Name is the Spec's name.
func (p *Process) Name() string { return p.name }

// PID is the process id.
func (p *Process) PID() int { return p.pid }

// Done is closed when the process and its group have ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the process ended: nil while it runs and after exit status 0,
// else an error that names it and wraps an [*exec.ExitError].
func (p *Process) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Stop asks the group to end (SIGTERM), kills it after grace, and returns when
// it is gone. It may be called more than once and after the end.
func (p *Process) Stop(grace time.Duration) {
	p.signal(unix.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return
	case <-timer.C:
	}
	p.signal(unix.SIGKILL)
	<-p.done
}

// signal reaches the whole group; a group that has ended is left alone.
func (p *Process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		_ = unix.Kill(-p.group, sig)
	}
}
