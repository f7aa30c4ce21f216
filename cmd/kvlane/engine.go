package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/observability"
	"github.com/kvlane/kvlane/kvindex/enginewire"
	"github.com/kvlane/kvlane/workers/engine/simserver"
)

func newEngineCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Run an inference engine",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newEngineSimCommand())
	return cmd
}

type engineSimFlags struct {
	config                      simserver.Config
	form, loadFailure, logLevel string
	logFormat                   string
}

func newEngineSimCommand() *cobra.Command {
	f := engineSimFlags{config: simserver.Default()}
	c := &f.config
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run a simulated engine: vLLM's HTTP surface and KV events without a GPU",
		Long: `Run a simulated engine. It answers vLLM's endpoints, keeps a paged KV cache with
prefix sharing, publishes KV events as vLLM does, hands KV from prefill to
decode, and takes as long as the named deployment would. The text is made of
common words and is the same on every engine for the same prompt.

  kvlane engine sim --listen 127.0.0.1:8200 --kv-events tcp://127.0.0.1:5557 --kv-replay tcp://127.0.0.1:5657
  curl -s 127.0.0.1:8200/v1/chat/completions -d '{"messages":[{"role":"user","content":"hello"}],"max_tokens":8}'

Faults for trying things out, from the same machine only:

  curl -s 127.0.0.1:8200/sim/fault -d '{"kind":"slow","factor":4}'

with kind crash, hang, slow, drop-events (count, forget), garbage (count),
restart, or none to end them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runEngineSim(cmd, &f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&c.Listen, "listen", c.Listen, "host:port of the HTTP server")
	fl.StringVar(&c.Advertise, "advertise", c.Advertise, "host that others reach this engine by (default: the one of --listen)")
	fl.StringVar(&c.Model, "model", c.Model, "base model's name (default: the deployment's)")
	fl.StringSliceVar(&c.Served, "served-model-name", c.Served, "names that requests may use (default: the model's)")
	fl.StringVar(&c.Deployment, "deployment", c.Deployment, "model and GPUs whose step times are used")
	fl.IntVar(&c.Blocks, "blocks", c.Blocks, "size of the KV cache in blocks (0 = the deployment's)")
	fl.IntVar(&c.BlockSize, "block-size", c.BlockSize, "tokens of a block")
	fl.Float64Var(&c.Speed, "speed", c.Speed, "run this many times faster than the deployment")
	fl.IntVar(&c.MaxBatchedTokens, "max-num-batched-tokens", c.MaxBatchedTokens, "tokens of one step at most")
	fl.IntVar(&c.MaxSeqs, "max-num-seqs", c.MaxSeqs, "sequences of one step at most")
	fl.IntVar(&c.MaxModelLen, "max-model-len", c.MaxModelLen, "tokens of prompt and output together at most (0 = 131072 or the cache)")
	fl.BoolVar(&c.NoPrefixCaching, "no-prefix-caching", c.NoPrefixCaching, "share no blocks between requests")
	fl.StringVar(&c.Events, "kv-events", c.Events, "ZMQ endpoint of the KV events, such as tcp://127.0.0.1:5557 (empty = none)")
	fl.StringVar(&c.Replay, "kv-replay", c.Replay, "ZMQ endpoint that answers for lost batches, such as tcp://127.0.0.1:5657 (empty = none)")
	fl.StringVar(&f.form, "kv-form", c.Form.String(), "layout of KV events: map (vLLM 0.32) or array (older)")
	fl.StringVar(&f.loadFailure, "kv-load-failure-policy", string(c.LoadFailure), "when KV of a prefill engine cannot be pulled: recompute or fail")
	fl.DurationVar(&c.HoldTimeout, "kv-hold-timeout", c.HoldTimeout, "how long a prefilled prompt waits for its decode engine")
	fl.DurationVar(&c.Grace, "grace", c.Grace, "how long running requests may go on after SIGTERM")
	fl.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	fl.StringVar(&f.logFormat, "log-format", string(observability.Text), "text or json")
	return cmd
}

func runEngineSim(cmd *cobra.Command, f *engineSimFlags) error {
	form, err := enginewire.ParseForm(f.form)
	if err != nil {
		return fmt.Errorf("kv-form: %w", err)
	}
	f.config.Form = form
	f.config.LoadFailure = simserver.Policy(f.loadFailure)
	f.config.Exit = os.Exit
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return fmt.Errorf("log-level: %w", err)
	}
	log, err := observability.NewLogger(cmd.ErrOrStderr(), level, observability.Format(f.logFormat))
	if err != nil {
		return err
	}
	s, err := simserver.New(f.config, log)
	if err != nil {
		return err
	}
	return s.Run(cmd.Context())
}
