package workers

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/workers/engine"
)

// Config is everything an operator may set of an agent.
type Config struct {
	// WorkerID names the worker in the log; empty means Advertise.
	WorkerID kvindex.WorkerID
	// Listen is the host:port on which clients are served.
	Listen string
	// Advertise is the ip:port that gateways send requests to; empty means the
	// address that Listen bound, which then must not be a wildcard.
	Advertise string
	// Admin is the host:port of the metrics and state pages; empty means Listen's
	// host and its port + 100 (any free port if Listen's is 0), "off" means none.
	// It is a listener of its own because clients reach every path of Listen.
	Admin string
	// Engine is the engine's URL.
	Engine string
	// Command starts the engine as a child; empty means that it is there already.
	Command []string
	// CommandOutput receives the child's output; nil discards it.
	CommandOutput io.Writer
	// Role is what the worker may be used for.
	Role kvindex.Role
	// KVEvents are the ZMQ endpoints of the engine's KV events, one per
	// data-parallel rank, for example tcp://127.0.0.1:5557; or one URL to ask for
	// them, as TensorRT-LLM has it: http://127.0.0.1:8200/kv_cache_events. Such an
	// engine tells each event once, so nobody else may ask there. Empty means that
	// the engine tells nothing: what it holds is a model made of the requests that
	// pass, for which it has to return token ids.
	KVEvents []string
	// KVReplay are the replay endpoints in the same order; empty means that lost
	// events cannot be had again.
	KVReplay []string
	// BlockSize is in tokens, for engines that say it neither in their metrics nor
	// in their events; 0 means what the engine has by default.
	BlockSize int
	// KVGroups are the engine's KV-cache groups in its order, for engines whose events
	// do not say it; empty means by the events.
	KVGroups []kvindex.GroupSpec
	// KVEagle: the engine drafts by EAGLE or MTP and computes the last cached block
	// anew; no event says so.
	KVEagle bool
	// Deployment names the timing constants that pickers start from; may be empty.
	Deployment string
	// Zone, Rack and Domain (of NVLink) are where the engine stands, by names that are
	// equal for engines in the same one; empty is unknown. Pickers price KV transfers
	// by them.
	Zone, Rack, Domain string
	// Lockstep: the engine's data-parallel ranks step together, as with expert
	// parallelism.
	Lockstep bool
	// KVTiers are the slower tiers that the engine brings blocks back from by itself.
	KVTiers []kvindex.TierSpec
	// Secret keys the seeds of learned prompts. Pickers of the pool must have the
	// same one, or nothing that is learned is found. Empty is a valid secret, and
	// the default of both.
	Secret string

	// MaxBody bounds a request body that is read, bytes; larger ones get 413. It is
	// the picker's default limit.
	MaxBody int64
	// Lease is how long the log counts the worker as present after its last
	// record: at least three heartbeats of 1 s.
	Lease time.Duration
	// ProbeEvery is the pause between two looks at the engine's health and metrics.
	ProbeEvery time.Duration
	// StartTimeout bounds the wait for a child engine's first sign of life.
	StartTimeout time.Duration
	// EventIdleCheck is after how long without an event the replay socket is asked
	// whether one was lost.
	EventIdleCheck time.Duration
	// ReplayTimeout bounds one replay; live batches of the rank wait for it.
	ReplayTimeout time.Duration
	// PrefillAllow are the prefill workers that may be named by a header, exact
	// ip:port; empty means those that the log knows.
	PrefillAllow []string
	// PrefillTimeout bounds the prefill leg.
	PrefillTimeout time.Duration
	// PrefillFallback lets the own engine prefill when the prefill leg fails for a
	// reason that is not the client's.
	PrefillFallback bool
	// DrainTimeout bounds how long requests in flight may take after a stop.
	DrainTimeout time.Duration
	// PublishedBytes bounds the memory that keeps Learned records from being
	// published twice.
	PublishedBytes int
}

// Default is the configuration where nothing else is said. Engine, Listen and
// KVEvents are those of one worker on its own: agent 8000, engine 8200.
func Default() Config {
	return Config{
		Listen:          "127.0.0.1:8000",
		Engine:          "http://127.0.0.1:8200",
		KVEvents:        []string{"tcp://127.0.0.1:5557"},
		KVReplay:        []string{"tcp://127.0.0.1:5657"},
		MaxBody:         32 << 20,
		Lease:           5 * time.Second,
		ProbeEvery:      500 * time.Millisecond,
		StartTimeout:    5 * time.Minute,
		EventIdleCheck:  5 * time.Second,
		ReplayTimeout:   3 * time.Second,
		PrefillTimeout:  30 * time.Second,
		PrefillFallback: true,
		DrainTimeout:    10 * time.Second,
		PublishedBytes:  64 << 20,
	}
}

// Validate lists every fault.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		fault("listen %q: want HOST:PORT", c.Listen)
	}
	if c.Advertise == "" && err == nil && wildcard(host) {
		fault("listen %q: with a wildcard address, advertise must say which ip:port gateways use", c.Listen)
	}
	if c.Advertise != "" {
		if _, err := netip.ParseAddrPort(c.Advertise); err != nil {
			fault("advertise %q: want IP:PORT", c.Advertise)
		}
	}
	if c.Admin != "" && c.Admin != "off" {
		if _, _, err := net.SplitHostPort(c.Admin); err != nil {
			fault("admin %q: want HOST:PORT or off", c.Admin)
		}
	} else if c.Admin == "" && err == nil {
		if n, perr := strconv.Atoi(port); perr != nil || n < 0 || n > 65435 {
			fault("listen %q: port + 100 is the admin port, so it must be a number up to 65435 unless admin is set", c.Listen)
		}
	}
	if _, err := engine.ParseBase(c.Engine); err != nil {
		faults = append(faults, err)
	}
	if len(c.KVReplay) > 0 && len(c.KVReplay) != len(c.KVEvents) {
		fault("kv-replay: %d endpoints for %d of kv-events", len(c.KVReplay), len(c.KVEvents))
	}
	if c.Lease < 3*heartbeatEvery {
		fault("lease %v: less than three heartbeats of %v", c.Lease, heartbeatEvery)
	}
	if c.BlockSize < 0 || c.BlockSize > 1<<16 {
		fault("block-size %d: want 0 to 65536 tokens", c.BlockSize)
	}
	if c.MaxBody < 1 {
		fault("max body %d: want at least 1 byte", c.MaxBody)
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"probe-every", c.ProbeEvery}, {"start-timeout", c.StartTimeout}, {"event-idle-check", c.EventIdleCheck},
		{"replay-timeout", c.ReplayTimeout}, {"prefill-timeout", c.PrefillTimeout}, {"drain-timeout", c.DrainTimeout},
	} {
		if d.d <= 0 {
			fault("%s %v: want more than 0", d.name, d.d)
		}
	}
	return errors.Join(faults...)
}

func wildcard(host string) bool {
	if host == "" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsUnspecified()
}

// adminAddress is where the admin pages are served; empty for nowhere.
func (c Config) adminAddress() string {
	switch c.Admin {
	case "off":
		return ""
	case "":
	default:
		return c.Admin
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return ""
	}
	n, err := strconv.Atoi(port)
	if err != nil || n == 0 {
		return net.JoinHostPort(host, "0")
	}
	return net.JoinHostPort(host, strconv.Itoa(n+100))
}

// Deps are what an agent is given.
type Deps struct {
	// Log is where records go.
	Log kvindex.Log
	// Logger receives the agent's own lines.
	Logger *slog.Logger
	// Registry receives the agent's metrics and is shown on the admin page.
	Registry *prometheus.Registry
}
