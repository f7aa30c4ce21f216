// Command scorer-compiled is the endpoint picker with a scorer of its own: copy this
// file to a folder under cmd/ of a checkout, change roomy, and build it.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kvlane/kvlane/extproc/scoring"
	"github.com/kvlane/kvlane/internal/config"
	"github.com/kvlane/kvlane/internal/epp"
	"github.com/kvlane/kvlane/picker"
)

// roomy makes workers dearer, by these milliseconds, whose cache has no room for what
// they lack of the prompt: they would have to throw out what others may need.
type roomy float64

// Score is called before each choice, for many requests at once.
func (ms roomy) Score(_ context.Context, r *scoring.Request, candidates []scoring.Candidate) ([]picker.Adjust, error) {
	var out []picker.Adjust
	for _, c := range candidates {
		if c.KVFree >= 0 && c.KVFree < r.PromptTokens-c.CachedTokens {
			out = append(out, picker.Adjust{Worker: c.Worker, Rank: c.Rank, Ms: float64(ms)})
		}
	}
	return out, nil
}

func main() {
	o := epp.Options{Listen: epp.DefaultListen(), Secret: os.Getenv("KVLANE_SECRET")}
	path := flag.String("config", "", "configuration file")
	flag.StringVar(&o.Listen.ExtProc, "ext-proc", o.Listen.ExtProc, "address for Envoy's ext_proc streams")
	flag.StringVar(&o.Listen.Health, "health", o.Listen.Health, "address for gRPC health checks")
	flag.StringVar(&o.Listen.Log, "log", o.Listen.Log, "address of the log that agents write to")
	flag.StringVar(&o.Listen.Admin, "admin", o.Listen.Admin, "address of the admin page")
	flag.Parse()

	o.Scorers = []scoring.Named{{Name: "roomy", Scorer: roomy(100), Deadline: time.Millisecond}}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	c, err := config.Load(*path)
	if err == nil {
		err = epp.Run(ctx, c, o, slog.Default())
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
