package protocol

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"text/template"
	"time"

	"github.com/kvlane/kvlane/internal/child"
)

//go:embed envoy.yaml.tmpl
var bootstrap string

// subsetHeader becomes the subset hint on its way through the suite's Envoy.
const subsetHeader = "x-protocol-test-subset"

// The ways to ask the picker: listeners of the suite's Envoy.
const (
	frontDuplex   = "duplex"   // full duplex both ways, as InferencePool gateways do
	frontQuiet    = "quiet"    // no response bodies
	frontBare     = "bare"     // as duplex; Envoy does not strip headers itself
	frontOpen     = "open"     // as duplex; requests pass when the picker is down
	frontBuffered = "buffered" // request and response
	frontPartial  = "partial"
	frontStreamed = "streamed"
	frontNone     = "none" // no bodies
	frontH2       = "h2"   // as duplex; endpoints are asked with HTTP/2
)

type front struct {
	Name, Request, Response, Cluster string
	Strip, Open                      bool
	Unavailable                      bool // 503 in place of Envoy's 500 where the picker fails
	Informational                    bool // pass 1xx answers on; then 100 (Continue) is the endpoint's to say
}

func fronts() []front {
	const duplex = "FULL_DUPLEX_STREAMED"
	return []front{
		{Name: frontDuplex, Request: duplex, Response: duplex, Cluster: "http1", Strip: true},
		{Name: frontQuiet, Request: duplex, Response: "NONE", Cluster: "http1", Strip: true, Informational: true, Unavailable: true},
		{Name: frontBare, Request: duplex, Response: duplex, Cluster: "http1"},
		{Name: frontOpen, Request: duplex, Response: duplex, Cluster: "http1", Strip: true, Open: true},
		{Name: frontBuffered, Request: "BUFFERED", Response: "BUFFERED", Cluster: "http1", Strip: true},
		{Name: frontPartial, Request: "BUFFERED_PARTIAL", Response: "BUFFERED_PARTIAL", Cluster: "http1", Strip: true},
		{Name: frontStreamed, Request: "STREAMED", Response: "STREAMED", Cluster: "http1", Strip: true},
		{Name: frontNone, Request: "NONE", Response: "NONE", Cluster: "http1", Strip: true, Informational: true, Unavailable: true},
		{Name: frontH2, Request: duplex, Response: duplex, Cluster: "http2", Strip: true},
	}
}

// rig is an Envoy between the suite's clients and its endpoints, and the link over
// which it asks the picker.
type rig struct {
	dir     string
	link    *link
	workers []*worker
	envoy   *child.Process
	admin   string
	urls    map[string]string // by front
	http1   *http.Client
	http2   *http.Client
}

// lacksEnvoy brings the rig up at its first call.
func (l *lab) lacksEnvoy(ctx context.Context) string {
	if l.target.Envoy == "" {
		return "no Envoy is given (--envoy)"
	}
	if l.envoy == nil && l.noEnvoy == nil {
		l.envoy, l.noEnvoy = l.newRig(ctx)
	}
	if l.noEnvoy != nil {
		return l.noEnvoy.Error()
	}
	return ""
}

func (l *lab) newRig(ctx context.Context) (*rig, error) {
	r := &rig{urls: make(map[string]string), http1: newClient(false), http2: newClient(true)}
	if err := l.start(ctx, r); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (l *lab) start(ctx context.Context, r *rig) (err error) {
	if l.envoyVersion, err = version(ctx, l.target.Envoy); err != nil {
		return err
	}
	if r.dir, err = os.MkdirTemp("", "kvlane-protocol-"); err != nil {
		return fmt.Errorf("make a folder for Envoy: %w", err)
	}
	if r.link, err = newLink(ctx, l.target.Address, l.target.TLS); err != nil {
		return err
	}
	if err := l.startWorkers(ctx, r); err != nil {
		return err
	}
	return r.startEnvoy(ctx, l)
}

func version(ctx context.Context, path string) (string, error) {
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask Envoy for its version: %w", err)
	}
	// "PATH  version: HASH/1.40.0/Clean/RELEASE/BoringSSL"
	_, text, _ := strings.Cut(string(out), "version:")
	parts := strings.Split(strings.TrimSpace(text), "/")
	if len(parts) < 2 {
		return "", fmt.Errorf("envoy version %q: want HASH/VERSION and more", out)
	}
	return parts[1], nil
}

// startWorkers listens on the endpoints' addresses, or, where the suite writes the
// endpoints itself and these are not of this machine, makes others.
func (l *lab) startWorkers(ctx context.Context, r *rig) error {
	addresses := l.target.Endpoints
	if l.fleet != nil && !local(addresses) {
		addresses = []string{"127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"}
	}
	for _, a := range addresses {
		w, err := newWorker(ctx, a)
		if err != nil {
			return fmt.Errorf("the suite cannot be the endpoint %s: %w", a, err)
		}
		r.workers = append(r.workers, w)
	}
	if l.fleet == nil || local(l.target.Endpoints) {
		return nil
	}
	l.target.Endpoints = nil
	for _, w := range r.workers {
		l.target.Endpoints = append(l.target.Endpoints, w.address)
	}
	return l.fleet.set(ctx, l.target.Endpoints)
}

