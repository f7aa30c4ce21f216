package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/kvlane/kvlane/internal/porttest"
)

// startLimit bounds how long a server may take to answer.
const startLimit = 30 * time.Second

// Options change how a server is started.
type Options struct {
	// Password is asked of every client; empty for none.
	Password string
	// AOF keeps an append-only file, flushed at every write, that a restart reads.
	AOF bool
	// TLS speaks only TLS, with a certificate for 127.0.0.1 of an authority of this
	// test: see [Server.CA].
	TLS bool
	// Config are more lines of redis.conf, such as "maxmemory 10mb".
	Config []string
	// mode is an argument: --sentinel, or empty.
	mode string
	// port is taken from porttest if it is 0.
	port int
}

// Server is a redis-server process.
type Server struct {
	// Addr is 127.0.0.1:port.
	Addr string
	// Client talks to this server; it is for the test's own questions.
	Client *redis.Client

	t    testing.TB
	opts Options
	dir  string
	port int
	tls  *certificate

	mu      sync.Mutex
	cmd     *exec.Cmd
	exited  chan struct{}
	output  *bytes.Buffer
	stopped bool // by SIGSTOP
}

// Start runs one server until t ends.
func Start(t testing.TB, opts Options) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Fatalf("redis-server is not installed (Debian: apt-get install redis-server): %v", err)
	}
	s := &Server{t: t, opts: opts, dir: t.TempDir(), port: opts.port}
	if s.port == 0 {
		s.port = porttest.Take(t, 1)
	}
	s.Addr = porttest.Join(s.port)
	client := &redis.Options{
		Addr: s.Addr, Password: opts.Password, Protocol: 2, DisableIdentity: true, ContextTimeoutEnabled: true,
		DialTimeout: time.Second, DialerRetries: 1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if opts.TLS {
		s.tls = newCertificate(t, s.dir)
		client.TLSConfig = s.tls.client
	}
	s.Client = redis.NewClient(client)
	s.Restart()
	t.Cleanup(func() {
		_ = s.Client.Close() // nothing is left to ask
		s.Kill()
	})
	return s
}

// URL is the server's for redislog.
func (s *Server) URL() string { return s.URLAt(s.Addr) }

// URLAt is the server's URL with another address, such as a proxy's.
func (s *Server) URLAt(addr string) string {
	if s.opts.Password != "" {
		addr = ":" + s.opts.Password + "@" + addr
	}
	if s.tls != nil {
		return "rediss://" + addr + "?ca=" + url.QueryEscape(s.tls.ca)
	}
	return "redis://" + addr
}

// CA is the file with the authority of a server with TLS.
func (s *Server) CA() string { return s.tls.ca }

func (s *Server) arguments() []string {
	lines := []string{"bind 127.0.0.1", "dir " + s.dir, "daemonize no"}
	if s.opts.mode == "" {
		lines = append(lines, `save ""`, "enable-debug-command local", "repl-diskless-sync-delay 0")
	}
	if s.tls != nil {
		lines = append(lines, "port 0", "tls-port "+strconv.Itoa(s.port), "tls-auth-clients no",
			"tls-cert-file "+s.tls.cert, "tls-key-file "+s.tls.key, "tls-ca-cert-file "+s.tls.ca)
	} else {
		lines = append(lines, "port "+strconv.Itoa(s.port))
	}
	lines = append(lines, s.opts.Config...)
	if s.opts.Password != "" {
		lines = append(lines, "requirepass "+s.opts.Password)
	}
	if s.opts.AOF {
		lines = append(lines, "appendonly yes", "appendfsync always")
	}
	return lines
}

// Restart starts the server, after killing the process that is there. It returns
// when the server answers.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	conf := filepath.Join(s.dir, "redis.conf")
	if err := os.WriteFile(conf, []byte(strings.Join(s.arguments(), "\n")+"\n"), 0o600); err != nil {
		s.t.Fatalf("configure redis-server: %v", err)
	}
	s.mu.Lock()
	s.output = &bytes.Buffer{}
	args := []string{conf}
	if s.opts.mode != "" {
		args = append(args, s.opts.mode)
	}
	cmd := exec.Command("redis-server", args...) //nolint:noctx // Kill ends it
	cmd.Stdout, cmd.Stderr = s.output, s.output
	started, exited := make(chan error), make(chan struct{})
	go run(cmd, started, exited)
	if err := <-started; err != nil {
		s.mu.Unlock()
		s.t.Fatalf("start redis-server: %v", err)
	}
	s.cmd, s.exited, s.stopped = cmd, exited, false
	s.mu.Unlock()
	s.await(exited)
}

// run starts a process and waits for it on one thread: when that thread ended, the
// kernel would kill the process.
func run(cmd *exec.Cmd, started chan<- error, exited chan<- struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Start()
	started <- err
	if err == nil {
		_ = cmd.Wait() // killed, or its output tells
	}
	close(exited)
}

// await polls until the server answers a PING.
func (s *Server) await(exited chan struct{}) {
	s.t.Helper()
	deadline := time.Now().Add(startLimit)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := s.Client.Ping(ctx).Err()
		cancel()
		if err == nil {
			return
		}
		select {
		case <-exited:
			s.t.Fatalf("redis-server at %s ended:\n%s", s.Addr, s.output)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("redis-server at %s does not answer: %v", s.Addr, err)
		}
	}
}

// Kill ends the server with SIGKILL and waits until it is gone. What it kept in
// memory is lost.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // gone already is as good
	<-s.exited
	s.cmd = nil
}

// Pause stops the process (SIGSTOP): connections stay and nothing answers.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Continue ends a Pause.
func (s *Server) Continue() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		s.t.Fatalf("signal %v: redis-server at %s is not running", sig, s.Addr)
	}
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Fatalf("signal %v: %v", sig, err)
	}
}

// FlushAll empties the server.
func (s *Server) FlushAll() {
	s.t.Helper()
	s.Do("flushall")
}

// Do runs a command that must not fail and returns its answer as text.
func (s *Server) Do(args ...any) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	v, err := s.Client.Do(ctx, args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		s.t.Fatalf("redis %v: %v", args, err)
	}
	return fmt.Sprint(v)
}

// Keys lists all keys, for assertions.
func (s *Server) Keys() []string {
	s.t.Helper()
	keys, err := s.Client.Keys(context.Background(), "*").Result()
	if err != nil {
		s.t.Fatalf("list keys: %v", err)
	}
	return keys
}
