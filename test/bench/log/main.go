// Command log measures the log in Redis: one redis-server on this machine,
// agents that write, and two replicas' indexes that read. Run it by `make
// bench-log`; BENCH_SHORT=1 does less, in under 50 s. Agents, replicas and Redis
// share this machine's cores, so a figure here is what all of them can do together.
//
// What is written: for each worker prompts of 32 blocks in one record and answers
// of one block a record, as many blocks each, and when a worker is full the oldest
// blocks are removed, so half of all block operations are stores and half are
// removes. What waits while an Append is under way goes with the next one. Agents
// checkpoint when the log asks.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"syscall"
	"time"

	"github.com/kvlane/kvlane/internal/benchfile"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/redislog"
)

type bench struct {
	url     string // empty: an own redis-server
	profile string
	short   bool
	file    *benchfile.File
	redis   *server
}

func main() {
	b := bench{short: os.Getenv("BENCH_SHORT") != ""}
	flag.StringVar(&b.url, "redis", "", "URL of an empty Redis to use; empty starts one")
	flag.StringVar(&b.profile, "cpuprofile", "", "write a CPU profile of the throughput run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := b.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-log:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context) error {
	b.file = benchfile.New("log", b.short)
	if b.url == "" {
		s, err := startServer(ctx)
		if err != nil {
			return err
		}
		defer s.stop()
		b.redis, b.url = s, s.url
	}
	for _, step := range []func(context.Context) error{b.throughput, b.latency, b.warm} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if err := b.file.Print(os.Stdout); err != nil {
		return err
	}
	return b.file.Write("out/bench")
}

func (b *bench) open(pool string) (*redislog.Log, error) {
	return redislog.New(redislog.Options{URL: b.url, Pool: pool})
}

func (b *bench) seconds(long, short int) time.Duration {
	if b.short {
		long = short
	}
	return time.Duration(long) * time.Second
}

// throughput: four agents write as fast as they can; the figure counts until both
// indexes have everything.
func (b *bench) throughput(ctx context.Context) error {
	if b.profile != "" {
		f, err := os.Create(b.profile)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // a profile that is cut short shows it
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	run, err := b.newRun(ctx, "throughput", 4, 20000)
	if err != nil {
		return err
	}
	defer run.close()
	before := b.redis.cpu()
	began := time.Now()
	ops, err := run.flood(ctx, b.seconds(20, 6))
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	b.file.Bound("4 agents, 2 replicas, one Redis", "carried end to end", "block operations/s", "higher", float64(ops)/took, 200_000)
	if b.redis != nil {
		b.report("4 agents, 2 replicas, one Redis", "CPU of redis-server", "us per 1000 block operations", "lower",
			(b.redis.cpu()-before).Seconds()*1e9/float64(ops))
	}
	return run.agree()
}

// latency: ten agents write together 20,000 block operations a second at random
// times.
func (b *bench) latency(ctx context.Context) error {
	const rate = 20_000
	run, err := b.newRun(ctx, "latency", 10, 20000)
	if err != nil {
		return err
	}
	defer run.close()
	seen, err := run.paced(ctx, rate, b.seconds(20, 8))
	if err != nil {
		return err
	}
	slices.Sort(seen)
	name := fmt.Sprintf("10 agents, %d block operations/s", rate)
	at := func(q float64) float64 { return seen[int(q*float64(len(seen)-1))].Seconds() * 1000 }
	b.file.Bound(name, "event to visible in an index, p50", "ms", "lower", at(0.5), 5)
	b.file.Bound(name, "event to visible in an index, p99", "ms", "lower", at(0.99), 25)
	b.report(name, "event to visible in an index, greatest", "ms", "lower", at(1))
	return run.agree()
}

// warm: 50 workers hold 20,000 blocks each; a fresh replica reads them.
func (b *bench) warm(ctx context.Context) error {
	const workers, each = 50, 20000
	run, err := b.newRun(ctx, "warm", workers, each)
	if err != nil {
		return err
	}
	defer run.close()
	if err := run.fill(ctx); err != nil {
		return err
	}
	l, err := b.open("warm")
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // nothing more is read
	began := time.Now()
	r := follow(ctx, l)
	defer r.stop()
	if err := r.await(ctx); err != nil {
		return err
	}
	took := time.Since(began)
	blocks := r.index.Stats().Memberships
	if blocks != workers*each {
		return fmt.Errorf("the fresh replica holds %d of %d blocks", blocks, workers*each)
	}
	name := "50 workers, 1,000,000 blocks"
	b.file.Bound(name, "fresh replica warm", "s", "lower", took.Seconds(), 5)
	bytes, err := run.memory(ctx)
	if err != nil {
		return err
	}
	b.file.Bound(name, "memory in Redis after trimming", "bytes/block", "lower", float64(bytes)/float64(blocks), 32)
	return nil
}

func (b *bench) report(name, metric, unit, better string, ours float64) {
	b.file.Rows = append(b.file.Rows, benchfile.Row{Case: name, Metric: metric, Unit: unit, Better: better, Ours: ours, OK: true})
}

// device is the only owner of a worker here.
func device(n int) kvindex.Owner {
	return kvindex.Owner{Worker: kvindex.WorkerID(fmt.Sprintf("10.0.0.%d:8000", n))}
}
