package up

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/kvlane/kvlane/extproc"
	"github.com/kvlane/kvlane/internal/envoyconf"
)

// processes are the programs of a stack in the order in which they start.
func (o Options) processes() []process {
	secret := "KVLANE_SECRET=" + randomHex()
	list := []process{o.picker(secret)}
	for i := range o.Engines {
		list = append(list, o.worker(i, secret))
	}
	return append(list, o.envoy())
}

func randomHex() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

func (o Options) picker(secret string) process {
	p := o.Ports
	return process{
		name: "picker", path: o.Binary, where: "ext_proc " + addr(p.ExtProc) + ", admin " + addr(p.Admin),
		args: []string{
			"epp", "--config", o.file("epp.yaml"), "--ext-proc", addr(p.ExtProc), "--health", addr(p.Health),
			"--log", addr(p.Log), "--admin", addr(p.Admin),
		},
		env: []string{secret},
		up:  answers(addr(p.Admin), "/healthz"),
	}
}

// worker is an agent that starts its engine as a child of its own.
func (o Options) worker(i int, secret string) process {
	p := o.Ports.Engines[i]
	return process{
		name: "worker-" + strconv.Itoa(i), path: o.Binary, where: fmt.Sprintf("agent %s, engine %s", addr(p.Agent), addr(p.Engine)),
		args: []string{
			"agent", "--listen", addr(p.Agent), "--admin", addr(p.AgentAdmin), "--engine", "http://" + addr(p.Engine), "--log", addr(o.Ports.Log),
			"--role", o.role(i), "--deployment", o.Deployment,
			"--kv-events", "tcp://" + addr(p.Events), "--kv-replay", "tcp://" + addr(p.Replay),
			"--", o.Binary, "engine", "sim", "--listen", addr(p.Engine), "--deployment", o.Deployment,
			"--speed", strconv.FormatFloat(o.TimeScale, 'g', -1, 64),
			"--blocks", strconv.Itoa(o.blocks()), "--block-size", strconv.Itoa(o.BlockSize),
			"--max-model-len", strconv.Itoa(o.MaxModelLen),
			"--kv-events", "tcp://" + addr(p.Events), "--kv-replay", "tcp://" + addr(p.Replay),
		},
		env: []string{secret},
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
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		return fmt.Errorf("make the folder for logs: %w", err)
	}
	e := envoyconf.Default()
	e.Listen, e.Admin, e.ExtProc = addr(o.Ports.Envoy), addr(o.Ports.EnvoyAdmin), []string{addr(o.Ports.ExtProc)}
	e.StripHeaders = extproc.RoutingHeaders()
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

// answers asks whether GET path gives 200.
func answers(address, path string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
		if err != nil {
			return fmt.Errorf("build request: %w", err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }() // read only
		if resp.StatusCode == http.StatusOK {
			return nil
		}
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // only for the message
		return fmt.Errorf("GET %s: status %d: %s", path, resp.StatusCode, body)
	}
}
