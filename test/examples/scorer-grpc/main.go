// Command scorer-grpc is a scorer out of process: it prefers workers whose address
// lies in one network, such as the picker's own zone. The picker asks it with
//
//	scorers:
//	  - {name: zone, address: "127.0.0.1:9300", deadline: 5ms}
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"

	scorerv1 "github.com/kvlane/kvlane/api/scorer/v1"
)

// zone makes workers outside the network dearer.
type zone struct {
	scorerv1.UnimplementedScorerServer

	near netip.Prefix
	ms   float64
}

// Score answers within the deadline of ctx, or has no say.
func (z *zone) Score(_ context.Context, r *scorerv1.ScoreRequest) (*scorerv1.ScoreResponse, error) {
	var out scorerv1.ScoreResponse
	for i, c := range r.GetCandidates() {
		if a, err := netip.ParseAddrPort(c.GetAddress()); err == nil && !z.near.Contains(a.Addr()) {
			out.Adjustments = append(out.Adjustments, &scorerv1.Adjustment{Candidate: uint32(i), Ms: z.ms})
		}
	}
	return &out, nil
}

func main() {
	listen := flag.String("listen", "127.0.0.1:9300", "address to answer on")
	near := flag.String("near", "10.0.0.0/8", "network of the workers that are near")
	ms := flag.Float64("ms", 20, "what a worker elsewhere costs more, ms")
	flag.Parse()
	if err := run(*listen, *near, *ms); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(listen, near string, ms float64) error {
	prefix, err := netip.ParsePrefix(near)
	if err != nil {
		return fmt.Errorf("--near: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	server := grpc.NewServer()
	scorerv1.RegisterScorerServer(server, &zone{near: prefix, ms: ms})
	context.AfterFunc(ctx, server.GracefulStop)
	return server.Serve(l)
}