func local(addresses []string) bool {
	for _, s := range addresses {
		if a, err := netip.ParseAddrPort(s); err != nil || !a.Addr().IsLoopback() {
			return false
		}
	}
	return true
}

type hostPort struct{ Host, Port string }

func splitAddress(s string) hostPort {
	host, port, _ := net.SplitHostPort(s) // parsed before
	return hostPort{host, port}
}

func (r *rig) startEnvoy(ctx context.Context, l *lab) error {
	t, err := template.New("envoy").Parse(bootstrap)
	if err != nil {
		return fmt.Errorf("parse Envoy's configuration: %w", err)
	}
	values := struct {
		Fronts         []front
		Clusters       []struct{ Name, Protocol string }
		Strip          []string
		Endpoints      []hostPort
		Picker         hostPort
		SubsetHeader   string
		MessageTimeout string
	}{
		Fronts: fronts(), Strip: stripped(), Picker: splitAddress(r.link.address), SubsetHeader: subsetHeader,
		MessageTimeout: fmt.Sprintf("%.3fs", l.timeout.Seconds()),
		Clusters: []struct{ Name, Protocol string }{
			{"http1", "{http_protocol_options: {enable_trailers: true}}"}, {"http2", "{http2_protocol_options: {}}"},
		},
	}
	for _, w := range r.workers {
		values.Endpoints = append(values.Endpoints, splitAddress(w.address))
	}
	var config bytes.Buffer
	if err := t.Execute(&config, values); err != nil {
		return fmt.Errorf("write Envoy's configuration: %w", err)
	}
	file, admin := filepath.Join(r.dir, "envoy.yaml"), filepath.Join(r.dir, "admin")
	if err := os.WriteFile(file, config.Bytes(), 0o600); err != nil {
		return fmt.Errorf("write Envoy's configuration: %w", err)
	}
	output := new(output)
	r.envoy, err = child.Start(child.Spec{Name: "envoy", Path: l.target.Envoy, Output: output, Args: []string{
		"-c", file, "--admin-address-path", admin, "--concurrency", "1", "--log-level", "error", "--disable-hot-restart",
	}})
	if err != nil {
		return err
	}
	if err := r.findListeners(ctx, admin); err != nil {
		return fmt.Errorf("%w\n%s", err, output)
	}
	return nil
}

// envoyStart bounds Envoy's start on a busy machine.
const envoyStart = time.Minute

// findListeners waits until Envoy is up and asks where it listens.
func (r *rig) findListeners(ctx context.Context, adminFile string) error {
	ctx, cancel := context.WithTimeout(ctx, envoyStart)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if b, err := os.ReadFile(adminFile); err == nil && len(b) > 0 {
			r.admin = "http://" + strings.TrimSpace(string(b))
			if r.listeners(ctx) == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("envoy did not start within %v: %w", envoyStart, ctx.Err())
		case <-r.envoy.Done():
			return fmt.Errorf("envoy ended: %w", r.envoy.Err())
		case <-tick.C:
		}
	}
}

func (r *rig) listeners(ctx context.Context) error {
	var v struct {
		Statuses []struct {
			Name  string `json:"name"`
			Local struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	b, err := r.ask(ctx, "/listeners?format=json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return fmt.Errorf("read Envoy's listeners: %w", err)
	}
	for _, s := range v.Statuses {
		if s.Local.Socket.Port == 0 {
			return errors.New("a listener has no port yet")
		}
		r.urls[s.Name] = "http://" + net.JoinHostPort(s.Local.Socket.Address, fmt.Sprint(s.Local.Socket.Port))
	}
	if len(v.Statuses) != len(fronts()) {
		return fmt.Errorf("%d listeners of %d", len(v.Statuses), len(fronts()))
	}
	b, err = r.ask(ctx, "/ready")
	if err == nil && strings.TrimSpace(string(b)) != "LIVE" {
		err = errors.New("not live")
	}
	return err
}

// ask reads a page of Envoy's admin.
func (r *rig) ask(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.admin+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := r.http1.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // read to its end or not needed
	return io.ReadAll(resp.Body)
}

func (r *rig) close() {
	if r.envoy != nil {
		r.envoy.Stop(time.Second)
	}
	r.http1.CloseIdleConnections()
	r.http2.CloseIdleConnections()
	for _, w := range r.workers {
		w.down()
	}
	if r.link != nil {
		r.link.down()
	}
	if r.dir != "" {
		_ = os.RemoveAll(r.dir) // in the system's folder for such files
	}
}

func newClient(h2 bool) *http.Client {
	t := &http.Transport{DisableCompression: true, ExpectContinueTimeout: time.Minute}
	if h2 {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Client{Transport: t}
}

// output keeps what a process prints.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
