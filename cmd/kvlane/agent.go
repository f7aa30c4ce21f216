package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/config"
	"github.com/kvlane/kvlane/internal/observability"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
	"github.com/kvlane/kvlane/kvindex/redislog"
	"github.com/kvlane/kvlane/workers"
)

// agentFlags are the flags of `kvlane agent` that are not fields of
// [workers.Config] as they stand.
type agentFlags struct {
	workerID   string
	role       string
	log        string
	redis      string
	pool       string
	kvGroups   string
	kvTiers    string
	noFallback bool
	logLevel   string
	logFormat  string
}

// newAgentCommand is `kvlane agent`.
func newAgentCommand() *cobra.Command {
	cfg := workers.Default()
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "agent [flags] [-- COMMAND ARGS...]",
		Short: "Run the agent of one engine: events and load to the log, requests to the engine",
		Long: `Run the agent of one engine.

With a command after --, the agent starts the engine and ends with an error when
the engine ends. Without one it attaches to the engine at --engine and waits for
it however often it goes away.`,
		Example: `  kvlane agent --engine http://127.0.0.1:8200 --kv-events tcp://127.0.0.1:5557 --kv-replay tcp://127.0.0.1:5657
  kvlane agent --listen 127.0.0.1:8001 --engine http://127.0.0.1:8201 -- vllm serve MODEL --port 8201`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() > 0 || (cmd.ArgsLenAtDash() < 0 && len(args) > 0) {
				return fmt.Errorf("unexpected argument %q: the engine's command goes after --", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.Command, cfg.CommandOutput = args, os.Stderr
			if !cmd.Flags().Changed("secret") {
				cfg.Secret = os.Getenv(secretEnv) // not the flag's default: help would print it
			}
			if cmd.Flags().Changed("log") && f.redis != "" {
				return errors.New("--log and --redis: the log is in one place; leave out one of the two")
			}
			if !cmd.Flags().Changed("log") {
				f.redis = cmp.Or(f.redis, os.Getenv(redisEnv))
			}
			return runAgent(cmd.Context(), cfg, f)
		},
	}
	addAgentFlags(cmd, &cfg, &f)
	return cmd
}

