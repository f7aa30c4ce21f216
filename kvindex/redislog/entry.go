package redislog

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/kvindex"
)

// maxEntryBytes is when an entry of a stream or a part of a snapshot is full. A
// single larger record has one of its own.
const maxEntryBytes = 64 << 10

// maxRecordBytes bounds one record: far above any prompt, far below what Redis
// would need 10 ms for.
const maxRecordBytes = 3 << 20

// errBadEntry refuses bytes that are not an entry.
var errBadEntry = errors.New("not an entry of this log")

// head is what the records of an entry have in common. A record that is written
// without a worker has its Epoch, Term and Seq as differences to the head (modulo
// 2^64), so that a block costs little more than its hashes.
type head struct {
	worker            kvindex.WorkerID
	epoch, term, base uint64
}

// pack encodes records into entries of about maxEntryBytes. The first record makes
// the head.
func pack(records []*kvindex.Record) [][]byte {
	var done [][]byte
	var open, scratch []byte
	h := headOf(records)
	for _, r := range records {
		short := *r
		if r.Owner.Worker == h.worker {
			short.Owner.Worker = ""
			short.Epoch -= h.epoch
			short.Term -= h.term
			if r.Seq > 0 {
				short.Seq -= h.base
			}
		}
		scratch = kvindex.AppendRecord(scratch[:0], &short)
		if len(open) > 0 && len(open)+len(scratch) > maxEntryBytes {
			done, open = append(done, open), nil
		}
		if len(open) == 0 {
			open = h.append(open)
		}
		open = binary.AppendUvarint(open, uint64(len(scratch)))
		open = append(open, scratch...)
	}
	if len(open) > 0 {
		done = append(done, open)
	}
	return done
}

func headOf(records []*kvindex.Record) head {
	var h head
	if len(records) > 0 {
		h = head{worker: records[0].Owner.Worker, epoch: records[0].Epoch, term: records[0].Term}
	}
	// The base is below every number, so that no difference is 0: that means none.
	first := true
	for _, r := range records {
		if r.Owner.Worker == h.worker && r.Seq > 0 && (first || r.Seq <= h.base) {
			h.base, first = r.Seq-1, false
		}
	}
	return h
}

func (h *head) append(b []byte) []byte {
	b = append(b, formatVersion)
	b = binary.AppendUvarint(b, uint64(len(h.worker)))
	b = append(b, h.worker...)
	b = binary.AppendUvarint(b, h.epoch)
	b = binary.AppendUvarint(b, h.term)
	return binary.AppendUvarint(b, h.base)
}

// decodeEntry appends an entry's records to dst. Records that cannot be read are
// skipped and counted; an entry that is none is refused.
func decodeEntry(dst []kvindex.Record, b []byte) (records []kvindex.Record, skipped int, err error) {
	h, b, err := decodeHead(b)
	if err != nil {
		return dst, 0, err
	}
	for len(b) > 0 {
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			return dst, skipped, fmt.Errorf("record of %d bytes in %d: %w", n, len(b), errBadEntry)
		}
		r, err := kvindex.DecodeRecord(b[k : k+int(n)])
		b = b[k+int(n):]
		if err != nil {
			skipped++
			continue
		}
		if r.Owner.Worker == "" {
			r.Owner.Worker = h.worker
			r.Epoch += h.epoch
			r.Term += h.term
			if r.Seq > 0 {
				r.Seq += h.base
			}
		}
		dst = append(dst, r)
	}
	return dst, skipped, nil
}

func decodeHead(b []byte) (h head, rest []byte, err error) {
	if len(b) == 0 || b[0] != formatVersion {
		return h, nil, errBadEntry
	}
	b = b[1:]
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) {
		return h, nil, errBadEntry
	}
	h.worker, b = kvindex.WorkerID(b[k:k+int(n)]), b[k+int(n):]
	for _, p := range []*uint64{&h.epoch, &h.term, &h.base} {
		v, k := binary.Uvarint(b)
		if k <= 0 {
			return h, nil, errBadEntry
		}
		*p, b = v, b[k:]
	}
	return h, b, nil
}

// ownerState is what the log knows of an owner: its place in its sequence and the
// newest term of any of its records.
type ownerState struct {
	cursor kvindex.Cursor
	term   uint64
}

// ownerBytes is the length of an encoded ownerState; the first markBytes of it are
// a place in the sequence alone.
const (
	ownerBytes = 32
	markBytes  = 24
)

func (s ownerState) encode() string {
	b := make([]byte, 0, ownerBytes)
	for _, v := range []uint64{s.cursor.Epoch, s.cursor.Term, s.cursor.Seq, s.term} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return string(b)
}

func decodeOwnerState(s string) (o ownerState, ok bool) {
	b := []byte(s)
	if len(b) < markBytes {
		return o, false
	}
	o.cursor = kvindex.Cursor{
		Epoch: binary.BigEndian.Uint64(b), Term: binary.BigEndian.Uint64(b[8:]), Seq: binary.BigEndian.Uint64(b[16:]),
	}
	o.term = o.cursor.Term
	if len(b) >= ownerBytes {
		o.term = binary.BigEndian.Uint64(b[24:])
	}
	return o, true
}

// ownerField names an owner in its worker's hash, behind a letter: o for its
// state, s for its snapshot's place.
func ownerField(letter byte, o kvindex.Owner) string {
	return string([]byte{letter, byte(o.Rank >> 8), byte(o.Rank), byte(o.Tier)})
}

func parseOwnerField(f string, w kvindex.WorkerID) (o kvindex.Owner, ok bool) {
	if len(f) != 4 || kvindex.Tier(f[3]) >= kvindex.NumTiers {
		return o, false
	}
	return kvindex.Owner{Worker: w, Rank: uint16(f[1])<<8 | uint16(f[2]), Tier: kvindex.Tier(f[3])}, true
}
