package simserver

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex/enginewire"
)

// Policy says what a decode engine does when the KV of a prompt cannot be had.
type Policy string

// The policies, named as in vLLM's kv_load_failure_policy.
const (
	// Recompute prefills the prompt here.
	Recompute Policy = "recompute"
	// Fail answers 500.
	Fail Policy = "fail"
)

// Config is one simulated engine.
type Config struct {
	// Listen is the host:port of the HTTP server; port 0 takes a free one.
	Listen string
	// Advertise is the host that other engines and event readers reach this one
	// by; empty for the one of Listen, or 127.0.0.1 where that is unspecified.
	Advertise string
	// Model is the base model's name; empty for the deployment's.
	Model string
	// Served are the names that requests may use; empty for Model alone.
	Served []string
	// Deployment names the model and GPUs whose step times are used
	// (timing.Known).
	Deployment string
	// BlockSize is in tokens, at least 1.
	BlockSize int
	// Blocks is the size of the cache; 0 for the deployment's.
	Blocks int
	// Speed is how many seconds of the deployment pass in one real second; above 0.
	Speed float64
	// MaxBatchedTokens bounds the tokens of one step (vLLM's default for serving: 8,192).
	MaxBatchedTokens int
	// MaxSeqs bounds the sequences of one step.
	MaxSeqs int
	// MaxModelLen bounds prompt and output together, tokens; 0 for the smaller of
	// 131,072 and what the cache holds.
	MaxModelLen int
	// NoPrefixCaching turns the sharing of blocks between requests off.
	NoPrefixCaching bool
	// Events is the ZMQ endpoint of the KV events, tcp://host:port; empty for none.
	Events string
	// Replay is the ZMQ endpoint that answers for lost batches; empty for none.
	// It needs Events.
	Replay string
	// Form is how events are laid out.
	Form enginewire.Form
	// LoadFailure is what happens when a pull of KV fails.
	LoadFailure Policy
	// HoldTimeout is how long a prefilled prompt waits for its decode engine. The
	// default is that of vLLM's VLLM_NIXL_ABORT_REQUEST_TIMEOUT.
	HoldTimeout time.Duration
	// Grace is how long running requests may go on after Run's context ends.
	Grace time.Duration
	// Exit ends the process for the fault "crash"; nil refuses that fault.
	Exit func(code int)
}

// Default is an engine of the default deployment on vLLM's usual settings.
func Default() Config {
	return Config{
		Listen:           "127.0.0.1:8200",
		Deployment:       timing.DefaultDeployment,
		BlockSize:        16,
		Speed:            1,
		MaxBatchedTokens: 8192,
		MaxSeqs:          256,
		LoadFailure:      Recompute,
		HoldTimeout:      480 * time.Second,
		Grace:            5 * time.Second,
	}
}

// maxModelLen is the default bound of a request where the cache is larger:
// what models of the known deployments accept at most.
const maxModelLen = 131072

// resolve checks the configuration, fills in what depends on the deployment,
// and reports all faults at once.
func (c *Config) resolve() (timing.Deployment, error) {
	var errs []error
	fault := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	d, err := timing.Known().Find(c.Deployment)
	if err != nil {
		errs = append(errs, err)
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		fault("listen %q: want host:port", c.Listen)
	}
	for _, v := range []struct {
		name string
		n    int
	}{
		{"block size", c.BlockSize}, {"max batched tokens", c.MaxBatchedTokens}, {"max sequences", c.MaxSeqs},
		{"blocks + 1", c.Blocks + 1}, {"max model length + 1", c.MaxModelLen + 1},
	} {
		if v.n < 1 {
			fault("%s is %d: want at least 1", v.name, v.n)
		}
	}
	if !(c.Speed > 0 && c.Speed <= 1e6) {
		fault("speed %v: want above 0 and at most 1e6", c.Speed)
	}
	if c.LoadFailure != Recompute && c.LoadFailure != Fail {
		fault("load failure policy %q: want recompute or fail", c.LoadFailure)
	}
	if c.HoldTimeout <= 0 {
		fault("hold timeout %v: want above 0", c.HoldTimeout)
	}
	for _, ep := range []string{c.Events, c.Replay} {
		if err := checkEndpoint(ep); err != nil {
			errs = append(errs, err)
		}
	}
	if c.Replay != "" && c.Events == "" {
		fault("a replay endpoint without an events endpoint")
	}
	if len(errs) > 0 {
		return d, fmt.Errorf("simulated engine: %w", errors.Join(errs...))
	}
	c.fill(d)
	if c.MaxModelLen > c.Blocks*c.BlockSize {
		return d, fmt.Errorf("simulated engine: a request of max model length %d does not fit into %d blocks of %d", c.MaxModelLen, c.Blocks, c.BlockSize)
	}
	return d, nil
}

// fill sets what was left to the deployment.
func (c *Config) fill(d timing.Deployment) {
	if c.Model == "" {
		c.Model = d.Model
	}
	if len(c.Served) == 0 {
		c.Served = []string{c.Model}
	}
	if c.Blocks == 0 {
		c.Blocks = d.KVTokens / c.BlockSize
	}
	if c.MaxModelLen == 0 {
		c.MaxModelLen = min(maxModelLen, c.Blocks*c.BlockSize)
	}
}

func checkEndpoint(ep string) error {
	if ep == "" {
		return nil
	}
	addr, ok := strings.CutPrefix(ep, "tcp://")
	if ok {
		_, port, err := net.SplitHostPort(addr)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		ok = err == nil
	}
	if !ok {
		return fmt.Errorf("ZMQ endpoint %q: want tcp://host:port", ep)
	}
	return nil
}
