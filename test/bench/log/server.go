package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// server is the redis-server under test.
type server struct {
	url string
	cmd *exec.Cmd
	dir string
}

// startServer starts one on a loopback port, without persistence.
func startServer(ctx context.Context) (*server, error) {
	dir, err := os.MkdirTemp("", "bench-log")
	if err != nil {
		return nil, fmt.Errorf("make directory for redis-server: %w", err)
	}
	s := &server{dir: dir}
	// A socket in the directory cannot be somebody else's, as a port could.
	socket := filepath.Join(dir, "redis.sock")
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	s.url = "redis://127.0.0.1:" + strconv.Itoa(port)
	s.cmd = exec.CommandContext(ctx, "redis-server", "--port", strconv.Itoa(port), "--bind", "127.0.0.1",
		"--unixsocket", socket, "--save", "", "--dir", dir)
	if err := s.cmd.Start(); err != nil {
		s.stop()
		return nil, fmt.Errorf("start redis-server (Debian: apt-get install redis-server): %w", err)
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket); err == nil {
			_ = c.Close() // it is there
			return s, nil
		}
		select {
		case <-ctx.Done():
			s.stop()
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	s.stop()
	return nil, fmt.Errorf("redis-server did not start on port %d", port)
}

// freePort asks the kernel. Another process may take the port meanwhile; then
// redis-server ends and says so.
func freePort(ctx context.Context) (int, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a port for redis-server: %w", err)
	}
	defer func() { _ = l.Close() }() // it was only to learn the number
	a, _ := l.Addr().(*net.TCPAddr)
	return a.Port, nil
}

func (s *server) stop() {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Kill() // it has nothing to keep
		_ = s.cmd.Wait()
	}
	_ = os.RemoveAll(s.dir) // the system's to clean, if it cannot be
}

// cpu is the processor time that redis-server has used; 0 where it cannot be read.
func (s *server) cpu() time.Duration {
	if s == nil {
		return 0
	}
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid), "stat"))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(text))
	if len(f) < 15 {
		return 0
	}
	user, _ := strconv.ParseInt(f[13], 10, 64)
	system, _ := strconv.ParseInt(f[14], 10, 64)
	return time.Duration(user+system) * time.Second / 100 // USER_HZ is 100
}
