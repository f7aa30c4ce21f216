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

// Ports are the TCP ports of one stack. Those that a stack does not need are 0.
type Ports struct {
	Envoy, EnvoyAdmin int
	// Log is the first picker's own log; Redis that of a local Redis in its place.
	Log, Redis int
	Pickers    []PickerPorts
	Engines    []EnginePorts
}

// PickerPorts are those of one replica of the picker.
type PickerPorts struct{ ExtProc, Health, Admin int }

// EnginePorts are those of one worker: its agent with its admin page, the engine
// behind it and the engine's KV events with their replay.
type EnginePorts struct{ Agent, AgentAdmin, Engine, Events, Replay int }

// DefaultPorts are the documented ports: the second replica has 9012, 9013 and
// 9091, a local Redis 9379.
func (o Options) DefaultPorts() Ports {
	p := Ports{Envoy: 8080, EnvoyAdmin: 9901}
	for i := range o.replicas() {
		p.Pickers = append(p.Pickers, PickerPorts{ExtProc: 9002 + 10*i, Health: 9003 + 10*i, Admin: 9090 + i})
	}
	for i := range o.Engines {
		p.Engines = append(p.Engines, EnginePorts{Agent: 8000 + i, AgentAdmin: 8100 + i, Engine: 8200 + i, Events: 5557 + i, Replay: 5657 + i})
	}
	return o.logPort(p, 9004, 9379)
}

// PortsFrom are consecutive ports from base, for a second stack: Envoy, its
// admin page, ext_proc, health, log (or Redis) and the picker's admin page, then
// five for each worker, then three for each further replica of the picker.
func (o Options) PortsFrom(base int) Ports {
	p := Ports{Envoy: base, EnvoyAdmin: base + 1, Pickers: []PickerPorts{{ExtProc: base + 2, Health: base + 3, Admin: base + 5}}}
	next := base + 6
	for range o.Engines {
		p.Engines = append(p.Engines, EnginePorts{Agent: next, AgentAdmin: next + 1, Engine: next + 2, Events: next + 3, Replay: next + 4})
		next += 5
	}
	for range o.replicas() - 1 {
		p.Pickers = append(p.Pickers, PickerPorts{ExtProc: next, Health: next + 1, Admin: next + 2})
		next += 3
	}
	return o.logPort(p, base+4, base+4)
}

// logPort adds the port of the log, if the stack brings its own.
func (o Options) logPort(p Ports, log, redis int) Ports {
	switch o.Redis {
	case "":
		p.Log = log
	case Embedded:
		p.Redis = redis
	}
	return p
}

// use is a port and what it is for.
type use struct {
	port int
	what string
}

func (p Ports) uses() []use {
	all := []use{{p.Envoy, "Envoy"}, {p.EnvoyAdmin, "Envoy's admin page"}}
	for i, k := range p.Pickers {
		name := pickerName(i, len(p.Pickers))
		all = append(all,
			use{k.ExtProc, "ext_proc of the " + name}, use{k.Health, "health of the " + name}, use{k.Admin, "admin page of the " + name})
	}
	if p.Log != 0 {
		all = append(all, use{p.Log, "the log"})
	}
	if p.Redis != 0 {
		all = append(all, use{p.Redis, "Redis"})
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
