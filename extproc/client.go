package extproc

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/picker"
)

// Names of the headers in which a client says what it wants of the picker. llm-d's,
// Dynamo's and agents' own names are understood too ([clientHeaders.take]).
const (
	// HeaderPriority is a whole number, higher first.
	HeaderPriority = "x-kvlane-priority"
	// HeaderTenant names whom fairness counts the request for.
	HeaderTenant = "x-kvlane-tenant"
	// HeaderSLOTTFT and HeaderSLOTPOT are targets, ms: the time to first token and the
	// mean time between later ones.
	HeaderSLOTTFT = "x-kvlane-slo-ttft-ms"
	HeaderSLOTPOT = "x-kvlane-slo-tpot-ms"
	// HeaderSession names the conversation or agent run.
	HeaderSession = "x-kvlane-session"
)

// Hints are what a client wants, within what the operator allows.
type Hints struct {
	// Priority is the band in which the request waits; higher first. Prioritized says
	// that it was named.
	Priority    int
	Prioritized bool
	// Tenant is whom fairness counts it for; empty is a tenant like any other.
	Tenant string
	// SLO are its targets.
	SLO picker.SLO
	// Session names its conversation or agent run; empty for none.
	Session string
}

// maxName bounds a tenant's and a session's name, bytes.
const maxName = 256

// maxTargetMs bounds a target: a day.
const maxTargetMs = 24 * 3600 * 1000

// clientHeaders are the values as they came. Of several names for one thing the one
// that is ours counts, then llm-d's, then Dynamo's.
type clientHeaders struct {
	priority, objective, tenant, ttft, tpot, session ranked
}

// ranked is the value of the best name so far.
type ranked struct {
	value string
	rank  uint8 // 1 is the best name; 0: there is none
}

func (r *ranked) offer(rank uint8, value string) {
	if r.rank == 0 || rank < r.rank {
		*r = ranked{value, rank}
	}
}

// take looks at one header; key is lower case.
func (h *clientHeaders) take(key string, value func() string) {
	switch key {
	case HeaderPriority:
		h.priority.offer(1, value())
	case "x-dynamo-request-strict-priority":
		h.priority.offer(2, value())
	case "x-dynamo-request-priority":
		h.priority.offer(3, value())
	case "x-llm-d-inference-objective":
		h.objective.offer(1, value())
	case "x-gateway-inference-objective":
		h.objective.offer(2, value())
	case HeaderTenant:
		h.tenant.offer(1, value())
	case "x-llm-d-inference-fairness-id":
		h.tenant.offer(2, value())
	case "x-gateway-inference-fairness-id":
		h.tenant.offer(3, value())
	case "x-tenant-id": // Dynamo
		h.tenant.offer(4, value())
	case HeaderSLOTTFT:
		h.ttft.offer(1, value())
	case "x-llm-d-slo-ttft-ms":
		h.ttft.offer(2, value())
	case "x-slo-ttft-ms":
		h.ttft.offer(3, value())
	case HeaderSLOTPOT:
		h.tpot.offer(1, value())
	case "x-llm-d-slo-tpot-ms":
		h.tpot.offer(2, value())
	case "x-slo-tpot-ms":
		h.tpot.offer(3, value())
	default:
		h.takeSession(key, value)
	}
}

func (h *clientHeaders) takeSession(key string, value func() string) {
	switch key {
	case HeaderSession:
		h.session.offer(1, value())
	case "x-session-token": // llm-d
		h.session.offer(2, value())
	case "x-dynamo-session-id":
		h.session.offer(3, value())
	case "x-session-id": // llm-d, OpenCode
		h.session.offer(4, value())
	case "x-claude-code-session-id":
		h.session.offer(5, value())
	case "session-id", "session_id": // Codex
		h.session.offer(6, value())
	}
}

// clients is what an operator allows clients to say.
type clients struct {
	trusted    bool
	least      int
	most       int
	objectives map[string]int
	engine     EnginePriority
}

// newClients is for a valid configuration.
func newClients(c Config) clients {
	objectives, _ := parseObjectives(c.Objectives) // validated
	return clients{trusted: c.ClientHints, least: c.MinPriority, most: c.MaxPriority, objectives: objectives, engine: c.EnginePriority}
}

// hints reads the values. One that cannot be used is as if it were not there, and
// fault is told.
func (c *clients) hints(h *clientHeaders, fault func(string)) Hints {
	var out Hints
	if !c.trusted || *h == (clientHeaders{}) {
		return out
	}
	out.Priority, out.Prioritized = c.priority(h, fault)
	out.Tenant = name(h.tenant, "bad-tenant", fault)
	out.Session = name(h.session, "bad-session", fault)
	out.SLO.TTFTMs = target(h.ttft, fault)
	out.SLO.TPOTMs = target(h.tpot, fault)
	return out
}

// priority is our own header's, else that of the objective, else Dynamo's; false if
// there is none. Numbers are brought within the bounds; an objective's number is the
// operator's own.
func (c *clients) priority(h *clientHeaders, fault func(string)) (int, bool) {
	if h.priority.rank != 1 && h.objective.rank > 0 {
		if p, ok := c.objectives[strings.TrimSpace(h.objective.value)]; ok {
			return p, true
		}
		fault("unknown-objective")
		return 0, false
	}
	if h.priority.rank == 0 {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(h.priority.value), 10, 32)
	if err != nil {
		fault("bad-priority")
		return 0, false
	}
	return c.within(int(n)), true
}

// within brings a client's number within the bounds.
func (c *clients) within(priority int) int { return min(max(priority, c.least), c.most) }

func name(r ranked, what string, fault func(string)) string {
	s := strings.TrimSpace(r.value)
	if len(s) > maxName || strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		fault(what)
		return ""
	}
	return s
}

func target(r ranked, fault func(string)) float64 {
	if r.rank == 0 {
		return 0
	}
	ms, err := strconv.ParseFloat(strings.TrimSpace(r.value), 64)
	if err != nil || !(ms >= 0 && ms <= maxTargetMs) {
		fault("bad-slo")
		return 0
	}
	return ms
}

// maxObjectives bounds the objectives of a configuration, maxPriority every
// priority on either side of 0.
const (
	maxObjectives = 1000
	maxPriority   = math.MaxInt16
)

// parseObjectives reads "name=priority, name=priority".
func parseObjectives(s string) (map[string]int, error) {
	out := make(map[string]int)
	for entry := range strings.SplitSeq(s, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		key, val, ok := strings.Cut(entry, "=")
		n, err := strconv.Atoi(strings.TrimSpace(val))
		key = strings.TrimSpace(key)
		switch _, twice := out[key]; {
		case !ok || err != nil || key == "" || n < -maxPriority || n > maxPriority:
			return nil, fmt.Errorf("%q is not name=priority with a priority within -%d to %d", entry, maxPriority, maxPriority)
		case twice:
			return nil, fmt.Errorf("%q is given twice", key)
		case len(out) == maxObjectives:
			return nil, fmt.Errorf("more than %d objectives", maxObjectives)
		}
		out[key] = n
	}
	return out, nil
}
