package e2e_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/internal/redistest"
	"github.com/kvlane/kvlane/internal/verify"
	"github.com/kvlane/kvlane/kvindex"
)

// part is a program that a test kills and starts again.
type part struct {
	*process // the present one

	name   string
	path   string
	args   []string
	starts int
}

// shared is a stack whose every process the test holds itself: a Redis behind a
// proxy for each of its users, two pickers, agents and their engines, Envoy.
type shared struct {
	*family
	whole   *testing.T // processes that are started again outlive the case that did it
	redis   *part
	redisAt string
	// proxies are the ways to Redis: one for each picker, the last for all agents.
	proxies []*redistest.Proxy
	pickers []*part
	pages   []string // admin addresses of the pickers
	agents  []*part
	engines []*part
	workers []worker
	gateway client
	model   string
}

const (
	sharedPickers = 2
	sharedWorkers = 3
)

// startShared starts everything and waits until both pickers see all workers.
func startShared(t *testing.T) *shared {
	t.Helper()
	s := &shared{family: newFamily(t), whole: t}
	base := porttest.Take(t, 3+3*sharedPickers+5*sharedWorkers)
	next := func() string { base++; return addr(base - 1) }

	server, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("%v; run `make deps`", err)
	}
	s.redisAt = next()
	_, port, _ := net.SplitHostPort(s.redisAt)
	s.redis = &part{name: "redis", path: server, args: []string{
		"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendfsync", "always", "--dir", t.TempDir(), "--appendonly", "no",
	}}
	s.begin(t, s.redis)
	s.awaitRedis(t)
	for range sharedPickers + 1 {
		s.proxies = append(s.proxies, redistest.NewProxy(t, s.redisAt))
	}
	config := filepath.Join(s.dir, "epp.yaml")
	if err := os.WriteFile(config, []byte("picker: {timeScale: 20}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var extProc, endpoints []string
	for i := range sharedPickers {
		ext, health, page := next(), next(), next()
		extProc, s.pages = append(extProc, ext), append(s.pages, page)
		s.pickers = append(s.pickers, &part{name: "picker-" + strconv.Itoa(i), path: found.kvlane, args: []string{
			"epp", "--config", config, "--redis", "redis://" + s.proxies[i].Addr, "--replica", "picker-" + strconv.Itoa(i),
			"--ext-proc", ext, "--health", health, "--admin", page,
		}})
	}
	for i := range sharedWorkers {
		agent, admin, engine, events, replay := next(), next(), next(), "tcp://"+next(), "tcp://"+next()
		endpoints = append(endpoints, agent)
		s.engines = append(s.engines, &part{name: "engine-" + strconv.Itoa(i), path: found.kvlane, args: []string{
			"engine", "sim", "--listen", engine, "--speed", "20", "--blocks", "800", "--max-model-len", "4096",
			"--kv-events", events, "--kv-replay", replay,
		}})
		s.agents = append(s.agents, &part{name: "agent-" + strconv.Itoa(i), path: found.kvlane, args: []string{
			"agent", "--listen", agent, "--admin", admin, "--engine", "http://" + engine, "--kv-events", events, "--kv-replay", replay,
			"--redis", "redis://" + s.proxies[sharedPickers].Addr,
		}})
		s.workers = append(s.workers, worker{
			id: kvindex.WorkerID(agent), agent: newClient(t, "http://"+agent), engine: newClient(t, "http://"+engine),
			engineAddr: engine, admin: "http://" + admin, replay: replay,
		})
	}
	for _, p := range slices.Concat(s.pickers, s.engines, s.agents) {
		s.begin(t, p)
	}
	s.startEnvoy(t, next(), next(), extProc, endpoints)
	s.awaitWorkers(t)
	s.model = s.gateway.models(t)[0]
	return s
}

func (s *shared) startEnvoy(t *testing.T, listen, admin string, extProc, endpoints []string) {
	t.Helper()
	bootstrap := filepath.Join(s.dir, "envoy.yaml")
	text := mustRun(t, "", "envoy-config", "--ext-proc", strings.Join(extProc, ","), "--listen", listen, "--admin", admin,
		"--endpoints", strings.Join(endpoints, ","))
	if err := os.WriteFile(bootstrap, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start(t, "envoy", found.envoy, "-c", bootstrap, "--disable-hot-restart", "--concurrency", "2")
	s.gateway = newClient(t, "http://"+listen)
	waitFor(t, "Envoy to serve", stackStart, func() error {
		resp, err := s.gateway.send(t.Context(), http.MethodGet, "/v1/models", http.NoBody)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	})
}

// begin starts a part, for the first time or again.
func (s *shared) begin(t *testing.T, p *part) {
	t.Helper()
	p.starts++
	name := p.name
	if p.starts > 1 {
		name += "-" + strconv.Itoa(p.starts)
	}
	p.process = s.start(s.whole, name, p.path, p.args...)
}

// kill ends a part without a warning. address is the agent's whose requests are
// lost with it; empty for none or a picker's.
func (p *part) kill(t *testing.T, address string) victim {
	t.Helper()
	from := time.Now()
	p.signal(t, syscall.SIGKILL)
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatalf("%s does not die", p.name)
	}
	return victim{from, time.Now(), address}
}

func (p *part) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(p.PID(), sig); err != nil {
		t.Fatalf("signal %s: %v", p.name, err)
	}
}

