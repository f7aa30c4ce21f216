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
	"github.com/kvlane/kvlane/kvindex/enginewire"
	"github.com/kvlane/kvlane/kvindex/translate"
)

// footprint is what the workload's stores cost.
type footprint struct {
	Memberships int `json:"memberships"`
	// Live are the bytes of live objects on the heap, or what the thing measured says
	// that it has reserved if that is more: the index keeps most of it outside the
	// heap. Resident are those of the process after everything unused went back.
	Live     float64 `json:"live"`
	Resident float64 `json:"resident"`
}

// What memory is measured of. In Dynamo an engine's own hashes are the index's, so
// that it needs no translation; ours is with the agents, spread over the workers.
const (
	ofIndex  = "index"
	ofAgents = "agents" // all that each agent keeps of its engine's blocks
)

// memory compares bytes per (block, worker), each measured in a process of its own.
func (b *bench) memory(ctx context.Context) error {
	for _, workers := range []int{32, 256} {
		if b.short && workers != 32 {
			continue
		}
		theirs, err := b.peerMemory(ctx, workers)
		if err != nil {
			return err
		}
		sum := perMembership{}
		for _, c := range []struct {
			of, name string
			goal     float64
		}{
			{ofIndex, "index", 0.45},
			{ofAgents, "index and all that agents keep of blocks", 0.45},
		} {
			each, err := measureMemory(ctx, c.of, workers, target)
			if err != nil {
				return err
			}
			sum.live, sum.resident = sum.live+each.live, sum.resident+each.resident
			name := fmt.Sprintf("%s, %d workers, 1,000,000 memberships", c.name, workers)
			b.file.Compare(name, "live", perMember, "lower", sum.live, peerName+" "+theirs.liveBy, theirs.live, c.goal)
			why := ""
			if c.of == ofAgents {
				why = "an agent keeps the engine's name and ours of each block, 8 bytes each, what comes before it, and an index"
			}
			b.file.Because(why)
			b.file.Compare(name, "resident", perMember, "lower", sum.resident, peerName+" "+theirs.residentBy, theirs.resident, c.goal)
			b.file.Because(why)
		}
	}
	if b.short {
		return nil
	}
	each, err := measureMemory(ctx, ofIndex, 256, 10*target)
	if err != nil {
		return err
	}
	name := "index, 256 workers, 10,000,000 memberships"
	b.file.Bound(name, "live", perMember, "lower", each.live, 32)
	b.report(name, "resident", perMember, "lower", each.resident)
	return nil
}

const perMember = "bytes/(block, worker)"

type perMembership struct{ live, resident float64 }

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
func measureMemory(ctx context.Context, of string, workers, memberships int) (perMembership, error) {
	me, err := os.Executable()
	if err != nil {
		return perMembership{}, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, me, "-child", fmt.Sprintf("%s,%d,%d", of, workers, memberships))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return perMembership{}, fmt.Errorf("measure memory: %w", err)
	}
	var f footprint
	if err := json.Unmarshal(out, &f); err != nil {
		return perMembership{}, fmt.Errorf("read the memory measured: %w", err)
	}
	n := float64(f.Memberships)
	return perMembership{f.Live / n, f.Resident / n}, nil
}

// printMemory applies the stores of a plan ("index,32,1000000": what of, workers,
// memberships) and prints what that took.
func printMemory(spec string) error {
	words := strings.Split(spec, ",")
	if len(words) != 3 {
		return fmt.Errorf("memory of %q: want what,workers,memberships", spec)
	}
	workers, err := strconv.ParseUint(words[1], 10, 16)
	if err != nil {
		return fmt.Errorf("workers: %w", err)
	}
	memberships, err := strconv.Atoi(words[2])
	if err != nil {
		return fmt.Errorf("memberships: %w", err)
	}
	p := newPlan(workers, memberships)
	debug.SetGCPercent(20) // the records are garbage at once
	live, resident := inUse()
	kept, err := fillMemory(words[0], p)
	if err != nil {
		return err
	}
	nowLive, nowResident := inUse()
	n, bytes := kept()
	if n != p.memberships {
		return fmt.Errorf("%s: %d memberships, want %d", words[0], n, p.memberships)
	}
	f := footprint{p.memberships, max(nowLive-live, float64(bytes)), nowResident - resident}
	if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
		return fmt.Errorf("print the memory measured: %w", err)
	}
	return nil
}

// census is how many memberships there are and how many bytes are reserved for them.
type census func() (memberships, bytes int)

// fillMemory applies all stores and returns what is then there.
func fillMemory(of string, p *plan) (kept census, err error) {
	switch of {
	case ofIndex:
		x, f := kvindex.NewIndex(), newFeed(p.workers, 1)
		p.stores(given, false, func(worker uint64, parent kvindex.BlockHash, hashes []kvindex.BlockHash) {
			f.store(worker, parent, hashes)
			if len(f.lanes[0]) > 1 && err == nil {
				err = f.applyAll(x)
			}
		})
		if err == nil {
			err = f.applyAll(x)
		}
		return func() (int, int) {
			s := x.Stats()
			return s.Memberships, s.Bytes
		}, err
	case ofAgents:
		return fillAgents(p), nil
	default:
		return nil, fmt.Errorf("memory of %q: not known", of)
	}
}

// fillAgents stores all blocks in a map per worker.
func fillAgents(p *plan) census {
	maps := make([]*translate.Map, p.workers)
	for i := range maps {
		maps[i] = translate.New(uint64(i))
	}
	p.stores(given, false, func(worker uint64, parent kvindex.BlockHash, hashes []kvindex.BlockHash) {
		for _, h := range hashes {
			maps[worker].Store(enginewire.IntHash(mix(uint64(h))), h, parent, kvindex.Device)
			parent = h
		}
	})
	return func() (memberships, bytes int) {
		for _, m := range maps {
			memberships, bytes = memberships+m.Len(kvindex.Device), bytes+m.BytesReserved()
		}
		return memberships, bytes
	}
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
