package up

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
)

// Options say what to run.
type Options struct {
	// Engines is the number of workers, 1 to 64. With PD the first half decodes
	// and the rest prefills, so it is at least 2 then.
	Engines int
	PD      bool
	// Deployment names the engines' timing constants.
	Deployment string
	// TimeScale makes engines and the picker's constants this many times faster; at least 1.
	TimeScale float64
	// Blocks is the size of each engine's KV cache and BlockSize a block's length
	// in tokens; 0 blocks means what the deployment has.
	Blocks, BlockSize int
	// MaxModelLen bounds prompt and output of one request together, tokens; 0
	// leaves it to the engines. Traces have prompts that no model of today takes.
	MaxModelLen int
	// Redis is where the log is: a URL, [Embedded] for a local redis-server of the
	// stack's own, empty for the picker's memory.
	Redis string
	// Replicas is the number of pickers, 1 to 8; more than one need Redis. 0 means
	// two with Redis, one without.
	Replicas int
	// Ports are where everything listens, on loopback.
	Ports Ports
	// Once ends after the demo; NoDemo sends nothing.
	Once, NoDemo bool
	// Quiet leaves out the progress lines.
	Quiet bool
	// Binary is the kvlane executable, Envoy the proxy's and RedisServer that of a
	// local Redis.
	Binary, Envoy, RedisServer string
	// Dir is where logs and rendered configurations go.
	Dir string
	// Out is where progress and results are printed.
	Out io.Writer
}

// Embedded as [Options.Redis] starts a redis-server for the stack.
const Embedded = "embedded"

// Default is a stack of four aggregated workers on the documented ports.
func Default() Options {
	o := Options{
		Engines: 4, Deployment: timing.DefaultDeployment, TimeScale: 1, BlockSize: 16,
		Dir: filepath.Join("out", "up"), Out: io.Discard,
	}
	o.Ports = o.DefaultPorts()
	return o
}

// Validate lists every fault of the options.
func (o Options) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if o.Engines < 1 || o.Engines > 64 {
		fault("--engines %d: want 1 to 64", o.Engines)
	}
	if o.PD && o.Engines == 1 {
		fault("--pd: want at least 2 engines, one to prefill and one to decode")
	}
	if _, err := timing.Known().Find(o.Deployment); err != nil {
		fault("--deployment: %w", err)
	}
	if !(o.TimeScale >= 1 && o.TimeScale <= 1000) {
		fault("--time-scale %g: want 1 to 1000", o.TimeScale)
	}
	if o.BlockSize < 1 || o.BlockSize > 4096 {
		fault("--block-size %d: want 1 to 4096", o.BlockSize)
	}
	if o.Blocks < 0 || o.Blocks > 1<<24 {
		fault("--blocks %d: want 0 to %d", o.Blocks, 1<<24)
	}
	if o.MaxModelLen < 0 || o.MaxModelLen > 1<<24 {
		fault("--max-model-len %d: want 0 to %d", o.MaxModelLen, 1<<24)
	}
	if o.Replicas < 0 || o.Replicas > 8 {
		fault("--replicas %d: want 1 to 8", o.Replicas)
	}
	if o.Replicas > 1 && o.Redis == "" {
		fault("--replicas %d: want --redis too; without it the log is in one picker's memory", o.Replicas)
	}
	if o.Once && o.NoDemo {
		fault("--once and --no-demo together leave nothing to do")
	}
	return errors.Join(faults...)
}

// replicas is the number of pickers.
func (o Options) replicas() int {
	switch {
	case o.Replicas > 0:
		return o.Replicas
	case o.Redis != "":
		return 2
	default:
		return 1
	}
}

// blocks is the size of each engine's KV cache.
func (o Options) blocks() int {
	if o.Blocks > 0 {
		return o.Blocks
	}
	d, err := timing.Known().Find(o.Deployment)
	if err != nil {
		return 0 // Validate has said so
	}
	return max(1, d.KVTokens/o.BlockSize)
}

// role is what worker i is for.
func (o Options) role(i int) string {
	switch {
	case !o.PD:
		return "aggregated"
	case i < (o.Engines+1)/2:
		return "decode"
	default:
		return "prefill"
	}
}

// FindEnvoy is the proxy to run: KVLANE_ENVOY, then PATH, then what `make deps`
// installed beside the binary's checkout.
func FindEnvoy(binary string) (string, error) {
	if path := os.Getenv("KVLANE_ENVOY"); path != "" {
		if _, err := exec.LookPath(path); err != nil {
			return "", fmt.Errorf("KVLANE_ENVOY: %w", err)
		}
		return path, nil
	}
	if path, err := exec.LookPath("envoy"); err == nil {
		return path, nil
	}
	for _, root := range []string{".", filepath.Join(filepath.Dir(binary), "..")} {
		path := filepath.Join(root, ".tools", "envoy", "bin", "envoy")
		if _, err := exec.LookPath(path); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no Envoy found; run `make deps`, put an envoy on PATH, or set KVLANE_ENVOY")
}

// FindRedis is the redis-server of PATH.
func FindRedis() (string, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", errors.New("no redis-server on PATH; install one (Debian: sudo apt-get install redis-server), or give --redis a URL")
	}
	return path, nil
}

// stopGrace is how long a process may take to end when it is asked to.
const stopGrace = 5 * time.Second

// startTimeout bounds the start of the whole stack. Envoy needs the longest:
// seconds on a busy laptop.
const startTimeout = 60 * time.Second

// redisTimeout bounds the question whether a Redis that is not the stack's own is
// there.
const redisTimeout = 3 * time.Second

// pingTimeout bounds one question to a Redis that starts.
const pingTimeout = time.Second