// awaitWorkers waits until every picker sees all workers ready.
func (s *shared) awaitWorkers(t *testing.T) {
	t.Helper()
	waitFor(t, "all workers at all pickers", stackStart, func() error {
		for _, page := range s.pages {
			n, err := readyWorkers(t, page)
			if err != nil {
				return err
			}
			if n != sharedWorkers {
				return fmt.Errorf("%s: %d workers are ready", page, n)
			}
		}
		return nil
	})
}

// workersLeft is how often a picker said that a worker left.
func (s *shared) workersLeft(t *testing.T) int {
	t.Helper()
	n := 0
	for _, p := range s.pickers {
		n += strings.Count(read(t, p.log), "worker left")
	}
	return n
}

// redisSays sends one command and returns the answer's first line.
func (s *shared) redisSays(command string) (string, error) {
	conn, err := net.DialTimeout("tcp", s.redisAt, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line), err
}

// tryRedis sends one command and wants an answer.
func (s *shared) tryRedis(command, want string) error {
	answer, err := s.redisSays(command)
	if err != nil {
		return err
	}
	if answer != want {
		return fmt.Errorf("%s: answered %q", command, answer)
	}
	return nil
}

func (s *shared) tellRedis(t *testing.T, command string) {
	t.Helper()
	if err := s.tryRedis(command, "+OK"); err != nil {
		t.Fatal(err)
	}
}

func (s *shared) awaitRedis(t *testing.T) {
	t.Helper()
	waitFor(t, "Redis to answer", patience, func() error { return s.tryRedis("PING", "+PONG") })
}

// allProxies changes every way to Redis.
func (s *shared) allProxies(m redistest.Mode, delay time.Duration) {
	for _, p := range s.proxies {
		p.Set(m, delay)
	}
}

// verify compares all pickers with all engines, and wants the same on each.
func (s *shared) verify(t *testing.T) verify.Report {
	t.Helper()
	r, stderr, err := s.family.verify(t, strings.Join(s.pages, ","), "--wait", converge.String(), "--probe", "0")
	if err != nil || r.Differences+r.Unverified > 0 {
		t.Errorf("%v, %s", err, stderr)
		for _, row := range r.Rows {
			if row.State != verify.Same {
				t.Errorf("%+v", row)
			}
		}
	}
	if len(r.Rows) < sharedPickers*sharedWorkers {
		t.Errorf("%d rows, want %d", len(r.Rows), sharedPickers*sharedWorkers)
	}
	return r
}
