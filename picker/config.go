package picker

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
)

// Config is what an operator may set of the picker.
type Config struct {
	// Policy chooses among candidates where a request does not name another.
	Policy Policy `yaml:"policy"`
	// Alpha prices the delay that a prefill imposes on each request already on the
	// worker, as a part of the prefill's time; 0 to 1. Simulated fleets were best
	// between 0.1 and 0.2: the smaller has the shorter times to first token under heavy
	// load, the larger keeps more targets under overload without flow control. 0.5
	// starves long prompts there.
	Alpha float64 `yaml:"alpha"`
	// MaxDelay bounds that price: all the delay that a prefill imposes on a worker
	// counts as at most so many times the prefill itself; 0 = no bound. It is what keeps
	// long prompts from being starved: among equal workers a request goes to none where
	// it waits longer than where it would start first by more than that.
	MaxDelay float64 `yaml:"maxDelay"`
	// ChunkTokens is the engines' token budget a step (vLLM: max_num_batched_tokens);
	// 1 to 1,048,576.
	ChunkTokens int `yaml:"chunkTokens"`
	// Fallbacks is how many addresses beside the target a plan names, at most; 0 to 16.
	Fallbacks int `yaml:"fallbacks"`
	// MaxRequests is the most requests a worker may have to be picked; 0 = no limit.
	MaxRequests int `yaml:"maxRequests"`
	// MaxQueueMs is the longest queue a worker may have to be picked, in ms of its
	// deployment (TimeScale divides it too); 0 = no limit. With SLOTPOTMs it also
	// limits the prefill time that a worker is given beyond the part that leaves its
	// decode steps so much time.
	MaxQueueMs float64 `yaml:"maxQueueMs"`
	// MaxKV is the share of a worker's KV cache that its requests and a new prompt may
	// take for the worker to be picked, unless it has no requests; 0 to 1, 0 = no
	// limit. An engine that is full makes newcomers wait and throws running sequences
	// out, so what comes after them waits too. Answers need the rest: 0.7 in simulated
	// fleets.
	MaxKV float64 `yaml:"maxKV"`
	// SLOTTFTMs and SLOTPOTMs are the targets of requests that name none, ms of the
	// deployment as MaxQueueMs: the time to first token and the time between later
	// ones; 0 = none.
	SLOTTFTMs float64 `yaml:"sloTTFTMs"`
	SLOTPOTMs float64 `yaml:"sloTPOTMs"`
	// MissMs is what a predicted miss of a target costs, ms of the deployment; 0 =
	// targets do not matter. It is what others may wait longer so that one request keeps
	// its target: where it was beyond any price, simulated fleets under overload kept
	// fewer targets than with none.
	MissMs float64 `yaml:"missMs"`
	// AdapterMs is what loading a LoRA adapter costs, ms. An assumption: reading
	// some hundred megabytes and copying them to the GPU.
	AdapterMs float64 `yaml:"adapterMs"`
	// HostBytesPerSecond, DiskBytesPerSecond and ExternalBytesPerSecond are how fast
	// engines bring KV blocks back from slower tiers, where they do so by themselves and
	// do not say how fast; 0: blocks there are of no use.
	HostBytesPerSecond     float64 `yaml:"hostBytesPerSecond"`
	DiskBytesPerSecond     float64 `yaml:"diskBytesPerSecond"`
	ExternalBytesPerSecond float64 `yaml:"externalBytesPerSecond"`
	// DomainBandwidth, RackBandwidth and FarBandwidth are what KV transfers get between
	// workers of one NVLink domain, of one rack and of different zones, as multiples of
	// what they get within a zone; the first at least the second, that at least 1, and
	// the last above 0 and at most 1.
	DomainBandwidth float64 `yaml:"domainBandwidth"`
	RackBandwidth   float64 `yaml:"rackBandwidth"`
	FarBandwidth    float64 `yaml:"farBandwidth"`
	// Learn corrects the timing constants of workers by what their load reports show.
	Learn bool `yaml:"learn"`
	// TimeScale divides every time constant: engines run that many times faster
	// than their deployment says (simulated ones under replay); at least 1.
	TimeScale float64 `yaml:"timeScale"`
	// DefaultDeployment names the timing constants of workers that do not say, or
	// name one that is not known.
	DefaultDeployment string `yaml:"defaultDeployment"`
	// DefaultLease is how long a worker that sends no LeaseMs counts as present
	// without another record; at least 1ms.
	DefaultLease time.Duration `yaml:"defaultLease"`
	// LeaseGrace is how long a worker whose lease ran out stays known, not ready,
	// so that its models are unavailable (503) and not unknown (404).
	LeaseGrace time.Duration `yaml:"leaseGrace"`
	// BookingLease ends a booking that nobody closed; longer than the longest
	// answer, at least 1s.
	BookingLease time.Duration `yaml:"bookingLease"`
	// ReplicaLease is how long other replicas count a booking of ours that no worker
	// has reported, without hearing of it again: we repeat it every third of that.
	// A replica that dies is forgotten so fast. At least 3s, as leases are looked at
	// once a second.
	ReplicaLease time.Duration `yaml:"replicaLease"`
	// SessionMs is what a session's last worker is preferred by, ms of its deployment
	// (TimeScale divides it too); 0 to 60,000, 0 for no sessions. The default is what
	// prefilling some hundred tokens costs.
	SessionMs float64 `yaml:"sessionMs"`
	// SessionTTL is how long a session is remembered after its last request; at
	// least 1ms.
	SessionTTL time.Duration `yaml:"sessionTTL"`
	// MaxSessions is how many sessions are remembered, some 150 bytes each; the
	// least recently used go first. 1 to 16,777,216.
	MaxSessions int `yaml:"maxSessions"`
	// EjectAfter is the number of failures in a row that eject a worker; 0 for no
	// ejection at all, at most 1,000.
	EjectAfter int `yaml:"ejectAfter"`
	// EjectRate is the share of failed requests that ejects a worker, looked at over
	// the last 10 to 20 s and from 20 requests on; 0 to 1, 0 for none.
	EjectRate float64 `yaml:"ejectRate"`
	// EjectTime is how long the first ejection takes. Each one more takes twice as
	// long, up to MaxEjectTime; one is forgotten after as long a time without. At
	// least 1ms.
	EjectTime    time.Duration `yaml:"ejectTime"`
	MaxEjectTime time.Duration `yaml:"maxEjectTime"`
	// EjectShare is how much of the ready workers of a role may be ejected at once;
	// 0 to 1. The last one never is.
	EjectShare float64 `yaml:"ejectShare"`
	// ReturnMs is added to the price of a worker that comes back, ms of its
	// deployment; it falls to 0 over ReturnTime, so that its empty queue does not draw
	// everything at once. Both 0 or more, ReturnMs at most 60,000.
	ReturnMs   float64       `yaml:"returnMs"`
	ReturnTime time.Duration `yaml:"returnTime"`
	// Replica names this picker among those that share a log: no two at a time have
	// one name, and its next life has another. Empty: it is alone, and makes and
	// heeds no announcements.
	Replica string `yaml:"replica"`
}

