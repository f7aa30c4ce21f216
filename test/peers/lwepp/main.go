// Command lwepp serves the lightweight endpoint picker of the Gateway API inference
// extension for a fixed list of endpoints, so that it runs without Kubernetes: the
// other side of `make protocol PEER=1`.
//
// The handler is upstream's own, at the version in go.mod. What upstream's binary
// has around it is left out: the watch of pods, TLS, the health service, metrics.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/lwepp/datastore"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/lwepp/handlers"
)

// pool is a datastore whose endpoints never change.
type pool struct {
	endpoints []*datastore.Endpoint
}

// PoolGet is called before a pick; only that there is a pool counts.
func (p pool) PoolGet() (*datastore.EndpointPool, error) {
	return new(datastore.EndpointPool), nil
}

// PodList is the endpoints that keep accepts.
func (p pool) PodList(keep func(*datastore.Endpoint) bool) []*datastore.Endpoint {
	kept := make([]*datastore.Endpoint, 0, len(p.endpoints))
	for _, e := range p.endpoints {
		if keep(e) {
			kept = append(kept, e)
		}
	}
	return kept
}

func newPool(list string) (pool, error) {
	var p pool
	for address := range strings.SplitSeq(list, ",") {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return pool{}, fmt.Errorf("endpoint %q: %w", address, err)
		}
		p.endpoints = append(p.endpoints, &datastore.Endpoint{PodName: "endpoint-" + port, Address: host, Port: port})
	}
	return p, nil
}

func run() error {
	listen := flag.String("listen", "127.0.0.1:9002", "address for ext_proc streams")
	list := flag.String("endpoints", "", "ip:port,ip:port... to pick from")
	flag.Parse()
	if *list == "" {
		return errors.New("--endpoints: want at least one ip:port")
	}
	p, err := newPool(*list)
	if err != nil {
		return err
	}
	ctrl.SetLogger(logr.Discard())
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(server, handlers.NewStreamingServer(p))
	return server.Serve(l)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "lwepp:", err)
		os.Exit(1)
	}
}