func addAgentFlags(cmd *cobra.Command, cfg *workers.Config, f *agentFlags) {
	fl := cmd.Flags()
	fl.StringVar(&cfg.Listen, "listen", cfg.Listen, "host:port for requests")
	fl.StringVar(&cfg.Advertise, "advertise", "", "ip:port that gateways use (default: what --listen bound)")
	fl.StringVar(&cfg.Admin, "admin", "", "host:port of metrics and state pages, or off (default: --listen's port + 100)")
	fl.StringVar(&f.workerID, "worker-id", "", "name of this worker in the log (default: the advertised address)")
	fl.StringVar(&cfg.Engine, "engine", cfg.Engine, "URL of the engine; http:// may be left out")
	fl.StringVar(&f.log, "log", "127.0.0.1:9004", "host:port of the log in the picker's memory")
	fl.StringVar(&f.redis, "redis", "", "URL of the Redis that holds the log, in place of --log (environment: KVLANE_REDIS)")
	fl.StringVar(&f.pool, "pool", config.Default().Log.Pool, "name of the pool in Redis, the same as the picker's")
	fl.StringVar(&f.role, "role", kvindex.RoleAggregated.String(), "aggregated, prefill or decode")
	fl.StringSliceVar(&cfg.KVEvents, "kv-events", cfg.KVEvents,
		"ZMQ endpoints of the engine's KV events, one per data-parallel rank, or TensorRT-LLM's http://HOST:PORT/kv_cache_events; empty for none")
	fl.StringSliceVar(&cfg.KVReplay, "kv-replay", cfg.KVReplay, "ZMQ replay endpoints, in the same order; empty for none")
	fl.StringVar(&f.kvGroups, "kv-groups", "", "the engine's KV-cache groups in its order, like full,window:128,state::528, if its events do not say it")
	fl.BoolVar(&cfg.KVEagle, "kv-eagle", false, "the engine drafts by EAGLE or MTP and computes the last cached block anew")
	fl.StringVar(&f.kvTiers, "kv-tiers", "", "slower tiers that the engine loads from by itself, with bytes per second if known, like host=38e9,disk")
	fl.BoolVar(&cfg.Lockstep, "lockstep", false, "the engine's data-parallel ranks step together (expert parallelism)")
	fl.StringVar(&cfg.Zone, "zone", "", "name of the engine's zone: KV transfers between zones cost more")
	fl.StringVar(&cfg.Rack, "rack", "", "name of its rack")
	fl.StringVar(&cfg.Domain, "nvlink-domain", "", "name of its NVLink domain")
	fl.IntVar(&cfg.BlockSize, "block-size", 0, "tokens of a block, if neither metrics nor events say it")
	fl.StringVar(&cfg.Deployment, "deployment", "", "name of the timing constants to start from")
	fl.StringVar(&cfg.Secret, "secret", "", "secret of the pool, the same as the picker's (environment: KVLANE_SECRET)")
	fl.StringSliceVar(&cfg.PrefillAllow, "prefill-allow", nil, "ip:port of prefill workers that a header may name (default: those in the log)")
	fl.DurationVar(&cfg.PrefillTimeout, "prefill-timeout", cfg.PrefillTimeout, "longest prefill on another worker")
	fl.BoolVar(&f.noFallback, "no-prefill-fallback", false, "answer with an error when a prefill worker fails, in place of prefilling here")
	fl.DurationVar(&cfg.DrainTimeout, "drain-timeout", cfg.DrainTimeout, "longest wait for requests under way at a stop")
	fl.DurationVar(&cfg.StartTimeout, "start-timeout", cfg.StartTimeout, "longest wait for an engine started with -- to become ready")
	fl.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	fl.StringVar(&f.logFormat, "log-format", string(observability.Text), "text or json")
}

func runAgent(ctx context.Context, cfg workers.Config, f agentFlags) error {
	role, err := kvindex.ParseRole(f.role)
	if err != nil {
		return err
	}
	if role == kvindex.RoleRelay {
		return errors.New("role relay: an agent has an engine; want aggregated, prefill or decode")
	}
	cfg.Role, cfg.WorkerID, cfg.PrefillFallback = role, kvindex.WorkerID(f.workerID), !f.noFallback
	if len(cfg.KVEvents) == 0 {
		cfg.KVReplay = nil
	}
	if cfg.KVGroups, err = kvindex.ParseGroups(f.kvGroups); err != nil {
		return fmt.Errorf("kv-groups: %w", err)
	}
	if cfg.KVTiers, err = kvindex.ParseTiers(f.kvTiers); err != nil {
		return fmt.Errorf("kv-tiers: %w", err)
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return fmt.Errorf("log-level: %w", err)
	}
	logger, err := observability.NewLogger(os.Stderr, level, observability.Format(f.logFormat))
	if err != nil {
		return err
	}
	log, err := f.openLog(cfg)
	if err != nil {
		return err
	}
	defer log.Close()
	agent, err := workers.New(cfg, workers.Deps{Log: log, Logger: logger, Registry: observability.NewRegistry()})
	if err != nil {
		return err
	}
	logger.Info("agent starts", "listen", cfg.Listen, "setup", cfg.Describe())
	return agent.Run(ctx)
}

// agentLog is a log with a connection.
type agentLog interface {
	kvindex.Log
	io.Closer
}

// openLog is the log that the flags name. It does not connect yet.
func (f agentFlags) openLog(cfg workers.Config) (agentLog, error) {
	if f.redis == "" {
		return memlog.Dial(f.log)
	}
	log, err := redislog.New(redislog.Options{URL: f.redis, Pool: f.pool, Lease: cfg.Lease})
	if err != nil {
		return nil, fmt.Errorf("log in Redis: %w", err)
	}
	return log, nil
}
