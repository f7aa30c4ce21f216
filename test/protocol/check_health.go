package protocol

import (
	"context"
	"fmt"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// healthChecks ask the health service by its names.
func healthChecks() []Check {
	names := []struct{ id, service, what string }{
		{"empty-name", "", "The empty name asks for readiness."},
		{"readiness", "readiness", `The name "readiness" is served.`},
		{"liveness", "liveness", `The name "liveness" is served.`},
		{"ext-proc", extprocv3.ExternalProcessor_ServiceDesc.ServiceName, "The ext_proc service's own name is served."},
	}
	var checks []Check
	for _, n := range names {
		checks = append(checks, Check{
			ID: "health/" + n.id, Rule: n.what, Source: FromProtocol, needs: []need{needHealth},
			run: func(ctx context.Context, l *lab) error {
				got, err := l.health(ctx, n.service)
				if err != nil || got != healthv1.HealthCheckResponse_SERVING {
					return &Failure{Want: fmt.Sprintf("SERVING for the name %q", n.service), Got: fmt.Sprintf("%s, %v", got, err)}
				}
				return nil
			},
		})
	}
	return append(checks, Check{
		ID: "health/unknown-name", Source: FromStandard, needs: []need{needHealth},
		Rule: "A name that nobody serves is NOT_FOUND.",
		run: func(ctx context.Context, l *lab) error {
			got, err := l.health(ctx, "a-name-that-nobody-serves")
			if status.Code(err) != codes.NotFound {
				return &Failure{Want: "gRPC status NotFound", Got: fmt.Sprintf("%s, %v", got, err)}
			}
			return nil
		},
	})
}

func (l *lab) health(ctx context.Context, service string) (healthv1.HealthCheckResponse_ServingStatus, error) {
	conn, err := dial(l.target.Health, l.target.TLS)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // nothing is under way
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	r, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: service})
	return r.GetStatus(), err
}
