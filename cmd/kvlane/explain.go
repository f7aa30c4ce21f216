package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/epp"
	"github.com/kvlane/kvlane/picker"
)

type explainFlags struct {
	admin        []string
	path, policy string
	json         bool
}

func newExplainCommand() *cobra.Command {
	var f explainFlags
	cmd := &cobra.Command{
		Use:   "explain [REQUEST-ID]",
		Short: "Show why a request went where it went, or where a body would go",
		Long: `Show the candidates for a request, what each would cost in milliseconds, the
choice and its reason.

With a request id (the x-request-id of an answer) it shows the plan that was
made. Without one it reads a request's body from standard input and shows the
plan that would be made now; nothing is sent or booked. The exit status is 1 if such
a request would be refused.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(f.admin) == 0 {
				return errors.New("--admin: want at least one address")
			}
			view, err := f.ask(cmd, args)
			if err != nil {
				return noPicker(strings.Join(f.admin, ", "), err)
			}
			if f.json {
				err = printJSON(cmd.OutOrStdout(), view)
			} else {
				err = printPlan(cmd.OutOrStdout(), view)
			}
			if err == nil && len(args) == 0 && view.Refusal != "" {
				err = fmt.Errorf("such a request would be refused: %s", view.Refusal)
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.admin, "admin", []string{epp.DefaultListen().Admin},
		"the picker's admin address; with several, a request is looked for in each")
	flags.StringVar(&f.path, "path", "/v1/chat/completions", "path of the request on standard input")
	flags.StringVar(&f.policy, "policy", "", "policy to ask with (default: the picker's own)")
	flags.BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

func (f *explainFlags) ask(cmd *cobra.Command, args []string) (epp.PlanView, error) {
	if len(args) == 1 {
		return f.find(cmd.Context(), args[0])
	}
	body, err := io.ReadAll(cmd.InOrStdin())
	if err != nil {
		return epp.PlanView{}, fmt.Errorf("read the body: %w", err)
	}
	if len(body) == 0 {
		return epp.PlanView{}, errors.New("standard input is empty: want a request's body, or a request id as argument")
	}
	return epp.NewClient(f.admin[0]).Explain(cmd.Context(), f.path, f.policy, body)
}

// find asks the pickers in turn: one of them has made the plan.
func (f *explainFlags) find(ctx context.Context, id string) (view epp.PlanView, err error) {
	for _, address := range f.admin {
		if view, err = epp.NewClient(address).Plan(ctx, id); err == nil {
			return view, nil
		}
	}
	return view, err
}

// printPlan writes a plan for people: the choice, then a row for each candidate.
func printPlan(out io.Writer, v epp.PlanView) error {
	exact := "estimated"
	if v.Exact {
		exact = "exact"
	}
	model := v.Model
	if v.ModelRewrite != "" {
		model += ", sent on as " + v.ModelRewrite
	}
	fmt.Fprintf(out, "request  %s  %s  model %s\n", v.Request, v.Path, model)
	fmt.Fprintf(out, "prompt   %d tokens (%s), %d known, %d cached where it goes\n", v.ISL, exact, v.KnownTokens, v.Cached)
	switch {
	case v.Refusal != "":
		fmt.Fprintf(out, "refused  %s\n", v.Refusal)
	case v.Prefill != nil:
		fmt.Fprintf(out, "choice   prefill on %s, decode on %s; first token after %.1f ms (predicted)\n", v.Prefill.Worker, v.Decode.Worker, v.TTFTMs)
	default:
		fmt.Fprintf(out, "choice   %s; first token after %.1f ms (predicted)\n", v.Decode.Worker, v.TTFTMs)
	}
	if v.Reason != "" { // a body that could not be read has no plan
		fmt.Fprintf(out, "reason   %s: %s\n", v.Reason, meaning(v.Reason))
	}
	if v.Served != "" || v.Outcome != "" {
		fmt.Fprintf(out, "served   by %s, %s\n", v.Served, v.Outcome)
	}
	if len(v.Costs) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "worker\tcached\tqueue\tload\tprefill\ttransfer\tadapter\tdecode\tdelay\tadjust\tmiss\ttotal ms\tcarry\tfirst token\t")
	for i := range v.Costs {
		printCost(w, &v.Costs[i])
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the candidates: %w", err)
	}
	if v.Omitted > 0 {
		fmt.Fprintf(out, "and %d candidates that are not kept with the plan\n", v.Omitted)
	}
	fmt.Fprint(out, `
cached   tokens that need no prefill there
queue    until its prefill can start; load: bringing blocks from slower tiers
decode   a step with the request, its time between tokens; delay: imposed on the
         requests that are already there; adjust: sessions, failures, scorers;
         miss: of a target, as predicted
total    the price: the sum of what is left of it; not in it are carry, the decode
         steps that its prefill shares the engine with, and first token: when that
         is predicted, after queue, load, prefill, transfer, adapter and carry
`)
	return nil
}

func printCost(w io.Writer, c *picker.Cost) {
	name := string(c.Target.Worker)
	if c.Target.Rank > 0 {
		name = fmt.Sprintf("%s/%d", name, c.Target.Rank)
	}
	if c.Prefill != nil {
		name = string(c.Prefill.Worker) + " > " + name
	}
	total := fmt.Sprintf("%.1f", c.Total)
	if c.Excluded != "" {
		total = c.Excluded
	}
	fmt.Fprintf(w, "%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%s\t%.1f\t%.1f\t\n",
		name, c.Cached, c.Queue, c.Load, c.Compute, c.Transfer, c.Adapter, c.Decode, c.Delay, c.Adjust, c.Miss, total, c.Carry, c.TTFT())
}

// meaning is a reason in a sentence.
func meaning(r picker.Reason) string {
	switch r {
	case picker.ReasonCached:
		return "it costs least, and the worker holds a part of the prompt"
	case picker.ReasonLeastCost:
		return "it costs least; no part of the prompt is cached there"
	case picker.ReasonSpill:
		return "another worker holds more of the prompt, but waiting for it costs more"
	case picker.ReasonRemote:
		return "prefilling on another worker and handing over costs least"
	case picker.ReasonSLO:
		return "it costs least of those that are predicted to keep the targets"
	case picker.ReasonPolicy:
		return "a policy for comparison chose"
	case picker.ReasonNoEndpoint:
		return "no worker that serves it is ready"
	case picker.ReasonSubset:
		return "no ready worker is among those that the gateway allows"
	case picker.ReasonNoModel:
		return "no worker serves this model"
	case picker.ReasonOverloaded:
		return "every candidate is over its limit"
	default:
		return "the request was not placed"
	}
}
