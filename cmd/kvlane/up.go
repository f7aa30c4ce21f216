package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/up"
)

type upFlags struct {
	options        up.Options
	port, portBase int
}

func newUpCommand() *cobra.Command {
	f := upFlags{options: up.Default()}
	o := &f.options
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a whole system on this machine and send requests through it",
		Long: `Run a stock Envoy, the picker and agents with simulated engines on this machine,
send a few real requests through Envoy, show where each went and why, and keep
running until Ctrl-C. No GPU is needed. Everything listens on 127.0.0.1.

With --redis the log is in a Redis, and two pickers share it: "embedded" starts a
redis-server that ends with the stack, a URL takes yours.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out = cmd.OutOrStdout()
			return f.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.Once, "once", o.Once, "end after the demo")
	flags.BoolVar(&o.NoDemo, "no-demo", o.NoDemo, "send no requests, only start and wait")
	flags.BoolVar(&o.PD, "pd", o.PD, "separate workers for decode and prefill: half of the engines decode, rounded up, the others prefill")
	flags.IntVar(&o.Engines, "engines", o.Engines, "number of workers")
	flags.StringVar(&o.Deployment, "deployment", o.Deployment, "model and GPUs whose step times the engines have")
	flags.Float64Var(&o.TimeScale, "time-scale", o.TimeScale, "engines and the picker's constants run this many times faster")
	flags.IntVar(&o.Blocks, "blocks", o.Blocks, "KV cache of each engine, in blocks (0 = what the deployment has)")
	flags.IntVar(&o.MaxModelLen, "max-model-len", o.MaxModelLen, "longest prompt and output together, in tokens (0 = the engines' own)")
	flags.IntVar(&o.BlockSize, "block-size", o.BlockSize, "block length, in tokens")
	flags.IntVar(&f.port, "port", 0, "Envoy's port for clients (default 8080)")
	flags.IntVar(&f.portBase, "port-base", 0, "use consecutive ports from here, for a second stack: Envoy first (0 = the documented ports)")
	flags.StringVar(&o.Redis, "redis", "",
		"where the log is: embedded (a local redis-server of its own) or the URL of a Redis (default: in the picker's memory)")
	flags.IntVar(&o.Replicas, "replicas", 0, "number of pickers; more than one needs --redis (default: 2 with --redis, else 1)")
	flags.StringVar(&o.Dir, "dir", o.Dir, "folder for logs and rendered configurations (with --port-base N: out/up-N)")
	flags.BoolVar(&o.Quiet, "quiet", o.Quiet, "no progress lines while starting")
	return cmd
}

func (f *upFlags) run(cmd *cobra.Command) error {
	o := &f.options
	o.Ports = o.DefaultPorts()
	if f.portBase != 0 {
		o.Ports = o.PortsFrom(f.portBase)
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
	if o.Redis == up.Embedded {
		if o.RedisServer, err = up.FindRedis(); err != nil {
			return err
		}
	}
	return up.Run(cmd.Context(), *o)
}
