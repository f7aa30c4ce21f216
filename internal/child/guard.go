package child

import (
	"errors"
	"io"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// guardScript waits for the end of its input, which is the parent's death, and
// kills its own process group. Being asked to stop is for the others in the
// group: it ignores that.
const guardScript = `trap "" TERM INT HUP; read -r _; kill -s KILL 0`

// guard is a process that leads a child's process group and survives the
// parent to kill it. The zero guard does nothing.
type guard struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

// startGuard makes a process group with only a guard in it. It starts before
// the child, so that there is no moment without a guard. A system without a
// shell has none: there the kernel still kills the child itself.
func startGuard() (guard, error) {
	sh, err := exec.LookPath("sh")
	if errors.Is(err, exec.ErrNotFound) {
		return guard{}, nil
	}
	if err != nil {
		return guard{}, err
	}
	cmd := exec.Command(sh, "-c", guardScript, "kvlane-guard") //nolint:noctx // dismiss ends it
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return guard{}, err
	}
	if err := cmd.Start(); err != nil {
		return guard{}, err
	}
	return guard{cmd, stdin}, nil
}

// group is the guard's process group; 0, which stands for a new group, without a guard.
func (g guard) group() int {
	if g.cmd == nil {
		return 0
	}
	return g.cmd.Process.Pid
}

// dismiss ends the guard and whatever is left of its group.
func (g guard) dismiss() {
	if g.cmd == nil {
		return
	}
	_ = unix.Kill(-g.group(), unix.SIGKILL)
	_ = g.stdin.Close()
	_ = g.cmd.Wait() // "signal: killed" is what was asked for
}
