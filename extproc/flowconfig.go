package extproc

import (
	"fmt"
	"time"

	"github.com/kvlane/kvlane/picker/flow"
)

// FlowConfig is what an operator may set of the requests that wait.
type FlowConfig struct {
	// Enabled lets a request for which every worker is over its limit wait in place of
	// being refused. The limits are the picker's (maxQueueMs, maxRequests); without one
	// nothing ever waits.
	Enabled bool `yaml:"enabled"`
	// Queue bounds the queue and says how tenants share it. Its time to live should be
	// well below the gateway's stream idle timeout (Envoy: 5 minutes).
	Queue flow.Config `yaml:"queue"`
	// BufferedWait is how long a request may wait where the gateway buffers the body
	// itself (body mode BUFFERED): there its message_timeout runs and would end in an
	// error. Envoy's own default for that is 200ms, manifests/envoy has 5s. 0: such a
	// request is refused at once. In full-duplex mode Envoy runs no timer while a body is
	// kept here, and this does not count.
	BufferedWait time.Duration `yaml:"bufferedWait"`
	// DrainTimeout is how long requests may go on waiting once the server is to stop;
	// then they are refused with 503. The process cuts streams after 3s.
	DrainTimeout time.Duration `yaml:"drainTimeout"`
	// TenantLabels is how many tenants have metrics of their own, the first that
	// come; the others are counted together. 0 to 1000.
	TenantLabels int `yaml:"tenantLabels"`
}

// DefaultFlow is off.
func DefaultFlow() FlowConfig {
	return FlowConfig{
		Queue:        flow.DefaultConfig(),
		BufferedWait: 100 * time.Millisecond,
		DrainTimeout: 2 * time.Second,
		TenantLabels: 16,
	}
}

// faults lists every fault, each with the key's name.
func (c FlowConfig) faults() []error {
	var faults []error
	for _, err := range split(c.Queue.Validate()) {
		faults = append(faults, fmt.Errorf("queue.%w", err))
	}
	if c.BufferedWait < 0 {
		faults = append(faults, fmt.Errorf("bufferedWait: %v is negative", c.BufferedWait))
	}
	if c.DrainTimeout < 0 {
		faults = append(faults, fmt.Errorf("drainTimeout: %v is negative", c.DrainTimeout))
	}
	if c.TenantLabels < 0 || c.TenantLabels > 1000 {
		faults = append(faults, fmt.Errorf("tenantLabels: %d is not within 0 to 1000", c.TenantLabels))
	}
	return faults
}

// split takes apart what errors.Join put together.
func split(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}
