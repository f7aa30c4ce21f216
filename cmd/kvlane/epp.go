package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/config"
	"github.com/kvlane/kvlane/internal/epp"
	"github.com/kvlane/kvlane/internal/observability"
)

// secretEnv holds the pool's secret, the same for the picker and its agents. It
// is not a flag: flags are seen by everyone on the machine.
const secretEnv = "KVLANE_SECRET"

func newEPPCommand() *cobra.Command {
	var path string
	listen := epp.DefaultListen()
	cmd := &cobra.Command{
		Use:   "epp",
		Short: "Run the endpoint picker: ext_proc for Envoy, the log for agents, an admin page",
		Long: `Run the endpoint picker.

Envoy asks it through ext_proc where each request goes. Agents write to its log
which KV blocks their engines hold and how busy they are. The admin page has
/metrics, /healthz, /plans/{request-id}, /endpoints and /explain.

KVLANE_SECRET is the pool's secret, shared with its agents: it keeps a client
from guessing which prompts others have sent.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(path)
			if err != nil {
				return err
			}
			level, err := c.Log.SlogLevel()
			if err != nil {
				return fmt.Errorf("log.level: %w", err)
			}
			log, err := observability.NewLogger(cmd.ErrOrStderr(), level, c.Log.Format)
			if err != nil {
				return err
			}
			return epp.Run(cmd.Context(), c, listen, os.Getenv(secretEnv), log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&path, "config", "", "configuration file (YAML); without one everything is at its default")
	f.StringVar(&listen.ExtProc, "ext-proc", listen.ExtProc, "address for Envoy's ext_proc streams")
	f.StringVar(&listen.Health, "health", listen.Health, "address for gRPC health checks")
	f.StringVar(&listen.Log, "log", listen.Log, "address of the log that agents write to")
	f.StringVar(&listen.Admin, "admin", listen.Admin, "address of the admin page")
	return cmd
}
