package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/kvindex/redislog"
)

func main() {
	redislog.Quiet()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRootCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kvlane:", err)
		os.Exit(exitCode(err))
	}
}

// exitError is an error with a status of its own.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string { return e.err.Error() }
func (e exitError) Unwrap() error { return e.err }

// exitCode is 1 unless the error says another one.
func exitCode(err error) int {
	if e, ok := errors.AsType[exitError](err); ok {
		return e.code
	}
	return 1
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "kvlane",
		Short: "KV-cache-aware endpoint picker for LLM inference behind Envoy",
		Long: `kvlane sends every request to the inference worker that will answer it soonest:
it knows which worker holds which KV-cache blocks and how busy each one is, and
tells Envoy through ext_proc.

Start with "kvlane up": a whole system on this machine, without a GPU.`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		newUpCommand(), newEPPCommand(), newAgentCommand(), newCollectorCommand(), newEngineCommand(),
		newReplayCommand(), newExplainCommand(), newIndexCommand(), newSimCommand(), newEnvoyConfigCommand(), newProtocolCommand(), newVersionCommand(),
	)
	return root
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the Go release",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), version())
		},
	}
}

// version is what the Go toolchain recorded when the binary was built.
func version() string {
	module, commit := "(devel)", "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		module = info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = s.Value
			}
		}
	}
	return fmt.Sprintf("kvlane %s commit %s %s", module, commit, runtime.Version())
}
