package up

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// host is where everything listens: nothing of a trial belongs on a network.
const host = "127.0.0.1"

// Ports are the TCP ports of one stack.
type Ports struct {
	Envoy, EnvoyAdmin           int
	ExtProc, Health, Log, Admin int
	Engines                     []EnginePorts
}

// EnginePorts are those of one worker: its agent with its admin page, the engine
// behind it and the engine's KV events with their replay.
type EnginePorts struct{ Agent, AgentAdmin, Engine, Events, Replay int }

// DefaultPorts are the documented ports of a stack of n workers.
func DefaultPorts(n int) Ports {
	p := Ports{Envoy: 8080, EnvoyAdmin: 9901, ExtProc: 9002, Health: 9003, Log: 9004, Admin: 9090}
	for i := range n {
		p.Engines = append(p.Engines, EnginePorts{Agent: 8000 + i, AgentAdmin: 8100 + i, Engine: 8200 + i, Events: 5557 + i, Replay: 5657 + i})
	}
	return p
}

// PortsFrom are consecutive ports from base, for a second stack: Envoy, its
// admin page, ext_proc, health, log and the picker's admin page, then five for
// each worker.
func PortsFrom(base, n int) Ports {
	p := Ports{Envoy: base, EnvoyAdmin: base + 1, ExtProc: base + 2, Health: base + 3, Log: base + 4, Admin: base + 5}
	for i := range n {
		next := base + 6 + 5*i
		p.Engines = append(p.Engines, EnginePorts{Agent: next, AgentAdmin: next + 1, Engine: next + 2, Events: next + 3, Replay: next + 4})
	}
	return p
}

// use is a port and what it is for.
type use struct {
	port int
	what string
}

func (p Ports) uses() []use {
	all := []use{
		{p.Envoy, "Envoy"}, {p.EnvoyAdmin, "Envoy's admin page"}, {p.ExtProc, "the picker's ext_proc"},
		{p.Health, "the picker's health"}, {p.Log, "the log"}, {p.Admin, "the picker's admin page"},
	}
	for i, e := range p.Engines {
		all = append(all,
			use{e.Agent, fmt.Sprintf("agent %d", i)}, use{e.AgentAdmin, fmt.Sprintf("admin page of agent %d", i)},
			use{e.Engine, fmt.Sprintf("engine %d", i)}, use{e.Events, fmt.Sprintf("KV events of engine %d", i)},
			use{e.Replay, fmt.Sprintf("KV event replay of engine %d", i)})
	}
	return all
}

// shownPorts is how many taken ports an error names.
const shownPorts = 3

// CheckFree finds out before anything starts which ports are taken.
func (p Ports) CheckFree(ctx context.Context) error {
	var config net.ListenConfig
	taken := []string{}
	wanted := map[int]string{}
	for _, u := range p.uses() {
		if other, ok := wanted[u.port]; ok {
			return fmt.Errorf("port %d is wanted for both %s and %s", u.port, other, u.what)
		}
		wanted[u.port] = u.what
		if u.port < 1 || u.port > 65535 {
			return fmt.Errorf("port %d (%s) is not within 1 to 65535", u.port, u.what)
		}
		listener, err := config.Listen(ctx, "tcp", addr(u.port))
		if err != nil {
			taken = append(taken, fmt.Sprintf("%d (%s)", u.port, u.what))
			continue
		}
		_ = listener.Close()
	}
	switch len(taken) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("port %s is in use; stop what listens there, or choose others with --port-base", taken[0])
	default:
		more := ""
		if n := len(taken) - shownPorts; n > 0 {
			taken, more = taken[:shownPorts], fmt.Sprintf(" and %d more", n)
		}
		return fmt.Errorf("is a stack running already? Ports %s%s are in use; choose others with --port-base", strings.Join(taken, ", "), more)
	}
}

func addr(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
