package main

import (
	"context"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/redislog"
)

const (
	prompt = 32  // blocks of a prompt
	term   = 1   // all agents are in their first life
	most   = 512 // records of one Append, as agents do
	lease  = 20 * time.Second
)

// agent writes for one worker that holds at most size blocks.
type agent struct {
	log   *redislog.Log
	owner kvindex.Owner
	size  int
	seq   uint64
	last  kvindex.BlockHash
	held  []kvindex.BlockHash // oldest first
	ops   int
	short int // answers to come before the next prompt
	hello time.Time
}

func newAgent(l *redislog.Log, n, size int) *agent {
	return &agent{log: l, owner: device(n), size: size, last: kvindex.BlockHash(n + 1)}
}

// next makes records of about n block operations, numbered on.
func (a *agent) next(n int) []kvindex.Record {
	var out []kvindex.Record
	for from := a.ops; a.ops-from < n && len(out) < most; {
		k := 1
		if a.short == 0 {
			k, a.short = prompt, prompt
		} else {
			a.short--
		}
		if len(a.held)+k > a.size {
			gone := a.held[:k:k]
			a.held = a.held[k:]
			out = append(out, a.record(kvindex.KindRemoved, &kvindex.Removed{Hashes: gone}, nil))
			a.ops += k
		}
		s := &kvindex.Stored{Parent: a.last}
		for range k {
			a.last = kvindex.BlockHash(xxh3.HashString(fmt.Sprint(a.owner.Worker, uint64(a.last))))
			s.Hashes = append(s.Hashes, a.last)
		}
		a.held = append(a.held, s.Hashes...)
		a.ops += k
		out = append(out, a.record(kvindex.KindStored, nil, s))
	}
	return out
}

func (a *agent) record(k kvindex.Kind, r *kvindex.Removed, s *kvindex.Stored) kvindex.Record {
	a.seq++
	return kvindex.Record{Owner: a.owner, Epoch: 1, Term: term, Seq: a.seq, EngineSeq: a.seq, Kind: k, Removed: r, Stored: s}
}

// write appends records, with a Hello once a second, and a checkpoint if the log
// asks for one.
func (a *agent) write(ctx context.Context, records []kvindex.Record) error {
	if time.Since(a.hello) > time.Second {
		a.hello = time.Now()
		records = append([]kvindex.Record{{
			Owner: a.owner, Epoch: 1, Term: term, Kind: kvindex.KindHello,
			Hello: &kvindex.Hello{Address: string(a.owner.Worker), Ready: true, Model: "m", LeaseMs: uint32(lease.Milliseconds())},
		}}, records...)
	}
	if err := a.log.Append(ctx, records); err != nil {
		return fmt.Errorf("agent %s: %w", a.owner.Worker, err)
	}
	if a.log.CheckpointDue(a.owner.Worker) {
		return a.checkpoint(ctx)
	}
	return nil
}

func (a *agent) checkpoint(ctx context.Context) error {
	records := []kvindex.Record{{Owner: a.owner, Epoch: 1, Term: term, Seq: a.seq, Kind: kvindex.KindCleared}}
	for from := 0; from < len(a.held); from += prompt { // runs as short as prompts
		records = append(records, kvindex.Record{
			Owner: a.owner, Epoch: 1, Term: term, Kind: kvindex.KindStored,
			Stored: &kvindex.Stored{Hashes: a.held[from:min(from+prompt, len(a.held))]},
		})
	}
	return a.log.Checkpoint(ctx, records)
}
