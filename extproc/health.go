package extproc

import (
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// Health answers gRPC health checks with the service names of the endpoint
// picker protocol. "liveness" serves as long as the process answers; the empty
// name, "readiness", the ext_proc service and "inference-extension" (asked for
// by gateways made for the reference picker) follow [Health.SetReady].
type Health struct {
	server *health.Server
}

// NewHealth is alive and not ready.
func NewHealth() *Health {
	h := &Health{server: health.NewServer()}
	h.server.SetServingStatus("liveness", healthv1.HealthCheckResponse_SERVING)
	h.SetReady(false)
	return h
}

// SetReady says whether gateways should send requests here.
func (h *Health) SetReady(ready bool) {
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if ready {
		status = healthv1.HealthCheckResponse_SERVING
	}
	for _, name := range []string{"", "readiness", "inference-extension", extprocv3.ExternalProcessor_ServiceDesc.ServiceName} {
		h.server.SetServingStatus(name, status)
	}
}

// Register adds the health service to a gRPC server; the protocol wants it on
// a port of its own (9003) and some gateways ask the ext_proc port.
func (h *Health) Register(r grpc.ServiceRegistrar) { healthv1.RegisterHealthServer(r, h.server) }