// DefaultConfig is the configuration where nothing else is said. None of its
// bandwidths was measured here. Host: 26 ms a GB, which llm-d published for restoring
// KV from CPU memory (2026-07). Disk and external: one NVMe drive, and a 100 Gb/s
// network. Domain: NVLink 4 has 450 GB/s a direction beside the table's 40. Far: the
// same 100 Gb/s network.
func DefaultConfig() Config {
	return Config{
		Policy:      PolicyKV,
		Alpha:       0.1,
		MaxDelay:    10,
		ChunkTokens: 8192,
		Fallbacks:   2,
		AdapterMs:   500,
		MissMs:      1000,

		HostBytesPerSecond:     38e9,
		DiskBytesPerSecond:     6e9,
		ExternalBytesPerSecond: 10e9,
		DomainBandwidth:        10,
		RackBandwidth:          1,
		FarBandwidth:           0.25,

		Learn:             true,
		TimeScale:         1,
		DefaultDeployment: timing.DefaultDeployment,
		DefaultLease:      5 * time.Second,
		LeaseGrace:        5 * time.Minute,
		BookingLease:      10 * time.Minute,
		ReplicaLease:      9 * time.Second,
		SessionMs:         20,
		SessionTTL:        10 * time.Minute,
		MaxSessions:       65536,
		EjectAfter:        5,
		EjectRate:         0.5,
		EjectTime:         10 * time.Second,
		MaxEjectTime:      5 * time.Minute,
		EjectShare:        0.5,
		ReturnMs:          1000,
		ReturnTime:        30 * time.Second,
	}
}

