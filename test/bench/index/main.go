// Command index measures kvindex against the KV indexers of NVIDIA Dynamo: the
// same workload, queries and precautions in this process and in
// test/peers/dynamo-index, by turns. Run it by `make bench-index`; BENCH_SHORT=1
// repeats less and takes what is built of the peer, in under 50 s.
//
// Rates are per CPU second of the thread that works, so that other work on the
// machine changes them little. Call times are by the clock on the wall, without
// the batches of calls during which the thread lost its core. Freed memory stays
// with the process. What Dynamo frees on its lanes, the garbage collector frees
// here: the CPU time of a collection after each phase is added to that phase.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/kvlane/kvlane/internal/benchfile"
)

type bench struct {
	short   bool
	repeats int           // measurements of a row; their median counts
	cpu     time.Duration // CPU time of one measurement of call times
	warm    bool          // both heaps have had a workload in them
	peer    *peer
	file    *benchfile.File
}

// section is a group of rows. They run one after the other; within each both
// sides take turns.
type section struct {
	name string
	run  func(ctx context.Context) error
}

func main() {
	b := &bench{short: os.Getenv("BENCH_SHORT") != "", repeats: 3, cpu: 200 * time.Millisecond}
	if b.short {
		b.repeats, b.cpu = 1, 30*time.Millisecond
	}
	only := flag.String("only", "", "the sections to run, by comma; empty: all")
	child := flag.String("child", "", "internal: measure memory in this process and print it")
	flag.IntVar(&b.repeats, "repeats", b.repeats, "measurements of each row")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if *child != "" {
		err = printMemory(*child)
	} else {
		err = b.run(ctx, *only)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-index:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, only string) error {
	debug.SetGCPercent(-1) // collections are called for, and counted
	b.file = benchfile.New("index", b.short)
	var err error
	if b.peer, err = startPeer(ctx, "timing"); err != nil {
		return err
	}
	if b.peer.absent {
		fmt.Fprintln(os.Stderr, "bench-index: the peer's program is not built, so there is nothing to compare with; to build it: make bench-index-peer")
	}
	for _, s := range b.sections() {
		if only != "" && !strings.Contains(","+only+",", ","+s.name+",") {
			continue
		}
		start := time.Now()
		if err := s.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(os.Stderr, "== %s: %.1f s\n", s.name, time.Since(start).Seconds())
	}
	if err := b.peer.stop(); err != nil {
		return err
	}
	b.withoutPeer()
	if err := b.file.Print(os.Stdout); err != nil {
		return err
	}
	return b.file.Write(filepath.Join("out", "bench"))
}

func (b *bench) sections() []section {
	return []section{
		{"memory", b.memory},
		{"small", func(context.Context) error { return b.workload(32) }},
		{"large", func(context.Context) error { return b.workload(256) }},
		{"chain", b.chain},
		{"split", b.split},
		{"hash", b.hash},
		{"decide", b.decide},
		{"body", b.body},
	}
}

// workload runs the rows of the common workload for a number of workers.
func (b *bench) workload(workers uint64) error {
	p := newPlan(workers, target)
	a, err := b.peer.one("plan %d", workers)
	if err != nil {
		return err
	}
	ours, theirs := [3]int{len(p.conversations), p.memberships, p.distinct}, [3]int{a.Convs, a.Memberships, a.Distinct}
	if !b.peer.absent && ours != theirs {
		return fmt.Errorf("the peer plans %v conversations, memberships and blocks, not %v", theirs, ours)
	}
	if err := b.updates(p); err != nil {
		return err
	}
	if err := b.lookupsAndClear(p); err != nil {
		return err
	}
	if workers != 32 && b.short {
		return nil
	}
	if err := b.lookups(p, true, func(string) error { return nil }); err != nil {
		return err
	}
	if workers == 32 {
		return b.mixed(p)
	}
	return nil
}

// lookupsAndClear compares lookups with made keys, then forgetting a worker's blocks.
func (b *bench) lookupsAndClear(p *plan) error {
	ours, err := clearOurs(p)
	if err != nil {
		return err
	}
	least, by := 0.0, ""
	err = b.lookups(p, false, func(indexer string) error {
		us, err := b.clearPeer()
		if by == "" || us < least {
			least, by = us, indexer
		}
		return err
	})
	name := fmt.Sprintf("clear of a worker, %d workers", p.workers)
	b.compareOurs(name, "CPU time", "us", "lower", ours, peerName+" "+by, least, 50)
	return err
}

// indexers are those of the peer that are asked; the best one counts.
func (b *bench) indexers() []string {
	if b.short {
		return []string{"crtc"}
	}
	return []string{"crtc", "radix", "positional", "positional-binary"}
}

// compareOurs adds a row with a peer where the goal bounds our own value.
func (b *bench) compareOurs(name, metric, unit, better string, ours float64, peer string, peerValue, goal float64) {
	b.file.Bound(name, metric, unit, better, ours, goal)
	bound := b.file.Rows[len(b.file.Rows)-1]
	b.file.Rows = b.file.Rows[:len(b.file.Rows)-1]
	b.file.Compare(name, metric, unit, better, ours, peer, peerValue, 0)
	row := &b.file.Rows[len(b.file.Rows)-1]
	row.Goal, row.GoalOn, row.OK = bound.Goal, bound.GoalOn, bound.OK
}

// report adds a figure without a peer and without a goal.
func (b *bench) report(name, metric, unit, better string, ours float64) {
	b.file.Rows = append(b.file.Rows, benchfile.Row{Case: name, Metric: metric, Unit: unit, Better: better, Ours: ours, OK: true})
}

// withoutPeer takes the peer off rows that it gave no figure for.
func (b *bench) withoutPeer() {
	for i := range b.file.Rows {
		if r := &b.file.Rows[i]; r.PeerValue != nil && *r.PeerValue == 0 {
			r.Peer, r.PeerValue = nil, nil
			if r.GoalOn == "ratio" {
				r.Reason = "the peer's program was not built"
			}
		}
	}
}
