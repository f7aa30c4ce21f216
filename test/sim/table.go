package sim

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Print writes results as a table, one line a policy.
func Print(w io.Writer, order []Named, results map[string]*Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	// Flush reports what goes wrong.
	_, _ = fmt.Fprintln(t, "policy\thit %\tTTFT mean\tp50\tp90\tp99\tTPOT\tgap p99\tE2E\tin SLO %\t2s/50ms %\trefused\tbusy %\tbusy CV\twait/fair\t")
	for _, p := range order {
		r := results[p.Name]
		if r == nil {
			continue
		}
		_, _ = fmt.Fprintf(t, "%s\t%.2f\t%.0f\t%.0f\t%.0f\t%.0f\t%.1f\t%.0f\t%.0f\t%.1f\t%.1f\t%d\t%.0f\t%.2f\t%.1f\t\n",
			p.Name, 100*r.HitRate, r.TTFT.Mean, r.TTFT.P50, r.TTFT.P90, r.TTFT.P99, r.TPOT.Mean, r.Gap.P99, r.E2E.Mean,
			100*r.Goodput, 100*r.Within2s, r.Refused, 100*r.Busy, r.BusySpread, r.Unfair)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print results: %w", err)
	}
	return nil
}