// Validate lists every fault, each with the key's name.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if _, err := ParsePolicy(string(c.Policy)); err != nil {
		fault("%w", err) // names the key itself
	}
	if !(c.Alpha >= 0 && c.Alpha <= 1) {
		fault("alpha: %v is not within 0 to 1", c.Alpha)
	}
	amount := func(key string, v float64) {
		if !(v >= 0) || math.IsInf(v, 1) {
			fault("%s: %v is not 0 or more", key, v)
		}
	}
	amount("maxDelay", c.MaxDelay)
	if c.ChunkTokens < 1 || c.ChunkTokens > 1<<20 {
		fault("chunkTokens: %d is not within 1 to %d", c.ChunkTokens, 1<<20)
	}
	if c.Fallbacks < 0 || c.Fallbacks > 16 {
		fault("fallbacks: %d is not within 0 to 16", c.Fallbacks)
	}
	if c.MaxRequests < 0 {
		fault("maxRequests: %d is negative", c.MaxRequests)
	}
	if !(c.MaxKV >= 0 && c.MaxKV <= 1) {
		fault("maxKV: %v is not within 0 to 1", c.MaxKV)
	}
	if !(c.MaxQueueMs >= 0) {
		fault("maxQueueMs: %v is not 0 or more", c.MaxQueueMs)
	}
	amount("sloTTFTMs", c.SLOTTFTMs)
	amount("sloTPOTMs", c.SLOTPOTMs)
	amount("missMs", c.MissMs)
	amount("adapterMs", c.AdapterMs)
	amount("hostBytesPerSecond", c.HostBytesPerSecond)
	amount("diskBytesPerSecond", c.DiskBytesPerSecond)
	amount("externalBytesPerSecond", c.ExternalBytesPerSecond)
	c.validateLinks(fault)
	if !(c.TimeScale >= 1) || math.IsInf(c.TimeScale, 1) {
		fault("timeScale: %v is not 1 or more", c.TimeScale)
	}
	if _, err := timing.Known().Find(c.DefaultDeployment); err != nil {
		fault("defaultDeployment: %w", err)
	}
	if c.DefaultLease < time.Millisecond {
		fault("defaultLease: %v is less than 1ms", c.DefaultLease)
	}
	if c.LeaseGrace < 0 {
		fault("leaseGrace: %v is negative", c.LeaseGrace)
	}
	if c.BookingLease < time.Second {
		fault("bookingLease: %v is less than 1s", c.BookingLease)
	}
	if c.ReplicaLease < 3*time.Second {
		fault("replicaLease: %v is less than 3s", c.ReplicaLease)
	}
	c.validateSessions(fault)
	c.validateEjection(fault)
	return errors.Join(faults...)
}

func (c Config) validateLinks(fault func(format string, args ...any)) {
	if !(c.RackBandwidth >= 1) || math.IsInf(c.RackBandwidth, 1) {
		fault("rackBandwidth: %v is not 1 or more", c.RackBandwidth)
	}
	if !(c.DomainBandwidth >= c.RackBandwidth) || math.IsInf(c.DomainBandwidth, 1) {
		fault("domainBandwidth: %v is not rackBandwidth or more", c.DomainBandwidth)
	}
	if !(c.FarBandwidth > 0 && c.FarBandwidth <= 1) {
		fault("farBandwidth: %v is not above 0 and at most 1", c.FarBandwidth)
	}
}
