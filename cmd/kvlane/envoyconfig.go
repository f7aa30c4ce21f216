package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/extproc"
	"github.com/kvlane/kvlane/internal/envoyconf"
)

// newEnvoyConfigCommand prints a bootstrap for a stock Envoy.
func newEnvoyConfigCommand() *cobra.Command {
	o := envoyconf.Default()
	o.StripHeaders = extproc.RoutingHeaders()
	cmd := &cobra.Command{
		Use:   "envoy-config --endpoints IP:PORT[,IP:PORT...]",
		Short: "Print a complete bootstrap for a stock Envoy that asks the picker",
		Long: `Print a complete bootstrap for a stock Envoy (1.40) that asks the picker where each request goes.

    kvlane envoy-config --endpoints 10.0.0.5:8000,10.0.0.6:8000 > envoy.yaml
    envoy --mode validate -c envoy.yaml
    envoy -c envoy.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := envoyconf.Render(o)
			if err != nil {
				return err
			}
			if _, err := cmd.OutOrStdout().Write(b); err != nil {
				return fmt.Errorf("print bootstrap: %w", err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.Endpoints, "endpoints", nil, "workers or agents that requests may go to, ip:port each")
	f.StringVar(&o.Listen, "listen", o.Listen, "address for clients, ip:port")
	f.StringSliceVar(&o.ExtProc, "ext-proc", o.ExtProc, "addresses of the picker's replicas, host:port each; a DNS name may stand for several")
	f.StringVar(&o.Admin, "admin", o.Admin, "address of Envoy's admin page, ip:port; empty for none")
	f.BoolVar(&o.ResponseBodies, "response-bodies", o.ResponseBodies, "send answers through the picker too, as InferencePool gateways do")
	f.DurationVar(&o.MessageTimeout, "message-timeout", o.MessageTimeout, "longest wait for one answer of the picker")
	f.DurationVar(&o.ConnectTimeout, "connect-timeout", o.ConnectTimeout, "longest wait for a connection before the next worker of the plan is tried")
	f.IntVar(&o.Retries, "retries", o.Retries, "further workers to try when a connection fails")
	f.IntVar(&o.MaxRequestBytes, "max-request-bytes", o.MaxRequestBytes, "largest body that can be sent to a second worker")
	return cmd
}
