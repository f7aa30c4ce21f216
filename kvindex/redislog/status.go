package redislog

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Status says how the log is, for metrics, pages and log lines.
type Status struct {
	// Connected: the last command of each direction (reading, writing) was answered
	// without an error. Since is when that last changed; zero before the first command.
	Connected bool
	Since     time.Time
	// Err is the last error while not Connected. Full says that it was the server's
	// memory limit ("OOM"): it can be read, and nothing can be written.
	Err  string
	Full bool
	// Denied says that it was the user, the password or what the user may do.
	Denied bool
	// Complete: a reader of this log has been given the present state. ID is the
	// log's as it was read last: a new one means that Redis was emptied.
	Complete bool
	ID       string
	// Lag is how far the reader is behind what is in Redis, as of the last look,
	// plus the time since then while not Connected. 0 without a reader.
	Lag time.Duration
	// Workers are known to the reader.
	Workers int
	// Appended were written. Dropped were given to Append and not written, because
	// Redis could not be reached, was too slow or full. Repeats were ignored; Gaps
	// and Fenced refused.
	Appended, Dropped, Repeats, Gaps, Fenced uint64
	// Read were passed on by the reader. Skipped were of a kind that this version
	// does not know.
	Read, Skipped uint64
	// Reloads counts how often the present state was read, Broken how often a
	// reader's session ended with an error, Missed how often a reader found that
	// entries were gone before it had read them.
	Reloads, Broken, Missed uint64
	// Checkpoints are snapshots written; CheckpointErrors those that were not.
	Checkpoints, CheckpointErrors uint64
	// Unavailable counts commands that failed.
	Unavailable uint64
}

// reporter keeps the status.
type reporter struct {
	mu   sync.Mutex
	s    Status
	err  [2]error  // of the last command of a side
	seen time.Time // the last look at the lag
}

// side is a direction of traffic; each has an error of its own, since a full or a
// read-only server takes one and not the other.
type side int

const (
	reading side = iota
	writing
)

// Status says how the log is now.
func (l *Log) Status() Status {
	l.status.mu.Lock()
	defer l.status.mu.Unlock()
	s := l.status.s
	if !s.Connected && s.Complete {
		s.Lag += time.Since(l.status.seen)
	}
	return s
}

func (r *reporter) count(f func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.s)
}

// saw notes how a command ended.
func (r *reporter) saw(which side, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err[which] = err
	if err != nil {
		r.s.Unavailable++
	} else if other := &r.err[1-which]; !isReply(*other) {
		*other = nil // the connection is there again; only what the server refused stands
	}
	r.judge()
}

// errFull is what a reader finds of a full server that nobody here writes to.
var errFull = errors.New("OOM command not allowed: the server is at its maxmemory")

// beat notes that the server took the reader's small write, and whether it takes
// larger ones: whatever else it refused before it would take now.
func (r *reporter) beat(crowded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !crowded:
		r.err[writing] = nil
	case !full(r.err[writing]):
		r.err[writing] = errFull
	}
	r.judge()
}

// judge makes the status of the two errors; the caller holds mu.
func (r *reporter) judge() {
	worst := r.err[writing]
	if worst == nil {
		worst = r.err[reading]
	}
	if connected := worst == nil; connected != r.s.Connected || r.s.Since.IsZero() {
		r.s.Connected, r.s.Since = connected, time.Now()
	}
	r.s.Err, r.s.Full, r.s.Denied = "", false, false
	if worst != nil {
		r.s.Err, r.s.Full, r.s.Denied = explained(worst).Error(), full(worst), denied(worst)
	}
}

// looked notes how far behind the reader is.
func (r *reporter) looked(lag time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.s.Lag, r.seen = lag, time.Now()
}

// isReply reports whether an error came from the server, as "OOM" and "READONLY" do.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) || errors.Is(err, errFull)
}

// full reports whether the server refused a write for want of memory.
func full(err error) bool {
	return err != nil && strings.Contains(err.Error(), "OOM command not allowed")
}

// denied reports whether the server let the user not in, or not do what it has to.
func denied(err error) bool {
	if err == nil {
		return false
	}
	for _, text := range []string{"WRONGPASS", "NOAUTH", "NOPERM", "unauthenticated", "invalid password", "without any password configured"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}
