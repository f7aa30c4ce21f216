package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/test/protocol"
)

type protocolFlags struct {
	target protocol.Target
	only   string
	opts   protocol.Options
	json   bool
	out    string
}

func newProtocolCommand() *cobra.Command {
	f := protocolFlags{opts: protocol.Options{Timeout: protocol.DefaultTimeout}}
	cmd := &cobra.Command{
		Use:   "protocol-test",
		Short: "Test any endpoint picker against the protocol, over gRPC and through Envoy",
		Long: `Drive a running endpoint picker as a gateway does and check that it keeps the
rules of the endpoint picker protocol, of Envoy and of HTTP, and our own. It works
with any picker that speaks ext_proc; docs/protocol.md has the rules.

The picker has to know the endpoints. List them with --endpoints, or, for a
kvlane picker, let the suite write its own to the picker's log with --log. With
--envoy the suite listens on the endpoints' addresses itself, so they must be of
this machine.

What the target does not declare is not tested: such checks are "n/a". Some checks
send many requests at once: a picker whose limits or targets refuse them (429)
fails those. The exit status is 1 if a check fails.`,
		Example: `  kvlane protocol-test --target 127.0.0.1:9002 --endpoints 127.0.0.1:8001,127.0.0.1:8002
  kvlane protocol-test --target 127.0.0.1:9002 --health 127.0.0.1:9003 --log 127.0.0.1:9004 --envoy envoy`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags, t := cmd.Flags(), &f.target
	flags.StringVar(&t.Address, "target", "", "host:port of the picker's ext_proc service")
	flags.BoolVar(&t.TLS, "tls", false, "connect with TLS, whatever the certificate")
	flags.StringVar(&t.Health, "health", "", "host:port of its gRPC health service")
	flags.StringVar(&t.Log, "log", "", "host:port of the log of a kvlane picker that has no other workers: the suite makes the endpoints known")
	flags.StringSliceVar(&t.Endpoints, "endpoints", nil, "ip:port of all endpoints that the picker chooses from")
	flags.StringVar(&t.Model, "model", "", "model that the endpoints serve, if the picker reads bodies")
	flags.IntVar(&t.MaxBody, "max-body", 0, "largest body that the picker reads, bytes")
	flags.IntVar(&t.MaxRequests, "max-requests", 0, "requests that the picker gives each endpoint before it sheds")
	flags.DurationVar(&t.BodyTimeout, "body-timeout", 0, "how long the picker waits for the rest of a body")
	flags.BoolVar(&t.DuplexOnly, "duplex-only", false, "the picker works in body mode FULL_DUPLEX_STREAMED only")
	flags.StringVar(&t.Envoy, "envoy", "", "path of an Envoy; without one the checks through Envoy do not apply")
	flags.StringVar(&t.Name, "name", "", "what reports call the target (default: its address)")
	flags.StringVar(&f.only, "run", "", "run only checks whose id matches this regular expression")
	flags.DurationVar(&f.opts.Timeout, "timeout", f.opts.Timeout, "bound for one answer")
	flags.Uint64Var(&f.opts.Seed, "seed", 0, "seed of random orders (default: the clock)")
	flags.BoolVar(&f.json, "json", false, "print one JSON report in place of lines")
	flags.StringVar(&f.out, "out", "", "write the JSON report to this file too")
	cmd.AddCommand(newProtocolListCommand(), newProtocolPageCommand())
	return cmd
}

func (f *protocolFlags) run(cmd *cobra.Command) error {
	if f.target.Address == "" {
		return errors.New("--target: want the host:port of a picker's ext_proc service")
	}
	if f.only != "" {
		only, err := regexp.Compile(f.only)
		if err != nil {
			return fmt.Errorf("--run: %w", err)
		}
		f.opts.Only = only
	}
	out := cmd.OutOrStdout()
	if !f.json {
		f.opts.Progress = func(r protocol.Result) { r.Print(out) }
	}
	report, err := protocol.Run(cmd.Context(), f.target, f.opts)
	if err != nil {
		return err
	}
	if f.out != "" {
		if err := writeReport(f.out, report); err != nil {
			return err
		}
	}
	if f.json {
		if err := printJSON(out, report); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(out, report.Summary())
	}
	if n := report.Count(protocol.Failed); n > 0 {
		return fmt.Errorf("%s breaks %d of %d rules", report.Target, n, len(report.Results))
	}
	return nil
}

func writeReport(path string, r *protocol.Report) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	return os.WriteFile(path, append(b, '\n'), 0o644) //nolint:gosec // a report is for everybody
}

func newProtocolListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Print all checks with their rules",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			for _, c := range protocol.Checks() {
				fmt.Fprintf(cmd.OutOrStdout(), "%s\n    %s (%s)\n", c.ID, c.Rule, c.Source)
			}
		},
	}
}

func newProtocolPageCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "page REPORT...",
		Short: "Print the page docs/protocol.md for the JSON reports of some runs",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var reports []*protocol.Report
			for _, path := range args {
				b, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				r := new(protocol.Report)
				if err := json.Unmarshal(b, r); err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
				reports = append(reports, r)
			}
			_, err := io.WriteString(cmd.OutOrStdout(), protocol.Page(reports...))
			return err
		},
	}
}
