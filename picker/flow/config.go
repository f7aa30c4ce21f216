package flow

import (
	"errors"
	"fmt"
	"time"
)

// Config is what an operator may set of the queue.
type Config struct {
	// MaxRequests is the most requests that wait; 1 to 1,048,576.
	MaxRequests int `yaml:"maxRequests"`
	// MaxBytes is the most bytes that they hold ([Item.Bytes]); 1 to 1 TiB.
	MaxBytes int64 `yaml:"maxBytes"`
	// BandRequests and BandBytes are the same for each band of equal priority; 0 = no
	// limit but the total.
	BandRequests int   `yaml:"bandRequests"`
	BandBytes    int64 `yaml:"bandBytes"`
	// Quantum is what a tenant gets each round, uncached tokens; 1 to 16,777,216. The
	// smaller, the finer tenants alternate.
	Quantum int `yaml:"quantum"`
	// MaxTenants is how many tenants of a band have turns of their own; those that come
	// while so many wait share one. 1 to 1,048,576.
	MaxTenants int `yaml:"maxTenants"`
	// Burst is for how long a tenant is given what it did not use: who was released less
	// than the mean of the tenants in about that time comes before those that were
	// released more, and finds room where these do not ([Queue.Over]). 0 = not at all.
	Burst time.Duration `yaml:"burst"`
	// TTL is how long a request may wait; 0 = as long as it likes.
	TTL time.Duration `yaml:"ttl"`
	// ShedHopeless sheds a request as soon as its deadline has passed.
	ShedHopeless bool `yaml:"shedHopeless"`
}

// DefaultConfig is the configuration where nothing else is said.
func DefaultConfig() Config {
	return Config{
		MaxRequests:  4096,
		MaxBytes:     256 << 20,
		Quantum:      8192,
		MaxTenants:   1024,
		Burst:        10 * time.Second,
		TTL:          time.Minute,
		ShedHopeless: true,
	}
}

// Validate lists every fault, each with the key's name.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.MaxRequests < 1 || c.MaxRequests > 1<<20 {
		fault("maxRequests: %d is not within 1 to %d", c.MaxRequests, 1<<20)
	}
	if c.MaxBytes < 1 || c.MaxBytes > 1<<40 {
		fault("maxBytes: %d is not within 1 to %d", c.MaxBytes, int64(1)<<40)
	}
	if c.BandRequests < 0 {
		fault("bandRequests: %d is negative", c.BandRequests)
	}
	if c.BandBytes < 0 {
		fault("bandBytes: %d is negative", c.BandBytes)
	}
	if c.Quantum < 1 || c.Quantum > 1<<24 {
		fault("quantum: %d is not within 1 to %d", c.Quantum, 1<<24)
	}
	if c.MaxTenants < 1 || c.MaxTenants > 1<<20 {
		fault("maxTenants: %d is not within 1 to %d", c.MaxTenants, 1<<20)
	}
	if c.Burst < 0 {
		fault("burst: %v is negative", c.Burst)
	}
	if c.TTL < 0 {
		fault("ttl: %v is negative", c.TTL)
	}
	return errors.Join(faults...)
}
