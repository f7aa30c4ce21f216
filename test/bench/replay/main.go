// Command replay measures KV-aware routing against round-robin and
// least-requests: the same trace through a fresh stack of the stock Envoy, the
// picker and four simulated engines for each policy. Run it by `make
// bench-replay`; BENCH_SHORT=1 replays less, in under 50 s.
//
// What is real: Envoy, ext_proc, picker, log, agents, HTTP and KV events over
// sockets. What is simulated: the engines' step times (Qwen3-32B on 2xH100,
// internal/timing) and the compression of time by the time scale.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvlane/kvlane/internal/benchfile"
	"github.com/kvlane/kvlane/internal/replay"
)

const (
	engines     = 4
	firstEngine = 8200 // the first engine's port in `kvlane up`
)

type bench struct {
	kvlane    string
	limit     int
	timeScale float64
	speed     float64
	traces    []string
	policies  []string
}

func main() {
	short := os.Getenv("BENCH_SHORT") != ""
	b := bench{
		kvlane: "bin/kvlane", limit: 1000, timeScale: 6, speed: 0.5,
		traces:   []string{"conversation", "synthetic"},
		policies: []string{"kv", "round-robin", "least-requests"},
	}
	if short {
		// Too few requests to warm a cache: this shows that the bench works.
		b.limit, b.timeScale, b.policies = 60, 8, []string{"kv", "round-robin"}
	}
	flag.StringVar(&b.kvlane, "kvlane", b.kvlane, "the binary under test")
	flag.IntVar(&b.limit, "limit", b.limit, "requests of each trace")
	flag.Float64Var(&b.timeScale, "time-scale", b.timeScale, "how much faster than the trace's world everything runs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := b.run(ctx, short)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-replay:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, short bool) error {
	file := benchfile.New("replay", short)
	for _, trace := range b.traces {
		results := map[string]replay.Result{}
		for _, policy := range b.policies {
			fmt.Fprintf(os.Stderr, "== %s, %s\n", trace, policy)
			result, slipped, err := b.once(ctx, trace, policy)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", trace, policy, err)
			}
			results[policy] = result
			file.Bound(trace+", "+policy, "errors", "requests", "lower", float64(result.Errors), 0)
			file.Bound(trace+", "+policy, "engines behind their clock", "s", "lower", slipped, maxSlip)
		}
		b.addRows(file, trace, results)
	}
	if err := file.Print(os.Stdout); err != nil {
		return err
	}
	return file.Write(filepath.Join("out", "bench"))
}

// addRows compares kv with each other policy. The bar is on mean TTFT
// against round-robin; the other figures are reported.
func (b *bench) addRows(file *benchfile.File, trace string, results map[string]replay.Result) {
	ours := results["kv"]
	for _, peer := range b.policies[1:] {
		p := results[peer]
		goal := 0.0
		if peer == "round-robin" {
			goal = 0.8
		}
		name := trace + ", first " + strconv.Itoa(b.limit)
		file.Compare(name, "TTFT mean", "ms", "lower", ours.TTFT.Mean, peer, p.TTFT.Mean, goal)
		file.Compare(name, "TTFT p50", "ms", "lower", ours.TTFT.P50, peer, p.TTFT.P50, 0)
		file.Compare(name, "TTFT p90", "ms", "lower", ours.TTFT.P90, peer, p.TTFT.P90, 0)
		file.Compare(name, "TTFT p99", "ms", "lower", ours.TTFT.P99, peer, p.TTFT.P99, 0)
		file.Compare(name, "TPOT mean", "ms", "lower", ours.TPOT.Mean, peer, p.TPOT.Mean, 0)
		file.Compare(name, "E2E mean", "ms", "lower", ours.E2E.Mean, peer, p.E2E.Mean, 0)
		file.Compare(name, "goodput", "share", "higher", ours.Goodput, peer, p.Goodput, 0)
		file.Compare(name, "hit rate", "share", "higher", ours.HitRate, peer, p.HitRate, 0)
	}
}

// maxSlip is how long, in wall-clock seconds over all engines, simulated engines
// may have been too slow for their own clock in a run: with more, the machine was
// measured and not the policy.
const maxSlip = 1

// once starts a stack, replays a trace through it and stops the stack.
func (b *bench) once(ctx context.Context, trace, policy string) (result replay.Result, slipped float64, err error) {
	scale := strconv.FormatFloat(b.timeScale, 'g', -1, 64)
	up, err := startStack(ctx, b.kvlane, "up", "--no-demo", "--engines", strconv.Itoa(engines), "--deployment", "qwen3-32b-bf16-2xh100",
		"--blocks", "589", "--block-size", "512", "--max-model-len", "262144", "--time-scale", scale)
	if err != nil {
		return replay.Result{}, 0, err
	}
	result, err = b.replay(ctx, trace, policy, scale)
	if err == nil {
		slipped, err = slippedSeconds(ctx)
	}
	if stopErr := up.stop(); stopErr != nil && err == nil {
		err = fmt.Errorf("stop the stack: %w", stopErr)
	}
	return result, slipped, err
}

// slippedSeconds sums what the engines say of their clocks.
func slippedSeconds(ctx context.Context) (float64, error) {
	sum := 0.0
	for port := firstEngine; port < firstEngine+engines; port++ {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", port), http.NoBody)
		if err != nil {
			return 0, fmt.Errorf("build request: %w", err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, fmt.Errorf("read an engine's metrics: %w", err)
		}
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if name, value, ok := strings.Cut(lines.Text(), "} "); ok && strings.HasPrefix(name, "sim:slipped_seconds_total{") {
				v, err := strconv.ParseFloat(value, 64)
				if err != nil {
					return 0, fmt.Errorf("sim:slipped_seconds_total: %w", err)
				}
				sum += v
			}
		}
		_ = resp.Body.Close() // read only
	}
	return sum, nil
}

func (b *bench) replay(ctx context.Context, trace, policy, scale string) (replay.Result, error) {
	path := filepath.Join("test", "data", "traces", trace+"_trace.jsonl.gz")
	cmd := exec.CommandContext(ctx, b.kvlane, "replay", path,
		"--limit", strconv.Itoa(b.limit), "--speed", strconv.FormatFloat(b.speed, 'g', -1, 64),
		"--time-scale", scale, "--policy", policy, "--json", "-")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var result replay.Result
	if decodeErr := json.Unmarshal(out, &result); decodeErr != nil {
		return result, errors.Join(err, fmt.Errorf("read result: %w", decodeErr))
	}
	return result, result.Print(os.Stderr)
}

type stack struct {
	cmd *exec.Cmd
}

// startStack runs `kvlane up` and returns once it says that it is ready.
func startStack(ctx context.Context, path string, args ...string) (*stack, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 15 * time.Second
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "ready") {
			go func() { _, _ = io.Copy(io.Discard, out) }() // ends with the process; what it prints is in its logs too
			return &stack{cmd: cmd}, nil
		}
	}
	return nil, fmt.Errorf("%s %s ended before it was ready: %w", path, strings.Join(args, " "), cmd.Wait())
}

func (s *stack) stop() error {
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		return fmt.Errorf("interrupt: %w", err)
	}
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	return nil
}
