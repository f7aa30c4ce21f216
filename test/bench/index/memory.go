package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/kvindex"
)

// footprint is what an index of the workload's stores costs.
type footprint struct {
	Memberships int
	// Live are the bytes of live objects on the heap, Resident those of the
	// process after everything unused went back.
	Live, Resident float64
}

// memory compares bytes per (block, worker), each measured in a process of its own.
func (b *bench) memory(ctx context.Context) error {
	for _, workers := range []int{32, 256} {
		if b.short && workers != 32 {
			continue
		}
		ours, err := measureMemory(ctx, workers, target)
		if err != nil {
			return err
		}
		theirs, err := b.peerMemory(ctx, workers)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("index, %d workers, 1,000,000 memberships", workers)
		n := float64(ours.Memberships)
		b.file.Compare(name, "live", "bytes/(block, worker)", "lower", ours.Live/n, peerName+" "+theirs.liveBy, theirs.live, 0.45)
		b.file.Compare(name, "resident", "bytes/(block, worker)", "lower", ours.Resident/n, peerName+" "+theirs.residentBy, theirs.resident, 0.45)
	}
	if b.short {
		return nil
	}
	const many = 10_000_000
	ours, err := measureMemory(ctx, 256, many)
	if err != nil {
		return err
	}
	name := "index, 256 workers, 10,000,000 memberships"
	b.file.Bound(name, "live", "bytes/(block, worker)", "lower", ours.Live/float64(ours.Memberships), 32)
	b.report(name, "resident", "bytes/(block, worker)", "lower", ours.Resident/float64(ours.Memberships))
	return nil
}

// peerBytes are the least bytes per (block, worker) of the peer's indexers.
type peerBytes struct {
	live, resident     float64
	liveBy, residentBy string
}

func (b *bench) peerMemory(ctx context.Context, workers int) (peerBytes, error) {
	var least peerBytes
	indexers := []string{"crtc", "radix"}
	if !b.short {
		indexers = append(indexers, "positional")
	}
	for _, indexer := range indexers {
		p, err := startPeer(ctx, "counting")
		if err != nil {
			return least, err
		}
		if _, err := p.ask("plan %d", workers); err != nil {
			return least, err
		}
		a, err := p.one("memory %s", indexer)
		if err != nil {
			return least, err
		}
		if err := p.stop(); err != nil {
			return least, err
		}
		n := float64(max(1, a.Memberships))
		if live := a.Live / n; least.liveBy == "" || live < least.live {
			least.live, least.liveBy = live, indexer
		}
		if resident := a.Resident / n; least.residentBy == "" || resident < least.resident {
			least.resident, least.residentBy = resident, indexer
		}
	}
	return least, nil
}

// measureMemory runs this program again to measure in an empty process.
func measureMemory(ctx context.Context, workers, memberships int) (footprint, error) {
	var f footprint
	me, err := os.Executable()
	if err != nil {
		return f, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, me, "-child", fmt.Sprintf("%d,%d", workers, memberships)) //nolint:gosec // itself
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return f, fmt.Errorf("measure memory: %w", err)
	}
	if err := json.Unmarshal(out, &f); err != nil {
		return f, fmt.Errorf("read the memory measured: %w", err)
	}
	return f, nil
}

// printMemory fills an index with the stores of a plan ("workers,memberships").
func printMemory(spec string) error {
	workers, memberships, _ := strings.Cut(spec, ",")
	w, err := strconv.ParseUint(workers, 10, 16)
	if err != nil {
		return fmt.Errorf("workers: %w", err)
	}
	m, err := strconv.Atoi(memberships)
	if err != nil {
		return fmt.Errorf("memberships: %w", err)
	}
	p := newPlan(w, m)
	debug.SetGCPercent(20) // the records are garbage at once
	f := newFeed(w, 1)
	x := kvindex.NewIndex()
	live, resident := inUse()
	p.stores(given, false, func(worker uint64, parent kvindex.BlockHash, hashes []kvindex.BlockHash) {
		f.store(worker, parent, hashes)
		if len(f.lanes[0]) > 1 && err == nil {
			err = f.applyAll(x)
		}
	})
	if err == nil {
		err = f.applyAll(x)
	}
	if err != nil {
		return err
	}
	nowLive, nowResident := inUse()
	runtime.KeepAlive(p)
	if n := x.Stats().Memberships; n != p.memberships {
		return fmt.Errorf("the index has %d memberships, want %d", n, p.memberships)
	}
	return json.NewEncoder(os.Stdout).Encode(footprint{p.memberships, nowLive - live, nowResident - resident})
}

// inUse is the memory in use after everything unused went back, in bytes.
func inUse() (live, resident float64) {
	for range 2 { // pools give up their content at the second collection
		runtime.GC()
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		panic(fmt.Sprintf("read own memory: %v", err)) // always there on Linux
	}
	pages, err := strconv.ParseFloat(string(bytes.Fields(text)[1]), 64)
	if err != nil {
		panic(fmt.Sprintf("read own memory: %v", err))
	}
	return float64(m.HeapAlloc), pages * float64(os.Getpagesize())
}
