package redistest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/porttest"
)

// Cluster is three masters without replicas that share the slots.
type Cluster struct{ Nodes []*Server }

// clusterNodes is the least number that a cluster needs to agree on anything.
const clusterNodes = 3

// slots is the number of Redis Cluster's slots.
const slots = 16384

// StartCluster runs a cluster until t ends. It returns when all nodes say that it
// works.
func StartCluster(t testing.TB, opts Options) *Cluster {
	t.Helper()
	base := porttest.Take(t, 2*clusterNodes)
	c := &Cluster{}
	for i := range clusterNodes {
		o := opts
		o.port = base + i
		o.Config = append([]string{
			"cluster-enabled yes", "cluster-node-timeout 2000", "cluster-port " + strconv.Itoa(base+clusterNodes+i),
		}, opts.Config...)
		c.Nodes = append(c.Nodes, Start(t, o))
	}
	for i, n := range c.Nodes {
		n.Do("cluster", "addslotsrange", slots*i/clusterNodes, slots*(i+1)/clusterNodes-1)
		n.Do("cluster", "set-config-epoch", i+1)
		n.Do("cluster", "meet", "127.0.0.1", base, base+clusterNodes)
	}
	for _, n := range c.Nodes {
		n.Await("a working cluster", func() bool {
			info := n.Do("cluster", "info")
			return strings.Contains(info, "cluster_state:ok") &&
				strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", clusterNodes))
		})
	}
	return c
}

// URL is the cluster's for redislog.
func (c *Cluster) URL() string {
	addrs := make([]string, 0, len(c.Nodes))
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Addr)
	}
	s := c.Nodes[0]
	list := strings.Join(addrs, ",")
	if s.opts.Password != "" {
		list = ":" + s.opts.Password + "@" + list
	}
	return "redis-cluster://" + list
}

// Group is a master with one replica and a Sentinel that makes the replica the
// master when the master does not answer for half a second.
type Group struct{ Master, Replica, Sentinel *Server }

// GroupName is what the Sentinel calls its master.
const GroupName = "pool"

// StartGroup runs a group until t ends. It returns when the replica follows and the
// Sentinel knows it.
func StartGroup(t testing.TB, opts Options) *Group {
	t.Helper()
	g := &Group{Master: Start(t, opts)}
	o := opts
	host, port, _ := strings.Cut(g.Master.Addr, ":")
	o.Config = append([]string{"replicaof " + host + " " + port}, opts.Config...)
	g.Replica = Start(t, o)
	g.Replica.Await("a replica that follows", func() bool {
		return strings.Contains(g.Replica.Do("info", "replication"), "master_link_status:up")
	})
	g.Sentinel = Start(t, Options{mode: "--sentinel", Config: []string{
		"sentinel monitor " + GroupName + " " + host + " " + port + " 1",
		"sentinel down-after-milliseconds " + GroupName + " 500",
		"sentinel failover-timeout " + GroupName + " 4000",
	}})
	g.Sentinel.Await("a Sentinel that knows the replica", func() bool {
		return strings.Contains(g.Sentinel.Do("sentinel", "replicas", GroupName), g.Replica.Addr)
	})
	return g
}

// URL is the group's for redislog.
func (g *Group) URL() string { return "redis-sentinel://" + g.Sentinel.Addr + "/" + GroupName }

// AwaitMaster waits until the replica is the master.
func (g *Group) AwaitMaster() {
	g.Replica.t.Helper()
	g.Replica.Await("the replica to be the master", func() bool {
		return strings.Contains(g.Replica.Do("info", "replication"), "role:master")
	})
}

// Await polls until the condition holds; it fails the test after half a minute.
func (s *Server) Await(what string, cond func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	for !cond() {
		select {
		case <-ctx.Done():
			s.t.Fatalf("redis at %s: waited %v for %s", s.Addr, startLimit, what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
