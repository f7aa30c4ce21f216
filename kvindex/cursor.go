package kvindex

import (
	"errors"
	"fmt"
)

// ErrMalformed refuses a record that says nothing sensible: no body for its
// kind, an unknown kind or tier, no sequence number where one is needed.
var ErrMalformed = errors.New("malformed record")

// Step is what a [Cursor] says about a record.
type Step uint8

// The steps.
const (
	// StepIgnore: a repeat, or a record that is not about blocks.
	StepIgnore Step = iota
	// StepApply: the record follows; apply it to what the owner holds.
	StepApply
	// StepReset: empty the owner, then apply the record.
	StepReset
)

// Cursor is the place of one owner in its sequence of records. It decides
// whether a record follows; it holds no blocks. The zero value has seen
// nothing. Everyone who keeps an owner's state ([Index], a [Log]) uses the same
// rules by using it:
//
//   - An older term or epoch is refused with [ErrFenced].
//   - A newer epoch resets the owner; its first record must have Seq 1 or be a
//     Cleared.
//   - Within an epoch Seq must be the last one plus 1. A Cleared may jump ahead.
//     A Seq not above the last is a repeat and ignored.
//   - A newer term in the same epoch is a new writer. It may go on where the old
//     one stopped, or begin with a Cleared of any Seq, lower ones too; anything
//     else is a gap, because what a new writer sends is never a repeat.
//   - After a gap the owner is doubtful: every record is refused until a Cleared
//     that is not below the last Seq accepted (from a newer writer, any).
//   - A Stored with Seq 0 is a part of the snapshot that the Cleared before it
//     began: it is accepted while no numbered record has followed, and ignored
//     if that Cleared was. A Learned with Seq 0 is always ignored here.
//
// Hello, Load, Booking and Bye are ignored: they carry no Seq.
type Cursor struct {
	Epoch, Term, Seq uint64
	// Doubtful is set by a gap and ends with the next accepted Cleared.
	Doubtful bool
	// filling: the last numbered record was a Cleared that was accepted.
	filling bool
}

// Advance judges r and moves the cursor. On a [*GapError] the cursor has
// become doubtful and what the owner held must be dropped. On [ErrFenced] and
// [ErrMalformed] nothing has changed.
func (c *Cursor) Advance(r *Record) (Step, error) {
	if err := r.check(); err != nil {
		return StepIgnore, err
	}
	if !r.Kind.Sequenced() || r.Kind == KindLearned && r.Seq == 0 {
		return StepIgnore, nil
	}
	if r.Term < c.Term || r.Epoch < c.Epoch {
		return StepIgnore, fmt.Errorf("%s of owner %s, term %d, epoch %d: %w", r.Kind, r.Owner, r.Term, r.Epoch, ErrFenced)
	}
	newWriter := r.Term > c.Term
	if r.Seq == 0 { // a part of a snapshot
		if c.filling && !newWriter && r.Epoch == c.Epoch {
			return StepApply, nil
		}
		return StepIgnore, nil
	}
	c.Term = r.Term
	if r.Epoch > c.Epoch {
		*c = Cursor{Epoch: r.Epoch, Term: r.Term}
		if _, err := c.follow(r, false); err != nil {
			return StepIgnore, err
		}
		return StepReset, nil
	}
	return c.follow(r, newWriter)
}

func (c *Cursor) follow(r *Record, newWriter bool) (Step, error) {
	switch {
	case r.Kind == KindCleared && (newWriter || r.Seq > c.Seq || c.Doubtful && r.Seq == c.Seq):
		c.Seq, c.Doubtful, c.filling = r.Seq, false, true
		return StepReset, nil
	case r.Seq <= c.Seq && !newWriter:
		c.filling = c.filling && r.Kind != KindCleared
		return StepIgnore, nil
	case r.Seq == c.Seq+1 && !c.Doubtful:
		c.Seq, c.filling = r.Seq, false
		return StepApply, nil
	}
	gap := &GapError{Owner: r.Owner, Want: c.Seq + 1, Got: r.Seq}
	c.Doubtful, c.filling = true, false
	if newWriter {
		c.Seq = 0 // its numbering is its own: any Cleared of it begins anew
	}
	return StepIgnore, gap
}

// check refuses records that no rule below could treat sensibly.
func (r *Record) check() error {
	ok := r.Owner.Tier < NumTiers
	switch r.Kind {
	case KindStored:
		ok = ok && r.Stored != nil
	case KindRemoved:
		ok = ok && r.Removed != nil && r.Seq > 0
	case KindCleared:
		ok = ok && r.Seq > 0
	case KindLearned:
		ok = ok && r.Learned != nil
	case KindHello:
		ok = ok && r.Hello != nil
	case KindLoad:
		ok = ok && r.Load != nil
	case KindBooking:
		ok = ok && r.Booking != nil
	case 0:
		ok = false
	case KindBye:
	default: // a later version's
		ok = ok && (r.Seq > 0 || !r.Kind.Sequenced())
	}
	if !ok {
		return fmt.Errorf("%s of owner %s, seq %d: %w", r.Kind, r.Owner, r.Seq, ErrMalformed)
	}
	return nil
}
