package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/benchfile"
	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/test/sim"
)

func newSimCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate a fleet of engines in virtual time",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSimFleetCommand(), newSimPrefixesCommand(), newSimGoldenCommand(), newSimBenchCommand())
	return cmd
}

// fleetFlags are those of one simulation.
type fleetFlags struct {
	cfg              sim.Config
	deployment, json string
	policies         []string
	limit, times     int
	seeds            int
	kvTokens         int
	hostTokens       int
	lag              time.Duration
}

func newSimFleetCommand() *cobra.Command {
	f := fleetFlags{cfg: sim.DefaultConfig(sim.Timing{}, 0)}
	cmd := &cobra.Command{
		Use:   "fleet TRACE",
		Short: "Play a trace under each routing policy and compare what clients would see",
		Long: `Play a trace through simulated engines under each routing policy, in virtual
time: the production picker and index, the production engine core, and the rules
of other routers in the picker's place.

  kvlane sim fleet test/data/traces/conversation_trace.jsonl.gz --speed 1.25

Times are in ms. "in SLO" is TTFT <= max(1 s, 3 x the unloaded prefill of the
request's uncached tokens) and 50 ms a token. "gap p99" is of the longest pause in
an answer, "busy CV" the spread of busy time over the engines in a minute,
"wait/fair" the worst wait over what equal shares of the work would have given.

A trace is a file, plain or .gz, in the layout of Mooncake, Qwen-Bailian or the
Azure LLM traces.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.policies, "policy", nil, "policies to compare: "+strings.Join(policyNames(), ", ")+" (default: all)")
	flags.Float64Var(&f.cfg.Speed, "speed", 1, "arrivals run this much faster than recorded")
	flags.IntVar(&f.cfg.Workers, "workers", f.cfg.Workers, "engines")
	flags.IntVar(&f.kvTokens, "kv-tokens", 589*512, "KV cache of an engine, tokens")
	flags.IntVar(&f.hostTokens, "host-tokens", 0, "host memory of an engine that takes what its cache evicts, tokens")
	flags.IntVar(&f.times, "times", 1, "play that many copies of the trace at once, each with blocks of its own")
	flags.StringVar(&f.deployment, "deployment", timing.DefaultDeployment, "timing of the engines, or dynamo-polynomial")
	flags.IntVar(&f.limit, "limit", 0, "play only the first N requests (0 = all)")
	flags.Uint64Var(&f.cfg.Seed, "seed", f.cfg.Seed, "seed of ties and losses")
	flags.IntVar(&f.seeds, "seeds", 1, "play each policy with that many seeds and show the means")
	flags.DurationVar(&f.lag, "lag", 0, "time until routers have what workers wrote")
	flags.Float64Var(&f.cfg.EventLoss, "loss", 0, "share of batches of cache changes that a router misses, 0 to 1")
	flags.BoolVar(&f.cfg.NoEvents, "no-events", false, "workers publish no cache changes")
	flags.IntVar(&f.cfg.Replicas, "replicas", 1, "routers that share the requests")
	flags.DurationVar(&f.cfg.BookingLag, "booking-lag", time.Millisecond, "time until a router knows of another's bookings; below 0: never")
	flags.StringVar(&f.json, "json", "", "write the results as JSON to this file (- for standard output)")
	return cmd
}

func policyNames() []string {
	var names []string
	for _, p := range sim.Policies() {
		names = append(names, p.Name)
	}
	return names
}

func (f *fleetFlags) run(cmd *cobra.Command, path string) error {
	chosen, err := choose(f.policies)
	if err != nil {
		return err
	}
	cfg := f.cfg
	cfg.EventLag, cfg.LoadLag = f.lag, f.lag
	if cfg.Trace, err = sim.LoadTrace(strings.TrimSuffix(filepath.Base(path), "_trace.jsonl.gz"), path, f.limit); err != nil {
		return err
	}
	cfg.Trace = cfg.Trace.Times(f.times)
	cfg.Blocks, cfg.HostBlocks = f.kvTokens/cfg.Trace.BlockSize, f.hostTokens/cfg.Trace.BlockSize
	if cfg.Timing, err = engineTiming(f.deployment, cfg.Blocks*cfg.Trace.BlockSize); err != nil {
		return err
	}
	results, err := sim.Compare(cmd.Context(), cfg, f.seeds, chosen)
	if err != nil {
		return err
	}
	if f.json != "-" {
		out := cmd.OutOrStdout()
		bounds := cfg.Trace.Bounds(cfg.Workers * cfg.Blocks)
		fmt.Fprintf(out, "%s at speed %g: %d requests, %d workers of %d blocks, %s; hit rate at most %.1f %% (one cache of all blocks, LRU: %.1f %%)\n",
			cfg.Trace.Name, cfg.Speed, len(cfg.Trace.Entries), cfg.Workers, cfg.Blocks, cfg.Timing.Name, 100*bounds.Ideal, 100*bounds.Pooled)
		if err := sim.Print(out, chosen, results); err != nil {
			return err
		}
	}
	return writeJSON(cmd, f.json, results)
}

func choose(names []string) ([]sim.Named, error) {
	if len(names) == 0 {
		return sim.Policies(), nil
	}
	var list []sim.Named
	for _, name := range names {
		p, err := sim.Find(name)
		if err != nil {
			return nil, fmt.Errorf("--policy: %w", err)
		}
		list = append(list, p)
	}
	return list, nil
}

func engineTiming(name string, capacity int) (sim.Timing, error) {
	if name == "dynamo-polynomial" {
		return sim.Polynomial(capacity), nil
	}
	d, err := timing.Known().Find(name)
	if err != nil {
		return sim.Timing{}, fmt.Errorf("--deployment: %w", err)
	}
	return sim.Of(d), nil
}

func newSimGoldenCommand() *cobra.Command {
	var data string
	cmd := &cobra.Command{
		Use:   "golden",
		Short: "Compare the simulator with Dynamo's own replay of the same traces",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks, err := sim.CheckGolden(cmd.Context(), data)
			if err != nil {
				return err
			}
			return printGolden(cmd, checks)
		},
	}
	cmd.Flags().StringVar(&data, "data", filepath.Join("test", "data"), "folder with traces and dynamo-replay")
	return cmd
}

func printGolden(cmd *cobra.Command, checks []sim.GoldenCheck) error {
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "case\tmetric\there\tDynamo's replay\toff\tlimit\tok")
	missed := 0
	for _, c := range checks {
		for _, d := range c.Deviations {
			limit, ok := "-", "-"
			if c.Bound() {
				limit, ok = fmt.Sprintf("%.2f", d.Limit), fmt.Sprint(d.OK())
				if !d.OK() {
					missed++
				}
			}
			fmt.Fprintf(t, "%s\t%s\t%.2f\t%.2f to %.2f\t%+.3f\t%s\t%s\n", &c.Golden, d.Metric, d.Ours, d.Low, d.High, d.Off, limit, ok)
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if missed > 0 {
		return fmt.Errorf("%d figures are further off than allowed", missed)
	}
	return nil
}

// benchFlags say what a benchmark covers and where its files are.
type benchFlags struct {
	data, dir string
	traces    []string
	blocks    []int
}

func newSimBenchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Every policy over the loads of both traces, against the goals; writes fleet.json",
		Long: `Every policy over the loads of both traces. Loads are the speeds at which
Dynamo's cost has 95, 85 and 65 % of the requests in the SLO, found by bisection,
and an overload. BENCH_SHORT=1 does one trace at one load.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().StringVar(&f.data, "data", filepath.Join("test", "data"), "folder with traces and dynamo-replay")
	cmd.Flags().StringVar(&f.dir, "out", filepath.Join("out", "bench"), "folder for fleet.json and fleet-results.json")
	cmd.Flags().StringSliceVar(&f.traces, "traces", []string{"conversation", "synthetic"}, "traces of the data folder")
	cmd.Flags().IntSliceVar(&f.blocks, "blocks", []int{589, 1469}, "KV blocks of 512 tokens an engine: 301k tokens (two H100), 752k (two H200)")
	return cmd
}

func (f *benchFlags) run(cmd *cobra.Command) error {
	short := os.Getenv("BENCH_SHORT") != ""
	ctx := cmd.Context()
	start := time.Now()
	file := benchfile.New("fleet", short)
	plan := sim.Plan{
		Workers: 8, Blocks: f.blocks, Policies: sim.Policies(), Seed: 1, Progress: cmd.ErrOrStderr(),
	}
	if short {
		f.traces, plan.Blocks, plan.Loads = []string{"synthetic"}, []int{589}, []string{sim.LoadModerate}
	}
	for _, name := range f.traces {
		t, err := sim.LoadTrace(name, filepath.Join(f.data, "traces", name+"_trace.jsonl.gz"), 0)
		if err != nil {
			return err
		}
		plan.Traces = append(plan.Traces, t)
	}
	study, err := plan.Run(ctx)
	if err != nil {
		return err
	}
	study.AddRows(file)
	if !short { // the tests have both
		if err := f.addRest(ctx, cmd.ErrOrStderr(), file, study, plan); err != nil {
			return err
		}
	}
	out := cmd.OutOrStdout()
	if err := file.Print(out); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s on %d processors\n", time.Since(start).Round(time.Second), runtime.GOMAXPROCS(0))
	if err := file.Write(f.dir); err != nil {
		return err
	}
	if err := f.report(file, study); err != nil {
		return err
	}
	return writeJSON(cmd, filepath.Join(f.dir, "fleet-results.json"), study)
}

// report writes the page of plots, and the main one alone.
func (f *benchFlags) report(file *benchfile.File, study *sim.Study) error {
	var page strings.Builder
	if err := study.WriteReport(&page, file); err != nil {
		return err
	}
	files := map[string]string{"fleet.html": page.String()}
	if main := study.MainPlot(); main != "" {
		files["fleet.svg"] = main
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	return nil
}

// addRest adds the robustness axes at the moderate load, tiers, larger fleets, learned
// prefixes, and how near the simulator is to Dynamo's own replay.
func (f *benchFlags) addRest(ctx context.Context, progress io.Writer, file *benchfile.File, study *sim.Study, plan sim.Plan) error {
	for _, t := range plan.Traces {
		list, err := plan.Robust(ctx, study, t)
		if err != nil {
			return err
		}
		sim.AddRobustness(file, list)
		if err := sim.PrintRobustness(progress, list); err != nil {
			return err
		}
		if err := plan.AddForesight(ctx, file, study, t); err != nil {
			return err
		}
		splits, err := plan.Split(ctx, study, t)
		if err != nil {
			return err
		}
		sim.AddSplits(file, splits)
		tiers, err := plan.Tiers(ctx, study, t)
		if err != nil {
			return err
		}
		sim.AddTiers(file, tiers)
		if err := sim.PrintTiers(progress, tiers); err != nil {
			return err
		}
		if err := sim.PrintSplits(progress, splits); err != nil {
			return err
		}
	}
	crowd, err := sim.DefaultFlood(plan.Traces[len(plan.Traces)-1])
	if err != nil {
		return err
	}
	flooded, err := crowd.Run(ctx)
	if err != nil {
		return err
	}
	sim.AddFlood(file, crowd, flooded)
	scales, err := plan.Scale(ctx, study, plan.Traces[len(plan.Traces)-1])
	if err != nil {
		return err
	}
	sim.AddScales(file, scales)
	prefixes, err := sim.ComparePrefixes(ctx, sim.DefaultTexts(), sim.PrefixSeeds)
	if err != nil {
		return err
	}
	sim.AddPrefixes(file, prefixes)
	if err := prefixes.Print(progress); err != nil {
		return err
	}
	checks, err := sim.CheckGolden(ctx, f.data)
	if err != nil {
		return err
	}
	for _, c := range checks {
		c.AddRows(file)
	}
	return nil
}
