package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/kvlane/kvlane/extproc"
	"github.com/kvlane/kvlane/extproc/scoring"
	"github.com/kvlane/kvlane/internal/observability"
	"github.com/kvlane/kvlane/picker"
)

// Config is everything that an operator may set of a picker process.
type Config struct {
	Picker  picker.Config  `yaml:"picker"`
	ExtProc extproc.Config `yaml:"extproc"`
	Index   Index          `yaml:"index"`
	Log     Log            `yaml:"log"`
	// Rewrites send requests for one model to others, each with its share.
	Rewrites []picker.Rewrite `yaml:"rewrites"`
	// Scorers are asked before each choice of an endpoint.
	Scorers []scoring.Config `yaml:"scorers"`
	// Pprof serves Go's profiles on the admin page.
	Pprof bool `yaml:"pprof"`
}

// Index bounds what a picker remembers.
type Index struct {
	// MaxBytes is the memory for what the workers hold; when it is used up, the ends
	// of what was not asked for longest go first. 0 is no limit, else 1 MiB to 1 TiB.
	MaxBytes int `yaml:"maxBytes"`
	// PrefixMapBytes is the memory for learned prefixes; the least recently used
	// go first. 1 MiB to 1 TiB. 256 MiB hold some 4 million chunks of 64 bytes.
	PrefixMapBytes int `yaml:"prefixMapBytes"`
}

// Log is about the process's own log lines, and where the log of records is.
type Log struct {
	// Level is debug, info, warn or error. At debug there is a line for each request.
	Level string `yaml:"level"`
	// Format is text or json.
	Format observability.Format `yaml:"format"`
	// Redis is the URL of the Redis that holds the log of records; empty for the
	// picker's own memory. The flag --redis and KVLANE_REDIS come before it.
	Redis string `yaml:"redis"`
	// Pool names the pool in Redis: pickers and agents of one pool share a name.
	// Letters, digits, - _ . and at most 64 of them.
	Pool string `yaml:"pool"`
}

// Default is the configuration where nothing else is said, and the only source
// of defaults.
func Default() Config {
	return Config{
		Picker:  picker.DefaultConfig(),
		ExtProc: extproc.Default(),
		Index:   Index{MaxBytes: 4 << 30, PrefixMapBytes: 256 << 20},
		Log:     Log{Level: "info", Format: observability.Text, Pool: "default"},
	}
}

// Load reads a file over the defaults. An error lists every fault of the file,
// one a line; each wraps to nothing else. An empty path is [Default].
func Load(path string) (Config, error) {
	if path == "" {
		return Default(), nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	c, faults := parse(data)
	switch len(faults) {
	case 0:
		return c, nil
	case 1:
		return Config{}, fmt.Errorf("%s: %w", path, faults[0])
	default:
		return Config{}, fmt.Errorf("%s: %d faults:\n%w", path, len(faults), errors.Join(faults...))
	}
}

func parse(data []byte) (Config, []error) {
	c := Default()
	faults := decode(data, c.keys())
	return c, append(faults, c.faults()...)
}

// Validate lists every value that is out of bounds, each with its dotted path.
func (c Config) Validate() error { return errors.Join(c.faults()...) }

func (c Config) faults() []error {
	var faults []error
	under := func(section string, err error) {
		for _, fault := range split(err) {
			faults = append(faults, fmt.Errorf("%s.%w", section, fault))
		}
	}
	under("picker", c.Picker.Validate())
	under("extproc", c.ExtProc.Validate())
	if f := c.ExtProc.Flow; f.Enabled && c.Picker.MaxQueueMs == 0 && c.Picker.MaxRequests == 0 && c.Picker.MaxKV == 0 {
		faults = append(faults, errors.New("extproc.flow.enabled: nothing says when a worker has no room; "+
			"set picker.maxQueueMs, picker.maxRequests or picker.maxKV"))
	}
	if n := c.Index.MaxBytes; n != 0 && (n < 1<<20 || n > 1<<40) {
		faults = append(faults, fmt.Errorf("index.maxBytes: %d is not 0 or within %d to %d", n, 1<<20, 1<<40))
	}
	if n := c.Index.PrefixMapBytes; n < 1<<20 || n > 1<<40 {
		faults = append(faults, fmt.Errorf("index.prefixMapBytes: %d is not within %d to %d", n, 1<<20, 1<<40))
	}
	if _, err := picker.NewRewrites(c.Rewrites); err != nil {
		faults = append(faults, split(err)...) // they name their places
	}
	faults = append(faults, split(scoring.Validate(c.Scorers))...)
	if _, err := c.Log.SlogLevel(); err != nil {
		faults = append(faults, fmt.Errorf("log.level: %w", err))
	}
	if f := c.Log.Format; f != observability.Text && f != observability.JSON {
		faults = append(faults, fmt.Errorf("log.format: %q is not text or json", f))
	}
	if !isPoolName(c.Log.Pool) {
		faults = append(faults, fmt.Errorf("log.pool: %q is not 1 to %d of letters, digits and - . _", c.Log.Pool, maxPoolName))
	}
	return faults
}

// maxPoolName bounds a pool's name: it is part of every key.
const maxPoolName = 64

// isPoolName refuses what has a meaning in a Redis key: braces and colons.
func isPoolName(s string) bool {
	for _, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return s != "" && len(s) <= maxPoolName
}

// split takes apart what [errors.Join] put together.
func split(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// SlogLevel is the level as the logger wants it.
func (l Log) SlogLevel() (slog.Level, error) {
	switch strings.ToLower(l.Level) {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	default:
		return 0, fmt.Errorf("%q is not debug, info, warn or error", l.Level)
	}
}
