package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/epp"
	"github.com/kvlane/kvlane/internal/verify"
	"github.com/kvlane/kvlane/kvindex"
)

func newIndexCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "index",
		Short: "Look into a picker's index and check it against the engines",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var admin []string
	var asJSON bool
	cmd.PersistentFlags().StringSliceVar(&admin, "admin", []string{epp.DefaultListen().Admin}, "admin addresses of the pickers, separated by commas")
	cmd.PersistentFlags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.AddCommand(newIndexStatsCommand(&admin, &asJSON), newIndexDumpCommand(&admin), newIndexVerifyCommand(&admin, &asJSON))
	return cmd
}

func newIndexStatsCommand(admin *[]string, asJSON *bool) *cobra.Command {
	return &cobra.Command{
		Use:   "stats",
		Short: "Show what each picker knows: blocks of every worker, memory, the state of its log",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			views := map[string]epp.IndexView{}
			for _, address := range *admin {
				v, err := epp.NewClient(address).Index(cmd.Context())
				if err != nil {
					return noPicker(address, err)
				}
				views[address] = v
			}
			if *asJSON {
				return printJSON(cmd.OutOrStdout(), views)
			}
			for _, address := range *admin {
				if err := printIndex(cmd.OutOrStdout(), address, views[address]); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func newIndexDumpCommand(admin *[]string) *cobra.Command {
	var worker string
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "List the block hashes of every owner as JSON lines",
		Long: `List the block hashes of every owner in a picker's index as JSON lines:

  {"owner":{"worker":"127.0.0.1:8000","rank":0,"tier":"device","blocks":2}}
  {"hashes":["00000000000000a1","00000000000000b2"]}
  {"end":{"owners":1}}`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(*admin) != 1 {
				return fmt.Errorf("--admin names %d pickers: want one", len(*admin))
			}
			address := (*admin)[0]
			if err := knownWorker(cmd.Context(), address, kvindex.WorkerID(worker)); err != nil {
				return noPicker(address, err)
			}
			body, err := epp.NewClient(address).Dump(cmd.Context(), kvindex.WorkerID(worker))
			if err != nil {
				return noPicker(address, err)
			}
			defer body.Close()
			if _, err := io.Copy(cmd.OutOrStdout(), body); err != nil {
				return fmt.Errorf("copy the picker's answer: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&worker, "worker", "", "only this worker's")
	return cmd
}

func newIndexVerifyCommand(admin *[]string, asJSON *bool) *cobra.Command {
	o := verify.Options{Wait: 5 * time.Second, Probes: 100}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare the pickers' indexes with what the engines say they hold",
		Long: `Compare the index of each picker with what the engines say they hold, block by
block, while they work.

An engine that can list its content is taken at its word (the simulated engine
can). Any other is known by its events: all of them are asked for once more, from
the first, and folded. That costs the engine an answer of up to 10,000 batches. If
it no longer has the first ones, its workers are unverifiable; it is then sent up
to --probe known prompts with one output token each, and its count of cached
tokens is compared with the index' answer.

The exit status is 1 if anything differs, 2 if nothing does but a worker cannot be
asked or could not be compared and no probe confirmed it, 3 if a picker cannot be
asked.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Wait < 0 || o.Probes < 0 {
				return errors.New("--wait and --probe: want 0 or more")
			}
			o.Pickers = *admin
			report, err := verify.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			if *asJSON {
				err = printJSON(cmd.OutOrStdout(), report)
			} else {
				err = printReport(cmd.OutOrStdout(), report)
			}
			if err != nil {
				return err
			}
			return verdict(report)
		},
	}
	cmd.Flags().DurationVar(&o.Wait, "wait", o.Wait, "how long an index may take to agree")
	cmd.Flags().IntVar(&o.Probes, "probe", o.Probes, "known prompts to send to an engine that cannot say all that it holds; 0 for none")
	return cmd
}

// verdict is the error for a report that is not clean.
func verdict(r verify.Report) error {
	rows := len(r.Rows)
	switch {
	case r.Differences > 0:
		return fmt.Errorf("%d of %d rows differ", r.Differences, rows)
	case r.Unreachable > 0:
		i := slices.IndexFunc(r.Rows, func(row verify.Row) bool { return row.State == verify.Unreachable })
		return exitError{3, fmt.Errorf("the picker at %s cannot be asked: %s", r.Rows[i].Picker, r.Rows[i].Detail)}
	case r.Unproved > 0:
		return exitError{2, fmt.Errorf("%d of %d rows could not be compared", r.Unproved, rows)}
	}
	return nil
}

// knownWorker is an error with the names that there are if the picker does not know
// the one that is asked for.
func knownWorker(ctx context.Context, address string, worker kvindex.WorkerID) error {
	if worker == "" {
		return nil
	}
	view, err := epp.NewClient(address).Index(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, w := range view.Workers {
		names = append(names, string(w.Worker))
	}
	for _, o := range view.Owners {
		names = append(names, string(o.Worker))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	switch {
	case slices.Contains(names, string(worker)):
		return nil
	case len(names) == 0:
		return fmt.Errorf("--worker %s: the picker knows no worker", worker)
	}
	return fmt.Errorf("--worker %s: the picker does not know it; there are %s", worker, strings.Join(names, ", "))
}

// noPicker adds to an error that nobody listens what one can do.
func noPicker(address string, err error) error {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("no picker at %s (is `kvlane up` running?): %w", address, err)
	}
	return err
}

func printJSON[T any](out io.Writer, v T) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func printIndex(out io.Writer, address string, v epp.IndexView) error {
	l := v.Log
	state := "connected"
	if !l.Connected {
		state = "away"
	}
	if !l.Since.IsZero() {
		state += fmt.Sprintf(" for %v", time.Since(l.Since).Round(time.Second))
	}
	if l.Error != "" {
		state += ": " + l.Error
	}
	fmt.Fprintf(out, "picker   %s\n", address)
	fmt.Fprintf(out, "log      %s, %s\n", l.Kind, state)
	fmt.Fprintf(out, "         %d records read, newest %.1f ms old then; %d gaps, %d fenced, %d faulty, %d dropped\n",
		l.Records, l.LagMs, l.Gaps, l.Fenced, l.Faulty, l.Dropped)
	fmt.Fprintf(out, "index    %d blocks in %d places, %s\n", v.Index.Blocks, v.Index.Memberships, bytesOf(v.Index.Bytes))
	fmt.Fprintf(out, "prefixes %d chunks of text, %s\n\n", v.Prefix.Chunks, bytesOf(v.Prefix.Bytes))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "worker\trank\ttier\tblocks\tepoch\tterm\tseq\t")
	for _, o := range v.Owners {
		doubt := ""
		if o.Doubtful {
			doubt = "doubtful: records were lost, a snapshot is awaited"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%d\t%d\t%d\t%s\n", o.Worker, o.Rank, o.Tier, o.Blocks, o.Epoch, o.Term, o.Seq, doubt)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the owners: %w", err)
	}
	fmt.Fprintln(out)
	return nil
}

func bytesOf(n int) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	default:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
}

func printReport(out io.Writer, r verify.Report) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "picker\tworker\trank\ttier\tindex\tengine\tmissing\textra\tresult")
	for i := range r.Rows {
		row := &r.Rows[i]
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%d\t%d\t%d\t%s\n",
			row.Picker, row.Worker, row.Rank, row.Tier, row.Index, row.Engine, row.Missing, row.Extra, result(row))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	fmt.Fprintf(out, "%d rows: %d differ, %d unverifiable", len(r.Rows), r.Differences, r.Unverified)
	if r.Unreachable > 0 {
		fmt.Fprintf(out, ", %d of pickers that cannot be asked", r.Unreachable)
	}
	fmt.Fprintf(out, " (%.0f ms)\n", r.TookMs)
	return nil
}

// result is a row's verdict in words.
func result(row *verify.Row) string {
	parts := []string{string(row.State)}
	if row.Source != "" && row.Detail == "" {
		parts = append(parts, fmt.Sprintf("(%s, before batch %d)", row.Source, row.Next))
	}
	if row.Detail != "" {
		parts = append(parts, "("+row.Detail+")")
	}
	if row.Moving > 0 {
		parts = append(parts, fmt.Sprintf("%d blocks moving", row.Moving))
	}
	if row.Unnamed > 0 {
		parts = append(parts, fmt.Sprintf("%d blocks without a name", row.Unnamed))
	}
	switch p := row.Probe; {
	case p == nil:
	case p.Error != "":
		parts = append(parts, "; probe: "+p.Error)
	default:
		parts = append(parts, fmt.Sprintf("; probed %d: %d agree, index too high %d, too low %d", p.Asked, p.Agreed, p.More, p.Less))
	}
	return strings.Join(parts, " ")
}
