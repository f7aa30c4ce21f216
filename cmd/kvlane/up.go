package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/up"
)

type upFlags struct {
	options        up.Options
	port, portBase int
	redis          string
}

func newUpCommand() *cobra.Command {
	f := upFlags{options: up.Default()}
	o := &f.options
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a whole system on this machine and send requests through it",
		Long: `Run a stock Envoy, the picker and agents with simulated engines on this machine,
send a few real requests through Envoy, show where each went and why, and keep
running until Ctrl-C. No GPU is needed. Everything listens on 127.0.0.1.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out = cmd.OutOrStdout()
			return f.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.Once, "once", o.Once, "end after the demo")
	flags.BoolVar(&o.NoDemo, "no-demo", o.NoDemo, "send no requests, only start and wait")
	flags.BoolVar(&o.PD, "pd", o.PD, "separate workers for prefill and decode, half of the engines each")
	flags.IntVar(&o.Engines, "engines", o.Engines, "number of workers")
	flags.StringVar(&o.Deployment, "deployment", o.Deployment, "model and GPUs whose step times the engines have")
	flags.Float64Var(&o.TimeScale, "time-scale", o.TimeScale, "engines and the picker's constants run this many times faster")
	flags.IntVar(&o.Blocks, "blocks", o.Blocks, "KV cache of each engine, in blocks (0 = what the deployment has)")
	flags.IntVar(&o.MaxModelLen, "max-model-len", o.MaxModelLen, "longest prompt and output together, in tokens (0 = the engines' own)")
	flags.IntVar(&o.BlockSize, "block-size", o.BlockSize, "block length, in tokens")
	flags.IntVar(&f.port, "port", 0, "Envoy's port for clients (default 8080)")
	flags.IntVar(&f.portBase, "port-base", 0, "use consecutive ports from here, for a second stack: Envoy first (0 = the documented ports)")
	flags.StringVar(&f.redis, "redis", "", "URL of a Redis that holds the log")
	flags.StringVar(&o.Dir, "dir", o.Dir, "folder for logs and rendered configurations (with --port-base N: out/up-N)")
	flags.BoolVar(&o.Quiet, "quiet", o.Quiet, "no progress lines while starting")
	return cmd
}

func (f *upFlags) run(cmd *cobra.Command) error {
	if f.redis != "" {
		return errors.New("--redis: the log in Redis does not exist yet; without the flag it is in the picker's memory")
	}
	o := &f.options
	o.Ports = up.DefaultPorts(o.Engines)
	if f.portBase != 0 {
		o.Ports = up.PortsFrom(f.portBase, o.Engines)
		if !cmd.Flags().Changed("dir") {
			o.Dir += "-" + strconv.Itoa(f.portBase)
		}
	}
	if f.port != 0 {
		o.Ports.Envoy = f.port
	}
	var err error
	if o.Binary, err = os.Executable(); err != nil {
		return fmt.Errorf("find this binary: %w", err)
	}
	if o.Envoy, err = up.FindEnvoy(o.Binary); err != nil {
		return err
	}
	return up.Run(cmd.Context(), *o)
}
