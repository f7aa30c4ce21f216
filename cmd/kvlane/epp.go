package main

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/config"
	"github.com/kvlane/kvlane/internal/epp"
	"github.com/kvlane/kvlane/internal/observability"
)

// secretEnv holds the pool's secret, the same for the picker and its agents. It
// is not a flag: flags are seen by everyone on the machine.
const secretEnv = "KVLANE_SECRET"

// redisEnv is where the log is: the URL of a Redis, which may hold a password.
const redisEnv = "KVLANE_REDIS"

// eppFlags are the flags of `kvlane epp`.
type eppFlags struct {
	path                 string
	listen               epp.Listen
	redis, pool, replica string
}

func newEPPCommand() *cobra.Command {
	f := eppFlags{listen: epp.DefaultListen()}
	cmd := &cobra.Command{
		Use:   "epp",
		Short: "Run the endpoint picker: ext_proc for Envoy, the log for agents, an admin page",
		Long: `Run the endpoint picker.

Envoy asks it through ext_proc where each request goes. Agents write to its log
which KV blocks their engines hold and how busy they are. The admin page has
/metrics, /healthz, /plans/{request-id}, /endpoints, /explain and /index/stats.

With --redis the log is in a Redis, which several pickers share; then this one
serves no log, and agents take the same URL.

KVLANE_SECRET is the pool's secret, shared with its agents: it keeps a client
from guessing which prompts others have sent. KVLANE_REDIS stands for --redis
where the URL has a password that the command line must not show.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.path, "config", "", "configuration file (YAML); without one everything is at its default")
	flags.StringVar(&f.listen.ExtProc, "ext-proc", f.listen.ExtProc, "address for Envoy's ext_proc streams")
	flags.StringVar(&f.listen.Health, "health", f.listen.Health, "address for gRPC health checks")
	flags.StringVar(&f.listen.Log, "log", f.listen.Log, "address of the log that agents write to; unused with --redis")
	flags.StringVar(&f.listen.Admin, "admin", f.listen.Admin, "address of the admin page")
	flags.StringVar(&f.redis, "redis", "", "URL of the Redis that holds the log (environment: KVLANE_REDIS; file: log.redis)")
	flags.StringVar(&f.pool, "pool", "", "name of the pool in Redis (file: log.pool)")
	flags.StringVar(&f.replica, "replica", "",
		"name of this picker among those that share the log (default: host name and a random part; file: picker.replica)")
	return cmd
}

func (f *eppFlags) run(cmd *cobra.Command) error {
	c, err := config.Load(f.path)
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
	c.Log.Redis = cmp.Or(f.redis, os.Getenv(redisEnv), c.Log.Redis)
	c.Log.Pool = cmp.Or(f.pool, c.Log.Pool)
	if c.Log.Redis != "" && cmd.Flags().Changed("log") {
		return errors.New("--log: with a Redis this picker serves no log; leave out one of the two")
	}
	c.Picker.Replica = cmp.Or(f.replica, c.Picker.Replica)
	if c.Picker.Replica == "" {
		if c.Picker.Replica, err = replicaName(); err != nil {
			return err
		}
	}
	if err := c.Validate(); err != nil {
		return err
	}
	return epp.Run(cmd.Context(), c, epp.Options{Listen: f.listen, Secret: os.Getenv(secretEnv)}, log)
}

// replicaName is new at each start: what a picker's former life has booked is
// not its own any more.
func replicaName() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name this replica: %w", err)
	}
	return fmt.Sprintf("%s-%08x", host, rand.Uint32()), nil
}
