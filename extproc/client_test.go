package extproc

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/picker"
)

func hintsOf(c *clients, pairs ...string) (Hints, []string) {
	m := &corev3.HeaderMap{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	h := readHead(m, nil)
	var faults []string
	out := c.hints(&h.client, func(f string) { faults = append(faults, f) })
	return out, faults
}

// TestClientHints: every name that clients use for these things is understood, ours
// before others; what cannot be used is as if it were not there.
func TestClientHints(t *testing.T) {
	cfg := Default()
	cfg.MinPriority, cfg.MaxPriority, cfg.Objectives = -10, 10, "chat=20, batch=-30"
	c := newClients(cfg)
	prioritized := func(n int) Hints { return Hints{Priority: n, Prioritized: true} }
	cases := []struct {
		name    string
		headers []string
		want    Hints
		fault   string
	}{
		{"none", []string{":path", "/x"}, Hints{}, ""},
		{"priority", []string{"X-Kvlane-Priority", " -3 "}, prioritized(-3), ""},
		{"priority over the bound", []string{"x-kvlane-priority", "1000"}, prioritized(10), ""},
		{"priority under the bound", []string{"x-kvlane-priority", "-1000"}, prioritized(-10), ""},
		{"priority that is none", []string{"x-kvlane-priority", "high"}, Hints{}, "bad-priority"},
		{"priority of Dynamo", []string{"x-dynamo-request-priority", "2"}, prioritized(2), ""},
		{"strict priority of Dynamo", []string{"x-dynamo-request-priority", "2", "x-dynamo-request-strict-priority", "5"}, prioritized(5), ""},
		{"objective", []string{"x-llm-d-inference-objective", "chat"}, prioritized(20), ""},
		{"objective, old name", []string{"x-gateway-inference-objective", "batch"}, prioritized(-30), ""},
		{"objective before Dynamo's", []string{"x-dynamo-request-priority", "2", "x-gateway-inference-objective", "batch"}, prioritized(-30), ""},
		{"ours before an objective", []string{"x-gateway-inference-objective", "batch", "x-kvlane-priority", "1"}, prioritized(1), ""},
		{"unknown objective", []string{"x-llm-d-inference-objective", "nobody"}, Hints{}, "unknown-objective"},
		{"tenant", []string{"x-kvlane-tenant", "t"}, Hints{Tenant: "t"}, ""},
		{"tenant of llm-d", []string{"x-tenant-id", "d", "x-gateway-inference-fairness-id", "g", "x-llm-d-inference-fairness-id", "l"}, Hints{Tenant: "l"}, ""},
		{"tenant of the extension", []string{"x-tenant-id", "d", "x-gateway-inference-fairness-id", "g"}, Hints{Tenant: "g"}, ""},
		{"tenant of Dynamo", []string{"x-tenant-id", "d"}, Hints{Tenant: "d"}, ""},
		{"long tenant", []string{"x-kvlane-tenant", strings.Repeat("t", maxName+1)}, Hints{}, "bad-tenant"},
		{"odd tenant", []string{"x-kvlane-tenant", "a\x00b"}, Hints{}, "bad-tenant"},
		{"targets", []string{"x-kvlane-slo-ttft-ms", "500", "x-kvlane-slo-tpot-ms", "12.5"}, Hints{SLO: picker.SLO{TTFTMs: 500, TPOTMs: 12.5}}, ""},
		{"targets of llm-d", []string{"x-llm-d-slo-ttft-ms", "1", "x-llm-d-slo-tpot-ms", "2", "x-slo-ttft-ms", "3", "x-slo-tpot-ms", "4"}, Hints{SLO: picker.SLO{TTFTMs: 1, TPOTMs: 2}}, ""},
		{"targets, old names", []string{"x-slo-ttft-ms", "3", "x-slo-tpot-ms", "4"}, Hints{SLO: picker.SLO{TTFTMs: 3, TPOTMs: 4}}, ""},
		{"target that is none", []string{"x-slo-ttft-ms", "soon"}, Hints{}, "bad-slo"},
		{"negative target", []string{"x-slo-ttft-ms", "-1"}, Hints{}, "bad-slo"},
		{"endless target", []string{"x-slo-ttft-ms", "Inf"}, Hints{}, "bad-slo"},
		{"session", []string{"x-session-id", "o", "x-kvlane-session", "k"}, Hints{Session: "k"}, ""},
		{"session of llm-d", []string{"x-session-id", "o", "x-session-token", "l"}, Hints{Session: "l"}, ""},
		{"session of Dynamo", []string{"x-session-id", "o", "x-dynamo-session-id", "d"}, Hints{Session: "d"}, ""},
		{"session of OpenCode", []string{"x-session-id", "o", "session-id", "c"}, Hints{Session: "o"}, ""},
		{"session of Claude Code", []string{"session_id", "c", "x-claude-code-session-id", "a"}, Hints{Session: "a"}, ""},
		{"session of Codex", []string{"session-id", "c"}, Hints{Session: "c"}, ""},
		{"long session", []string{"x-kvlane-session", strings.Repeat("s", maxName+1)}, Hints{}, "bad-session"},
	}
	for _, tc := range cases {
		got, faults := hintsOf(&c, tc.headers...)
		if got != tc.want || strings.Join(faults, ",") != tc.fault {
			t.Errorf("%s: got %+v %q, want %+v %q", tc.name, got, faults, tc.want, tc.fault)
		}
	}
	cfg.ClientHints = false
	c = newClients(cfg)
	if got, _ := hintsOf(&c, "x-kvlane-priority", "1", "x-kvlane-tenant", "t"); got != (Hints{}) {
		t.Errorf("not trusted, and heeded: %+v", got)
	}
}

func TestObjectives(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a=1, b = -2,": "", "a": `"a" is not`, "a=x": `"a=x" is not`, "=1": `"=1" is not`, "a=40000": "is not",
		"a=1,a=2": `"a" is given twice`,
	} {
		_, err := parseObjectives(text)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// FuzzClientHints: whatever clients send, hints are within their bounds.
func FuzzClientHints(f *testing.F) {
	for _, s := range []string{"", "1", "-9223372036854775808", "1e300", "NaN", "0x1p-2", strings.Repeat("a", 300), "a\xffb", "chat"} {
		f.Add(s, s, s, s)
	}
	cfg := Default()
	cfg.Objectives = "chat=7"
	c := newClients(cfg)
	f.Fuzz(func(t *testing.T, priority, objective, name, slo string) {
		got, _ := hintsOf(&c, HeaderPriority, priority, "x-llm-d-inference-objective", objective, HeaderTenant, name, HeaderSession, name,
			HeaderSLOTTFT, slo, HeaderSLOTPOT, slo)
		if (got.Priority < cfg.MinPriority || got.Priority > cfg.MaxPriority) && got.Priority != 7 {
			t.Errorf("priority %d", got.Priority)
		}
		for _, ms := range []float64{got.SLO.TTFTMs, got.SLO.TPOTMs} {
			if !(ms >= 0) || math.IsInf(ms, 0) {
				t.Errorf("target %v", ms)
			}
		}
		if len(got.Tenant) > maxName || len(got.Session) > maxName {
			t.Errorf("names of %d and %d bytes", len(got.Tenant), len(got.Session))
		}
	})
}

// TestEnginePriority: what the engine is told is the priority in its polarity, and
// the rest of the body is the client's, byte for byte.
func TestEnginePriority(t *testing.T) {
	cases := []struct {
		engine EnginePriority
		header string // priority; empty for none
		body   string
		want   string
	}{
		{EnginePriorityNone, "3", `{"prompt":"a","priority":9}`, `{"prompt":"a","priority":9}`},
		{EnginePriorityVLLM, "3", `{"prompt":"a"}`, `{"prompt":"a", "priority": -3}`},
		{EnginePriorityVLLM, "-3", ` { "prompt" : "a" , "n":1.0e0 } `, ` { "prompt" : "a" , "n":1.0e0, "priority": 3 } `},
		{EnginePrioritySGLang, "3", `{"prompt":"a"}`, `{"prompt":"a", "priority": 3}`},
		{EnginePriorityVLLM, "", `{"prompt":"a"}`, `{"prompt":"a"}`},
		{EnginePriorityVLLM, "0", `{"prompt":"a"}`, `{"prompt":"a"}`},
		{EnginePriorityVLLM, "0", `{"priority": 5, "prompt":"a"}`, `{"priority": 0, "prompt":"a"}`},
		{EnginePriorityVLLM, "", `{"priority": 5, "prompt":"a"}`, `{"priority": 5, "prompt":"a"}`},
		{EnginePriorityVLLM, "", `{"priority":-500,"prompt":"a"}`, `{"priority":-10,"prompt":"a"}`},
		{EnginePrioritySGLang, "", `{"priority":-500,"prompt":"a"}`, `{"priority":-10,"prompt":"a"}`},
		{EnginePriorityVLLM, "", `{"priority":null,"prompt":"a"}`, `{"priority":null,"prompt":"a"}`},
		{EnginePriorityVLLM, "2", `{"priority":null,"prompt":"a"}`, `{"priority":-2,"prompt":"a"}`},
		{EnginePriorityVLLM, "2", `{"priority":1,"x":{"priority":7},"priority":2}`, `{"priority":-2,"x":{"priority":7},"priority":-2}`},
		{EnginePriorityVLLM, "", `{"priority":1.5,"prompt":"a"}`, `{"priority":1.5,"prompt":"a"}`},
	}
	for _, tc := range cases {
		cfg := Default()
		cfg.MinPriority, cfg.MaxPriority, cfg.EnginePriority = -10, 10, tc.engine
		c := newClients(cfg)
		var h Hints
		if tc.header != "" {
			h, _ = hintsOf(&c, HeaderPriority, tc.header)
		}
		r := &openai.Request{API: openai.APICompletions, Body: []byte(tc.body)}
		got := r.Splice(c.edits(r, c.priorityOf(r, h), h.Prioritized)...)
		if string(got) != tc.want {
			t.Errorf("%s, header %q: %s became %s, want %s", tc.engine, tc.header, tc.body, got, tc.want)
		}
		if !json.Valid(got) || !bytes.Equal(bytes.TrimSpace(got)[:1], []byte("{")) {
			t.Errorf("%s is not JSON", got)
		}
	}
}
