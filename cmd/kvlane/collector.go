package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/kvlane/kvlane/internal/config"
	"github.com/kvlane/kvlane/internal/observability"
	"github.com/kvlane/kvlane/workers"
)

// collectorFlags are the flags of `kvlane collector` that are not fields of
// [workers.CollectorConfig].
type collectorFlags struct {
	engines []string
	file    string
	log     agentFlags // where the log is
}

// newCollectorCommand is `kvlane collector`.
func newCollectorCommand() *cobra.Command {
	cfg := workers.DefaultCollector()
	var f collectorFlags
	cmd := &cobra.Command{
		Use:   "collector [flags]",
		Short: "Watch engines that have no agent: events and load to the log, nothing in the request's way",
		Long: `Watch engines that have no agent before them, so that nothing has to be put into
their pods. Gateways send requests to the engines' own addresses.

An engine is URL[,OPTION=VALUE...], the options as in the file below; kv-events and
kv-replay may be repeated, one for each data-parallel rank. The file is read again
when it changes: a list of

  - engine: http://10.0.0.1:8000             # vLLM, SGLang or TensorRT-LLM
    kv-events: [tcp://10.0.0.1:5557]         # without: the engine is known by its load only
    kv-replay: [tcp://10.0.0.1:5657]         # without: lost events empty its index
    address: 10.0.0.1:8000                   # what gateways use, if not the URL's host
    block-size: 32                           # if neither metrics nor events say it
    deployment: qwen3-32b-fp8-1xh100         # timing constants to start from

Load is what the engine's metrics page says; SGLang needs --enable-metrics for it.
What only an agent can do is missing: prompts given as text are routed by load until
something else teaches their tokens (prompts of token ids are routed by content), no
hand-off from prefill to decode workers, no first-token times to learn from.

When the collector ends, its engines stay in the pool for --lease, so that another
one can take over; of two that run the later one has the engines. An engine that
leaves the list is taken out at once.`,
		Example: `  kvlane collector --engine http://10.0.0.1:8000,kv-events=tcp://10.0.0.1:5557,kv-replay=tcp://10.0.0.1:5657 --engine http://10.0.0.2:8000
  kvlane collector --engines-file engines.yaml --redis redis://10.0.0.9:6379`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("log") && f.log.redis != "" {
				return errors.New("--log and --redis: the log is in one place; leave out one of the two")
			}
			if !cmd.Flags().Changed("log") {
				f.log.redis = cmp.Or(f.log.redis, os.Getenv(redisEnv))
			}
			return runCollector(cmd.Context(), cfg, f)
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&f.engines, "engine", nil,
		"an engine: URL[,kv-events=ENDPOINT][,kv-replay=ENDPOINT][,address=IP:PORT][,deployment=NAME]; repeatable")
	fl.StringVar(&f.file, "engines-file", "", "file with a list of engines, read again when it changes")
	fl.StringVar(&cfg.Admin, "admin", cfg.Admin, "host:port of metrics and state pages, or off")
	fl.StringVar(&cfg.Advertise, "admin-advertise", "",
		"host:port by which others reach them, for kvlane index verify (default: --admin, if that is one address)")
	fl.DurationVar(&cfg.Lease, "lease", cfg.Lease, "how long engines stay in the pool when nothing is heard of them")
	fl.DurationVar(&cfg.Fast, "scrape-fast", cfg.Fast, "pause between two reads of the metrics page of an engine that is busy or changes")
	fl.DurationVar(&cfg.Slow, "scrape-slow", cfg.Slow, "longest pause, of one that is idle")
	fl.IntVar(&cfg.MaxRate, "scrape-rate", cfg.MaxRate, "most reads a second of all engines together")
	fl.StringVar(&f.log.log, "log", "127.0.0.1:9004", "host:port of the log in the picker's memory")
	fl.StringVar(&f.log.redis, "redis", "", "URL of the Redis that holds the log, in place of --log (environment: KVLANE_REDIS)")
	fl.StringVar(&f.log.pool, "pool", config.Default().Log.Pool, "name of the pool in Redis, the same as the picker's")
	fl.StringVar(&f.log.logLevel, "log-level", "info", "debug, info, warn or error")
	fl.StringVar(&f.log.logFormat, "log-format", string(observability.Text), "text or json")
	return cmd
}

func runCollector(ctx context.Context, cfg workers.CollectorConfig, f collectorFlags) error {
	given, err := parseEngines(f.engines)
	if err != nil {
		return err
	}
	if len(given) == 0 && f.file == "" {
		return errors.New("no engines: give --engine or --engines-file")
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.log.logLevel)); err != nil {
		return fmt.Errorf("log-level: %w", err)
	}
	logger, err := observability.NewLogger(os.Stderr, level, observability.Format(f.log.logFormat))
	if err != nil {
		return err
	}
	log, err := f.log.openLog(workers.Config{Lease: cfg.Lease})
	if err != nil {
		return err
	}
	defer log.Close()
	targets := func() ([]workers.Target, error) { return given, nil }
	if f.file != "" {
		file := engineFile{path: f.file}
		targets = func() ([]workers.Target, error) {
			list, err := file.read()
			return slices.Concat(given, list), err
		}
	}
	c, err := workers.NewCollector(cfg, targets, workers.Deps{Log: log, Logger: logger, Registry: observability.NewRegistry()})
	if err != nil {
		return err
	}
	logger.Info("collector starts", "engines", len(f.engines), "file", f.file, "admin", cfg.Admin)
	return c.Run(ctx)
}

// parseEngines reads the values of --engine and returns every fault.
func parseEngines(texts []string) ([]workers.Target, error) {
	var list []workers.Target
	var faults []error
	for _, text := range texts {
		t, err := workers.ParseTarget(text)
		if err != nil {
			faults = append(faults, err)
		}
		list = append(list, t)
	}
	return list, errors.Join(faults...)
}

// engineFile is a list of engines in a file.
type engineFile struct {
	path string
	data []byte // as last read
	list []workers.Target
	err  error
}

// read is the list as it is now. The file is parsed again only if it changed.
func (f *engineFile) read() ([]workers.Target, error) {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return nil, fmt.Errorf("read engines: %w", err)
	}
	if f.data != nil && bytes.Equal(data, f.data) {
		return f.list, f.err
	}
	f.data = append([]byte{}, data...)
	f.list, f.err = decodeEngines(data)
	if f.err != nil {
		f.err = fmt.Errorf("%s: %w", f.path, f.err)
	}
	return f.list, f.err
}

// decodeEngines reads a file's list; unknown keys are faults. An empty file is an
// empty list.
func decodeEngines(data []byte) ([]workers.Target, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	var list []workers.Target
	if err := dec.Decode(&list); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var more any
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document in the file")
	}
	return list, workers.ValidateTargets(list)
}
