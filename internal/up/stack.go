package up

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kvlane/kvlane/internal/child"
)

// process is one program of the stack.
type process struct {
	name string
	path string
	args []string
	env  []string
	// where is what it listens on, for people.
	where string
	// up asks whether it answers.
	up func(context.Context) error
	// Once the stack is up it goes on without a spare process, and without one of a
	// group while another of it is left.
	spare bool
	group string
}

// member is a running process with its log.
type member struct {
	*child.Process
	log   string
	spare bool
	group string
}

// stack is what has been started so far.
type stack struct {
	dir     string
	members []member
	dead    chan member // gets those that end, in order; has room for all
	watch   sync.WaitGroup
	groups  map[string]int // how many of each are left
}

// newStack has room for n processes.
func newStack(dir string, n int) *stack {
	return &stack{dir: dir, dead: make(chan member, n), groups: map[string]int{}}
}

// start runs a program with a log of its own. The log is new at each start.
func (s *stack) start(p process) error {
	path := filepath.Join(s.dir, p.name+".log")
	log, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("create log: %w", err)
	}
	defer func() { _ = log.Close() }() // the child has its own
	c, err := child.Start(child.Spec{Name: p.name, Path: p.path, Args: p.args, Env: p.env, Output: log})
	if err != nil {
		return err
	}
	m := member{c, path, p.spare, p.group}
	s.members = append(s.members, m)
	s.groups[m.group]++
	s.watch.Go(func() {
		<-c.Done()
		s.dead <- m
	})
	return nil
}

// survives takes m, which has ended, off its group and reports whether the
// stack can go on without it.
func (s *stack) survives(m member) bool {
	s.groups[m.group]--
	return m.spare || m.group != "" && s.groups[m.group] > 0
}

// stop ends everything and returns when it is gone.
func (s *stack) stop() {
	var stopping sync.WaitGroup
	for _, m := range s.members {
		stopping.Go(func() { m.Stop(stopGrace) })
	}
	stopping.Wait()
	s.watch.Wait()
}

// how a process has ended.
func (m member) how() string {
	if err := m.Err(); err != nil {
		return strings.TrimPrefix(err.Error(), m.Name()+": ")
	}
	return "exit status 0"
}

// deathOf is the error for a process that ended by itself.
func deathOf(m member) error {
	err := fmt.Errorf("%s ended (%s); its log is %s", m.Name(), m.how(), m.log)
	if last := lastLines(m.log, 5); last != "" {
		err = fmt.Errorf("%w and ends with:\n%s", err, last)
	}
	return err
}

// lastLines is the end of a log, indented; empty if there is none.
func lastLines(path string, n int) string {
	const most = 4096
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	if len(data) > most {
		data = data[len(data)-most:]
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	lines = lines[max(0, len(lines)-n):]
	if len(lines) == 1 && lines[0] == "" {
		return ""
	}
	return "    " + strings.Join(lines, "\n    ")
}

// askEvery is the pause between two questions whether a process is up.
const askEvery = 50 * time.Millisecond

// wait asks until the process is up, one dies, or ctx ends.
func (s *stack) wait(ctx context.Context, p process) error {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		last := p.up(ctx)
		if last == nil {
			return nil
		}
		select {
		case m := <-s.dead:
			return deathOf(m)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("%s does not answer after %s: %w", p.name, startTimeout, last)
			}
			return ctx.Err()
		case <-tick.C:
		}
	}
}
