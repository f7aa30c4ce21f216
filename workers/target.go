package workers

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/workers/engine"
)

// Target is a bare engine that a [Collector] watches.
type Target struct {
	// Engine is its URL.
	Engine string `yaml:"engine"`
	// Address is the ip:port that gateways send requests to and the worker's name;
	// empty means that of Engine, which then must have an IP address.
	Address string `yaml:"address"`
	// KVEvents, KVReplay and BlockSize are as in [Config]. Without events the engine is
	// known by its load only.
	KVEvents  []string `yaml:"kv-events"`
	KVReplay  []string `yaml:"kv-replay"`
	BlockSize int      `yaml:"block-size"`
	// Deployment names the timing constants that pickers start from; may be empty.
	Deployment string `yaml:"deployment"`
}

// ParseTarget reads an engine's URL with options behind it:
// URL[,address=IP:PORT][,kv-events=ENDPOINT][,kv-replay=ENDPOINT][,deployment=NAME].
// Options for several ranks are repeated, in the ranks' order.
func ParseTarget(text string) (Target, error) {
	words := strings.Split(text, ",")
	t := Target{Engine: words[0]}
	for _, word := range words[1:] {
		key, value, ok := strings.Cut(word, "=")
		if !ok || value == "" {
			return Target{}, fmt.Errorf("engine %q: %q: want KEY=VALUE", t.Engine, word)
		}
		switch key {
		case "address":
			t.Address = value
		case "kv-events":
			t.KVEvents = append(t.KVEvents, value)
		case "kv-replay":
			t.KVReplay = append(t.KVReplay, value)
		case "deployment":
			t.Deployment = value
		default:
			return Target{}, fmt.Errorf("engine %q: unknown option %q: want address, kv-events, kv-replay or deployment", t.Engine, key)
		}
	}
	err := t.Validate()
	return t, err
}

// Validate lists every fault.
func (t *Target) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("engine %q: "+format, append([]any{t.Engine}, args...)...))
	}
	if _, err := engine.ParseBase(t.Engine); err != nil {
		faults = append(faults, err)
	} else if _, err := netip.ParseAddrPort(t.address()); err != nil {
		if t.Address == "" {
			fault("its host is no IP address: address must say which ip:port gateways use")
		} else {
			fault("address %q: want IP:PORT", t.Address)
		}
	}
	if len(t.KVReplay) > 0 && len(t.KVReplay) != len(t.KVEvents) {
		fault("kv-replay: %d endpoints for %d of kv-events", len(t.KVReplay), len(t.KVEvents))
	}
	if t.BlockSize < 0 || t.BlockSize > 1<<16 {
		fault("block-size %d: want 0 to 65536 tokens", t.BlockSize)
	}
	for _, e := range slices.Concat(t.KVEvents, t.KVReplay) {
		if !strings.Contains(e, "://") {
			fault("endpoint %q: want tcp://HOST:PORT", e)
		}
	}
	return errors.Join(faults...)
}

// ValidateTargets lists every fault, also that two engines have one address.
func ValidateTargets(list []Target) error {
	var faults []error
	seen := make(map[kvindex.WorkerID]string, len(list))
	for i := range list {
		t := &list[i]
		if err := t.Validate(); err != nil {
			faults = append(faults, err)
			continue
		}
		if other, ok := seen[t.worker()]; ok {
			faults = append(faults, fmt.Errorf("engine %q: address %s is that of engine %q", t.Engine, t.worker(), other))
		}
		seen[t.worker()] = t.Engine
	}
	return errors.Join(faults...)
}

// address is where gateways send requests to; the engine's URL must be valid.
func (t *Target) address() string {
	if t.Address != "" {
		return t.Address
	}
	u, err := engine.ParseBase(t.Engine)
	if err != nil {
		return ""
	}
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
}

func (t *Target) worker() kvindex.WorkerID { return kvindex.WorkerID(t.address()) }

func (t *Target) equal(o Target) bool {
	return t.Engine == o.Engine && t.Address == o.Address && t.BlockSize == o.BlockSize && t.Deployment == o.Deployment &&
		slices.Equal(t.KVEvents, o.KVEvents) && slices.Equal(t.KVReplay, o.KVReplay)
}

// adminOff is the admin address of nowhere.
const adminOff = "off"

// CollectorConfig is everything an operator may set of a collector.
type CollectorConfig struct {
	// Admin is the host:port of the metrics and state pages, or "off".
	Admin string
	// Advertise is the host:port by which others reach Admin; empty means Admin, if
	// that is no wildcard and its port no 0, else nothing.
	Advertise string
	// Lease is how long the log counts an engine as present when nothing is heard of
	// it: at least three heartbeats of 1 s. A collector that is replaced has as long.
	Lease time.Duration
	// Fast and Slow bound the pause between two reads of an engine's metrics page: Fast
	// while it is busy or changes, up to Slow while it is idle. At least 10 ms.
	Fast, Slow time.Duration
	// MaxRate bounds the reads of all engines together, per second; with more engines
	// than that allows at Fast the pauses grow.
	MaxRate int
}

// DefaultCollector is the configuration where nothing else is said. Fast is what a
// picker notices of requests that are not its own: its own count at once. 500 pages a
// second of 50 KB are 25 MB/s, and 3 % of a core to read (AMD EPYC, 2026-11-30).
func DefaultCollector() CollectorConfig {
	return CollectorConfig{
		Admin: "127.0.0.1:9091", Lease: 10 * time.Second, Fast: 100 * time.Millisecond, Slow: 2 * time.Second, MaxRate: 500,
	}
}

// Validate lists every fault.
func (c CollectorConfig) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, a := range []struct{ name, at string }{{"admin", c.Admin}, {"admin-advertise", c.Advertise}} {
		if _, _, err := net.SplitHostPort(a.at); err != nil && a.at != "" && (a.name != "admin" || a.at != adminOff) {
			fault("%s %q: want HOST:PORT", a.name, a.at)
		}
	}
	if c.Admin == "" {
		fault("admin: want HOST:PORT or %s", adminOff)
	}
	if c.Lease < 3*heartbeatEvery {
		fault("lease %v: less than three heartbeats of %v", c.Lease, heartbeatEvery)
	}
	if c.Fast < 10*time.Millisecond {
		fault("scrape-fast %v: want at least 10ms", c.Fast)
	}
	if c.Slow < c.Fast {
		fault("scrape-slow %v: less than scrape-fast %v", c.Slow, c.Fast)
	}
	if c.MaxRate < 1 {
		fault("scrape-rate %d: want at least 1 a second", c.MaxRate)
	}
	return errors.Join(faults...)
}

// advertised is where others reach the admin pages that are served at an address;
// empty if that is not known.
func (c CollectorConfig) advertised(at net.Addr) string {
	if c.Advertise != "" || at == nil {
		return c.Advertise
	}
	if host, _, err := net.SplitHostPort(at.String()); err != nil || wildcard(host) {
		return ""
	}
	return at.String()
}

// of is the configuration of what follows one engine.
func (c CollectorConfig) of(t Target) Config {
	cfg := Default()
	cfg.WorkerID, cfg.Advertise = t.worker(), t.address()
	cfg.Engine, cfg.KVEvents, cfg.KVReplay = t.Engine, t.KVEvents, t.KVReplay
	cfg.BlockSize, cfg.Deployment, cfg.Lease = t.BlockSize, cmp.Or(t.Deployment, cfg.Deployment), c.Lease
	return cfg
}
