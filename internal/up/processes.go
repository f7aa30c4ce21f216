package up

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/kvlane/kvlane/extproc"
	"github.com/kvlane/kvlane/internal/envoyconf"
)

// processes are the programs of a stack in the order in which they start.
func (o Options) processes() []process {
	env := []string{"KVLANE_SECRET=" + randomHex(), "KVLANE_REDIS=" + o.redisURL()}
	var list []process
	if o.Redis == Embedded {
		list = append(list, o.redis())
	}
	for i := range o.Ports.Pickers {
		list = append(list, o.picker(i, env))
	}
	for i := range o.Engines {
		list = append(list, o.worker(i, env))
	}
	return append(list, o.envoy())
}

func randomHex() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// redisURL is where the log is; empty for the picker's memory. It may hold a
// password, so it goes to the processes by their environment.
func (o Options) redisURL() string {
	if o.Redis == Embedded {
		return "redis://" + addr(o.Ports.Redis)
	}
	return o.Redis
}

// pool keeps this stack apart from others on a Redis that it does not own.
func (o Options) pool() []string {
	if o.Redis == "" || o.Redis == Embedded {
		return nil
	}
	return []string{"--pool", "up-" + strconv.Itoa(o.Ports.Envoy)}
}

// redis keeps nothing on disk: agents write the log anew.
func (o Options) redis() process {
	return process{
		name: "redis", path: o.RedisServer, where: addr(o.Ports.Redis), spare: true,
		args: []string{
			"--port", strconv.Itoa(o.Ports.Redis), "--bind", host, "--save", "", "--appendonly", "no", "--dir", o.file("redis"),
			"--set-proc-title", "no", // it would write over its command line and environment
		},
		up: pongs(addr(o.Ports.Redis)),
	}
}

// pickerName is what a replica is called where there are n.
func pickerName(i, n int) string {
	if n == 1 {
		return "picker"
	}
	return "picker-" + strconv.Itoa(i)
}

func (o Options) picker(i int, env []string) process {
	p := o.Ports.Pickers[i]
	args := []string{
		"epp", "--config", o.file("epp.yaml"), "--ext-proc", addr(p.ExtProc), "--health", addr(p.Health), "--admin", addr(p.Admin),
	}
	name := pickerName(i, len(o.Ports.Pickers))
	if o.Redis == "" {
		args = append(args, "--log", addr(o.Ports.Log))
	} else {
		args = append(append(args, "--replica", name), o.pool()...)
	}
	return process{
		name: name, path: o.Binary, where: "ext_proc " + addr(p.ExtProc) + ", admin " + addr(p.Admin), group: "pickers",
		args: args, env: env, up: answers(addr(p.Admin), "/healthz"),
	}
}

// worker is an agent that starts its engine as a child of its own.
func (o Options) worker(i int, env []string) process {
	p := o.Ports.Engines[i]
	log := o.pool()
	if o.Redis == "" {
		log = []string{"--log", addr(o.Ports.Log)}
	}
	return process{
		name: "worker-" + strconv.Itoa(i), path: o.Binary, where: fmt.Sprintf("agent %s, engine %s", addr(p.Agent), addr(p.Engine)),
		args: slices.Concat([]string{
			"agent", "--listen", addr(p.Agent), "--admin", addr(p.AgentAdmin), "--engine", "http://" + addr(p.Engine),
		}, log, []string{
			"--role", o.role(i), "--deployment", o.Deployment,
			"--kv-events", "tcp://" + addr(p.Events), "--kv-replay", "tcp://" + addr(p.Replay),
			"--", o.Binary, "engine", "sim", "--listen", addr(p.Engine), "--deployment", o.Deployment,
			"--speed", strconv.FormatFloat(o.TimeScale, 'g', -1, 64),
			"--blocks", strconv.Itoa(o.blocks()), "--block-size", strconv.Itoa(o.BlockSize),
			"--max-model-len", strconv.Itoa(o.MaxModelLen),
			"--kv-events", "tcp://" + addr(p.Events), "--kv-replay", "tcp://" + addr(p.Replay),
		}),
		env: env,
		up:  answers(addr(p.Agent), "/health"),
	}
}

func (o Options) envoy() process {
	return process{
		name: "envoy", path: o.Envoy, where: "http://" + addr(o.Ports.Envoy) + ", admin " + addr(o.Ports.EnvoyAdmin),
		args: []string{"-c", o.file("envoy.yaml"), "--disable-hot-restart", "--concurrency", "2"},
		up:   answers(addr(o.Ports.EnvoyAdmin), "/ready"),
	}
}

func (o Options) file(name string) string { return filepath.Join(o.Dir, name) }

// write makes the folder with the two configurations that the processes read.
func (o Options) write() error {
	if err := os.MkdirAll(o.file("redis"), 0o750); err != nil {
		return fmt.Errorf("make the folder for logs: %w", err)
	}
	e := envoyconf.Default()
	e.Listen, e.Admin, e.ExtProc = addr(o.Ports.Envoy), addr(o.Ports.EnvoyAdmin), nil
	e.StripHeaders = extproc.RoutingHeaders()
	for _, p := range o.Ports.Pickers {
		e.ExtProc = append(e.ExtProc, addr(p.ExtProc))
	}
	for _, p := range o.Ports.Engines {
		e.Endpoints = append(e.Endpoints, addr(p.Agent))
	}
	bootstrap, err := envoyconf.Render(e)
	if err != nil {
		return fmt.Errorf("render Envoy's bootstrap: %w", err)
	}
	if err := os.WriteFile(o.file("envoy.yaml"), bootstrap, 0o600); err != nil {
		return fmt.Errorf("write Envoy's bootstrap: %w", err)
	}
	if err := os.WriteFile(o.file("epp.yaml"), []byte(o.pickerConfig()), 0o600); err != nil {
		return fmt.Errorf("write the picker's configuration: %w", err)
	}
	return nil
}

// pickerConfig lets clients choose the policy: comparing them is what a trial
// stack is for.
func (o Options) pickerConfig() string {
	return fmt.Sprintf(`# Written by kvlane up.
picker:
  defaultDeployment: %s
  timeScale: %g
extproc:
  allowPolicyHeader: true
log:
  level: debug
`, o.Deployment, o.TimeScale)
}

// pongs asks whether a Redis answers PING.
func pongs(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }() // all that mattered was read
		if err := conn.SetDeadline(time.Now().Add(pingTimeout)); err != nil {
			return fmt.Errorf("bound the wait: %w", err)
		}
		if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
			return fmt.Errorf("send PING: %w", err)
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil {
			return fmt.Errorf("read the answer to PING: %w", err)
		}
		if line != "+PONG\r\n" {
			return fmt.Errorf("PING was answered with %q", line)
		}
		return nil
	}
}

// answers asks whether GET path gives 200.
func answers(address, path string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := get(ctx, address, path)
		return err
	}
}

// get is the body of an answer with status 200; of another one the error has the
// beginning.
func get(ctx context.Context, address, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		return "", fmt.Errorf("build request: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }() // read only
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", fmt.Errorf("GET %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("GET %s: status %d: %.200s", path, resp.StatusCode, body)
	}
	return string(body), nil
}
