package kvindex

import (
	"context"
	"errors"
	"fmt"
)

// ErrFenced refuses a record whose term or epoch is older than the newest seen
// for its owner: another writer has taken over.
var ErrFenced = errors.New("a newer term or epoch of this owner has written")

// ErrDenied says that the log does not let this user or password in (AUTH), or not do what it
// has to. Nothing was written; the next try may succeed once that is put right.
var ErrDenied = errors.New("the log refuses this user or password (AUTH)")

// GapError reports that records of an owner were lost. The writer answers it
// with a snapshot: a Cleared, then everything the owner holds, numbered on. The
// Cleared's Seq must be at least Want and above every Seq that this writer has
// used in the epoch. A reader that gets one from its Index (it had dropped a
// worker that writes on) tails anew: the log's snapshot rebuilds the owner.
type GapError struct {
	Owner     Owner
	Want, Got uint64
}

// Error names the owner and both numbers.
func (e *GapError) Error() string {
	return fmt.Sprintf("owner %s: want seq %d, got %d", e.Owner, e.Want, e.Got)
}

// A Log carries records from agents to pickers. Implementations: the embedded
// one and its client (kvindex/memlog), and Redis (kvindex/redislog).
type Log interface {
	// Append writes records of one writer in order. It returns a *GapError if a
	// record does not follow the owner's last one, and ErrFenced for a stale
	// writer; records before the faulty one are written.
	Append(ctx context.Context, records []Record) error
	// Tail calls apply first with what rebuilds the present state, then exactly
	// once with an empty batch, which says that this state is complete, then with
	// each later batch, in order, until ctx ends or the log fails. A tail that falls
	// too far behind ends with an error; the caller starts anew.
	Tail(ctx context.Context, apply func([]Record) error) error
	// Members is Tail for those who only ask who is there: Hellos and Byes alone,
	// for a small part of the traffic. A Hello may be repeated.
	Members(ctx context.Context, apply func([]Record) error) error
	// CheckpointDue reports whether the log asks the writer of a worker for a
	// [Log.Checkpoint], so that it can forget the records before. It is cheap and
	// does not block. A log that keeps the present state itself never asks.
	CheckpointDue(w WorkerID) bool
	// Checkpoint gives the log what one worker's owners hold: for each of them a
	// Cleared with the Seq of the last record that the content includes, then
	// Stored records with Seq 0, parents first. It must not run beside an Append
	// for the same worker, and everything appended before must be included; records
	// that are not appended yet may be. Readers do not see it, and an error costs
	// nothing but the asking again.
	Checkpoint(ctx context.Context, records []Record) error
}
