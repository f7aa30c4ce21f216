package protocol

import (
	"fmt"
	"strings"
)

const pageHead = `# The protocol suite

` + "`kvlane protocol-test`" + ` drives a running endpoint picker as a gateway does, over gRPC and through a stock Envoy, and checks
the rules below. It works with any picker that speaks Envoy's ext_proc; ` + "`test/protocol`" + ` is the code.

    kvlane protocol-test --target 127.0.0.1:9002 --endpoints 127.0.0.1:8001,127.0.0.1:8002,127.0.0.1:8003 --envoy $(which envoy)

The picker has to know the endpoints: its operator lists them with ` + "`--endpoints`" + `, and for the checks through Envoy the suite
listens on their addresses. A kvlane picker can be given its log's address instead (` + "`--log 127.0.0.1:9004`" + `): then the suite writes
the endpoints there and can take them away too. A check whose rule needs something that the target does not declare is "n/a", with
the reason; ` + "`kvlane protocol-test --help`" + ` lists what can be declared. A failure shows the rule, what was sent, what came, and what
should have come.

Where a rule comes from:

- **protocol**: the endpoint picker protocol of the Gateway API inference extension (its proposal 004).
- **envoy**: what Envoy's ext_proc API says and Envoy enforces.
- **standard**: HTTP, gRPC and its health protocol.
- **kvlane**: our own rule, for safety or for the user's sake. Another picker may see it differently.

This page is made by ` + "`make protocol PEER=1`" + ` from the reports of the runs below.

`

// Page is the documentation of the suite with the results of some runs.
func Page(reports ...*Report) string {
	var b strings.Builder
	b.WriteString(pageHead)
	b.WriteString("| run | date | Envoy | passed | failed | n/a |\n|---|---|---|---|---|---|\n")
	for _, r := range reports {
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d |\n", r.Target, r.Date.Format("2006-01-02"), or(r.Envoy, "not used"),
			r.Count(Passed), r.Count(Failed), r.Count(NotApplicable))
	}
	b.WriteString("\n## Checks\n\n")
	writeTable(&b, reports)
	for _, r := range reports {
		writeFailures(&b, r)
	}
	return b.String()
}

func writeTable(b *strings.Builder, reports []*Report) {
	b.WriteString("| check | rule | from |")
	for _, r := range reports {
		fmt.Fprintf(b, " %s |", r.Target)
	}
	fmt.Fprintf(b, "\n|---|---|---|%s\n", strings.Repeat("---|", len(reports)))
	for _, c := range Checks() {
		fmt.Fprintf(b, "| %s | %s | %s |", c.ID, cell(c.Rule), c.Source)
		for _, r := range reports {
			fmt.Fprintf(b, " %s |", r.mark(c.ID))
		}
		b.WriteString("\n")
	}
}

// mark is a check's outcome in a word.
func (r *Report) mark(id string) string {
	for i := range r.Results {
		if res := &r.Results[i]; res.ID == id {
			return map[Outcome]string{Passed: "ok", Failed: "**fails**", NotApplicable: "n/a"}[res.Outcome]
		}
	}
	return "not run"
}

func writeFailures(b *strings.Builder, r *Report) {
	if r.Count(Failed) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## What %s does instead\n\n", r.Target)
	for i := range r.Results {
		if res := &r.Results[i]; res.Outcome == Failed {
			fmt.Fprintf(b, "- `%s`: %s\n", res.ID, strings.ReplaceAll(short(res.Failure.Got), r.Address, "the picker"))
		}
	}
}

// maxShown bounds what a page shows of one failure, bytes.
const maxShown = 200

func short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxShown {
		return s[:maxShown] + "..."
	}
	return s
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
