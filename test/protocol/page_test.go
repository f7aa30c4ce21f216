package protocol_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/test/protocol"
)

// TestPageIsFresh: docs/protocol.md lists the checks that there are. Its results are
// those of the day it was made.
func TestPageIsFresh(t *testing.T) {
	b, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, c := range protocol.Checks() {
		want = append(want, c.ID)
	}
	for _, m := range regexp.MustCompile(`(?m)^\| ([a-z0-9-]+/[a-z0-9-]+) \|`).FindAllStringSubmatch(string(b), -1) {
		got = append(got, m[1])
	}
	if !slices.Equal(got, want) {
		t.Errorf("docs/protocol.md is stale: make it anew with `make protocol PEER=1`\nit lists %d checks, there are %d; missing %v, unknown %v",
			len(got), len(want), without(want, got), without(got, want))
	}
}

func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}

// TestChecks: every check is named once, after its group, and says its rule.
func TestChecks(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range protocol.Checks() {
		if seen[c.ID] || !regexp.MustCompile(`^[a-z]+/[a-z0-9-]+$`).MatchString(c.ID) {
			t.Errorf("id %q: want group/name, once", c.ID)
		}
		seen[c.ID] = true
		if len(c.Rule) < 20 || !strings.HasSuffix(c.Rule, ".") || c.Source == "" {
			t.Errorf("%s: rule %q, source %q", c.ID, c.Rule, c.Source)
		}
	}
}

func TestTargetListsAllFaults(t *testing.T) {
	err := protocol.Target{Endpoints: []string{"localhost:1", "::1:80"}, MaxBody: -1}.Validate()
	for _, want := range []string{"target:", `endpoint "localhost:1"`, `endpoint "::1:80"`, "limits:"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s among the faults, got %v", want, err)
		}
	}
	if err := (protocol.Target{Address: "127.0.0.1:1"}).Validate(); err == nil || !strings.Contains(err.Error(), "endpoints:") {
		t.Errorf("without endpoints and log: %v", err)
	}
}

// A failure says the rule, what was sent and what came.
func ExampleResult_Print() {
	r := protocol.Result{
		ID: "subset/empty-list-is-503", Rule: "A hint that is there and empty allows nothing: 503.", Source: protocol.FromProtocol,
		Outcome: protocol.Failed, Failure: &protocol.Failure{
			Want: "an immediate response with status 503", Got: `destination "192.0.2.10:8000"`,
			Messages: []string{"-> request_headers :method=\"GET\" end_of_stream", "<- request_headers x-gateway-destination-endpoint=\"192.0.2.10:8000\""},
		},
	}
	r.Print(os.Stdout)
	report := protocol.Report{Target: "a picker", Results: []protocol.Result{r}}
	fmt.Println(report.Summary())
	// Output:
	// FAIL  subset/empty-list-is-503
	//       rule      A hint that is there and empty allows nothing: 503. (protocol)
	//       expected  an immediate response with status 503
	//       got       destination "192.0.2.10:8000"
	//       -> request_headers :method="GET" end_of_stream
	//       <- request_headers x-gateway-destination-endpoint="192.0.2.10:8000"
	// a picker: 1 checks, 0 passed, 1 failed, 0 not applicable
}
