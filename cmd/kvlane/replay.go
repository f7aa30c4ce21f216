package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/replay"
	"github.com/kvlane/kvlane/picker"
	"github.com/kvlane/kvlane/workers/engine/bpe"
)

type replayFlags struct {
	url, admin, model, policy string
	limit                     int
	options                   replay.Options
	slo                       replay.SLO
	jsonPath                  string
}

func newReplayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay TRACE",
		Short: "Send a trace through the running gateway and report what a client sees",
		Long: `Send a trace through the running gateway, open loop: each request leaves at its
scheduled time and its latency counts from then.

A trace is JSON lines (plain or .gz) with timestamp (ms), input_length,
output_length (tokens) and hash_ids (one for each 512 tokens). Equal ids become
equal text. Start the stack first, for example:

  kvlane up --engines 4 --blocks 589 --block-size 512 --time-scale 8 --no-demo
  kvlane replay test/data/traces/conversation_trace.jsonl.gz --limit 1000 --speed 0.5 --time-scale 8`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("want one TRACE file, not %d; see kvlane replay --help", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return runReplay(cmd, args[0], &f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.url, "url", "http://127.0.0.1:8080", "the gateway")
	flags.StringVar(&f.admin, "admin", "127.0.0.1:9090", "the picker's admin address, asked where each request went; empty for none")
	flags.StringVar(&f.model, "model", "", "model to ask for (default: the first that the gateway serves)")
	flags.StringVar(&f.policy, "policy", "", "kv, round-robin, least-requests or random (default: the picker's own)")
	flags.IntVar(&f.limit, "limit", 0, "send only the first N requests (0 = all)")
	flags.Float64Var(&f.options.Speed, "speed", 1, "arrivals run this much faster than recorded")
	flags.Float64Var(&f.options.TimeScale, "time-scale", 1, "the stack's --time-scale: arrivals are scaled by it, results are given in trace time")
	flags.Float64Var(&f.slo.TTFTMs, "slo-ttft-ms", 2000, "goodput: time to first token, ms of trace time")
	flags.Float64Var(&f.slo.TPOTMs, "slo-tpot-ms", 50, "goodput: time per output token, ms of trace time")
	flags.StringVar(&f.jsonPath, "json", "", "write the result as JSON to this file (- for standard output)")
	return cmd
}

func runReplay(cmd *cobra.Command, path string, f *replayFlags) error {
	if f.options.Speed <= 0 || f.options.TimeScale <= 0 {
		return errors.New("--speed and --time-scale: want more than 0")
	}
	if f.policy != "" { // the picker passes over a name that it does not know
		if _, err := picker.ParsePolicy(f.policy); err != nil {
			return fmt.Errorf("--policy: %w", err)
		}
	}
	entries, err := replay.Load(path, f.limit)
	if err != nil {
		return err
	}
	tokens, err := bpe.Load()
	if err != nil {
		return fmt.Errorf("load tokenizer: %w", err)
	}
	prompter, err := replay.NewPrompter(tokens)
	if err != nil {
		return err
	}
	client := f.client(len(entries))
	ctx := cmd.Context()
	if client.Model == "" {
		if client.Model, err = client.FirstModel(ctx); err != nil {
			return err
		}
	}
	shown := f.policy
	if shown == "" {
		shown = "the picker's own"
	}
	out, errOut := cmd.OutOrStdout(), cmd.ErrOrStderr()
	last := entries[len(entries)-1].At
	_, err = fmt.Fprintf(errOut, "%d requests over %s of trace time to %s, model %s, policy %s, speed %g, time scale %g\n",
		len(entries), (time.Duration(float64(last) / f.options.Speed)).Round(time.Second), f.url, client.Model, shown,
		f.options.Speed, f.options.TimeScale)
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	f.options.Progress = replay.NewBar(errOut, len(entries), isTerminal(os.Stderr)).Update
	f.options.Prefix = "replay-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	result := replay.Summarize(replay.Run(ctx, client, prompter, entries, f.options), f.options.TimeScale, f.slo)
	if f.jsonPath != "-" {
		if err := result.Print(out); err != nil {
			return err
		}
	}
	if err := writeJSON(cmd, f.jsonPath, result); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if f.policy != "" && !result.Obeyed(f.policy) {
		return fmt.Errorf("the picker did not use policy %s: set extproc.allowPolicyHeader in its configuration", f.policy)
	}
	if result.Errors > 0 {
		return fmt.Errorf("%d of %d requests failed", result.Errors, result.Requests)
	}
	return nil
}

func (f *replayFlags) client(requests int) *replay.Client {
	return &replay.Client{
		HTTP: &http.Client{Transport: &http.Transport{
			MaxIdleConnsPerHost: min(requests, 1024),
			WriteBufferSize:     64 << 10,
		}},
		URL: strings.TrimRight(f.url, "/"), Model: f.model, Policy: f.policy, Admin: f.admin,
	}
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func writeJSON(cmd *cobra.Command, path string, v any) error {
	if path == "" {
		return nil
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	text = append(text, '\n')
	if path == "-" {
		_, err = cmd.OutOrStdout().Write(text)
	} else {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}
