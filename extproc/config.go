package extproc

import (
	"errors"
	"fmt"
	"time"
)

// Config is what an operator may set of the ext_proc server.
type Config struct {
	// MaxBodyBytes is the largest request body that is read; larger ones are
	// answered with 413. 1 byte to 1 GiB. Bodies that are passed on unread (paths
	// without a prompt, compressed bodies) have no limit here.
	MaxBodyBytes int `yaml:"maxBodyBytes"`
	// MaxBufferedBytes bounds the memory for all bodies that are being read; a
	// stream that would exceed it is answered with 503. At least MaxBodyBytes.
	MaxBufferedBytes int64 `yaml:"maxBufferedBytes"`
	// MaxStreams bounds the requests under way; more are answered with 503.
	MaxStreams int `yaml:"maxStreams"`
	// BodyIdleTimeout is how long a client may pause within a body that is being
	// read; then it gets 408. Envoy has no such limit in full-duplex mode.
	BodyIdleTimeout time.Duration `yaml:"bodyIdleTimeout"`
	// BodyTimeout bounds the time from the headers to the end of the body, so that
	// a client that sends a byte now and then does not hold memory for ever.
	BodyTimeout time.Duration `yaml:"bodyTimeout"`
	// AllowPolicyHeader lets clients choose the picker's policy with
	// x-kvlane-policy. For comparisons only: a client could send all its
	// requests to one worker's queue.
	AllowPolicyHeader bool `yaml:"allowPolicyHeader"`
	// ClearRouteCache asks Envoy to choose the route again once the destination is
	// known. Gateways whose routes match the destination header need it.
	ClearRouteCache bool `yaml:"clearRouteCache"`
	// Overloaded529 answers shed requests with 529 in place of 429, for clients
	// that keep the two apart: 429 for their own limit, 529 for the server's.
	Overloaded529 bool `yaml:"overloaded529"`
	// LeaveStreaming ends the ext_proc stream once a worker has begun to stream its
	// answer, where the answer's body does not pass here. Envoy cuts an answer whose
	// ext_proc stream breaks, so a picker that dies then cuts none. The agent's
	// report closes the booking; without agents, set it to false.
	LeaveStreaming bool `yaml:"leaveStreaming"`
	// ClientHints heeds what clients say in headers of priority, tenant, targets and
	// session. Where clients are not to be trusted with them, a gateway that sets these
	// headers itself should remove the clients' own; else set it to false.
	ClientHints bool `yaml:"clientHints"`
	// MinPriority and MaxPriority bound the priority that a client may give itself by
	// number; -32767 to 32767. By default clients can step back (below 0) and not push
	// ahead. An objective's priority is the operator's own and not bounded by them.
	MinPriority int `yaml:"minPriority"`
	MaxPriority int `yaml:"maxPriority"`
	// Objectives are the priorities of the objectives that a request may name
	// (llm-d's InferenceObjective): "chat=10, batch=-5". A name that is not there has
	// priority 0.
	Objectives string `yaml:"objectives"`
	// EnginePriority writes each request's priority into its body for the engine's
	// own scheduler: none, vllm (lower is sooner; vLLM refuses the field unless it runs
	// with --scheduling-policy priority) or sglang (higher is sooner; needs
	// --enable-priority-scheduling).
	EnginePriority EnginePriority `yaml:"enginePriority"`
	// Flow lets requests wait here while no worker has room.
	Flow FlowConfig `yaml:"flow"`
	// Plans is how many of the last plans are kept for `kvlane explain`; 0 for
	// none. About 150 bytes times the number of workers each.
	Plans int `yaml:"plans"`
}

// Default is the configuration where nothing else is said.
func Default() Config {
	return Config{
		MaxBodyBytes:     32 << 20,
		MaxBufferedBytes: 512 << 20,
		MaxStreams:       16384,
		BodyIdleTimeout:  30 * time.Second,
		BodyTimeout:      5 * time.Minute,
		ClearRouteCache:  true,
		LeaveStreaming:   true,
		ClientHints:      true,
		MinPriority:      -100,
		MaxPriority:      0,
		EnginePriority:   EnginePriorityNone,
		Flow:             DefaultFlow(),
		Plans:            1024,
	}
}

// Validate lists every fault, each with the key's name.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.MaxBodyBytes < 1 || c.MaxBodyBytes > 1<<30 {
		fault("maxBodyBytes: %d is not within 1 to %d", c.MaxBodyBytes, 1<<30)
	}
	if c.MaxBufferedBytes < int64(c.MaxBodyBytes) {
		fault("maxBufferedBytes: %d is less than maxBodyBytes %d", c.MaxBufferedBytes, c.MaxBodyBytes)
	}
	if c.MaxStreams < 1 || c.MaxStreams > 1<<24 {
		fault("maxStreams: %d is not within 1 to %d", c.MaxStreams, 1<<24)
	}
	if c.BodyIdleTimeout < time.Millisecond {
		fault("bodyIdleTimeout: %v is less than 1ms", c.BodyIdleTimeout)
	}
	if c.BodyTimeout < c.BodyIdleTimeout {
		fault("bodyTimeout: %v is less than bodyIdleTimeout %v", c.BodyTimeout, c.BodyIdleTimeout)
	}
	c.validateClients(fault)
	for _, err := range c.Flow.faults() {
		fault("flow.%w", err)
	}
	if c.Plans < 0 || c.Plans > 1<<20 {
		fault("plans: %d is not within 0 to %d", c.Plans, 1<<20)
	}
	return errors.Join(faults...)
}

func (c Config) validateClients(fault func(string, ...any)) {
	if c.MinPriority < -maxPriority || c.MinPriority > maxPriority {
		fault("minPriority: %d is not within -%d to %d", c.MinPriority, maxPriority, maxPriority)
	}
	if c.MaxPriority < c.MinPriority || c.MaxPriority > maxPriority {
		fault("maxPriority: %d is not within minPriority %d to %d", c.MaxPriority, c.MinPriority, maxPriority)
	}
	if _, err := parseObjectives(c.Objectives); err != nil {
		fault("objectives: %w", err)
	}
	switch c.EnginePriority {
	case EnginePriorityNone, EnginePriorityVLLM, EnginePrioritySGLang:
	default:
		fault("enginePriority: %q is not %s, %s or %s", c.EnginePriority, EnginePriorityNone, EnginePriorityVLLM, EnginePrioritySGLang)
	}
}
