package protocol

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Outcome is how a check ended.
type Outcome string

// The outcomes.
const (
	Passed        Outcome = "passed"
	Failed        Outcome = "failed"
	NotApplicable Outcome = "not applicable"
)

// Result is what became of one check.
type Result struct {
	ID      string  `json:"id"`
	Rule    string  `json:"rule"`
	Source  Source  `json:"source"`
	Outcome Outcome `json:"outcome"`
	// Reason says why a check is not applicable.
	Reason string `json:"reason,omitempty"`
	// Failure is set if the check failed.
	Failure *Failure `json:"failure,omitempty"`
	// Ms is how long the check took, ms.
	Ms float64 `json:"ms"`
}

// Failure is what a target did and what it should have done.
type Failure struct {
	Want string `json:"want,omitempty"`
	Got  string `json:"got"`
	// Messages are what was sent (->) and what came (<-), in order; long ones are
	// shortened.
	Messages []string `json:"messages,omitempty"`
}

// Error is the failure in a line.
func (f *Failure) Error() string {
	if f.Want == "" {
		return f.Got
	}
	return "want " + f.Want + ", got " + f.Got
}

// Report is one run.
type Report struct {
	Target  string    `json:"target"`
	Address string    `json:"address"`
	Envoy   string    `json:"envoy,omitempty"` // its version; empty if it was not used
	Date    time.Time `json:"date"`
	Results []Result  `json:"results"`
}

// Count is how many checks ended so.
func (r *Report) Count(o Outcome) int {
	n := 0
	for i := range r.Results {
		if r.Results[i].Outcome == o {
			n++
		}
	}
	return n
}

// Print writes a result for people: a line if the check passed or does not apply,
// all that is known if it failed.
func (r *Result) Print(w io.Writer) {
	switch r.Outcome {
	case Passed:
		fmt.Fprintf(w, "ok    %s\n", r.ID)
	case NotApplicable:
		fmt.Fprintf(w, "n/a   %s: %s\n", r.ID, r.Reason)
	default:
		fmt.Fprintf(w, "FAIL  %s\n      rule      %s (%s)\n", r.ID, r.Rule, r.Source)
		if r.Failure.Want != "" {
			fmt.Fprintf(w, "      expected  %s\n", indent(r.Failure.Want))
		}
		fmt.Fprintf(w, "      got       %s\n", indent(r.Failure.Got))
		for _, m := range r.Failure.Messages {
			fmt.Fprintf(w, "      %s\n", m)
		}
	}
}

func indent(s string) string { return strings.ReplaceAll(s, "\n", "\n                ") }

// Summary is the last line of a run.
func (r *Report) Summary() string {
	return fmt.Sprintf("%s: %d checks, %d passed, %d failed, %d not applicable",
		r.Target, len(r.Results), r.Count(Passed), r.Count(Failed), r.Count(NotApplicable))
}
