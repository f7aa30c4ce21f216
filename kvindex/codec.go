package kvindex

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// codecVersion is the first byte of every encoded record. A reader refuses
// other versions. Only a change that an older reader would misread takes the next
// number: new fields go to the end of a body, new kinds have new numbers, and
// readers pass over what they do not know. So neighbouring versions can run mixed.
const codecVersion = 1

// ErrBadRecord refuses bytes that are not one record in the form of
// [AppendRecord].
var ErrBadRecord = errors.New("not a record")

// AppendRecord appends the binary form of r to dst: a version byte, then the
// fields in the order of the struct. Counts and numbers are uvarints (in the
// shortest form), hashes and floats 8 bytes little endian, strings and lists
// have their length in front. Only the body of r.Kind is written; fields that came
// later than version 1's first form are left out from the last that is not zero on.
func AppendRecord(dst []byte, r *Record) []byte {
	e := encoder{append(dst, codecVersion)}
	e.uint(uint64(r.Kind))
	e.string(string(r.Owner.Worker))
	e.uint(uint64(r.Owner.Rank))
	e.uint(uint64(r.Owner.Tier))
	e.uint(r.Epoch)
	e.uint(r.Term)
	e.uint(r.Seq)
	e.uint(r.EngineSeq)
	switch {
	case r.Kind == KindStored && r.Stored != nil:
		e.uint(uint64(r.Stored.Group))
		e.fixed(uint64(r.Stored.Parent))
		hashes(&e, r.Stored.Hashes)
	case r.Kind == KindRemoved && r.Removed != nil:
		e.uint(uint64(r.Removed.Group))
		hashes(&e, r.Removed.Hashes)
	case r.Kind == KindLearned && r.Learned != nil:
		e.learned(r.Learned)
	case r.Kind == KindHello && r.Hello != nil:
		e.hello(r.Hello, len(r.Rest) > 0)
	case r.Kind == KindLoad && r.Load != nil:
		e.load(r.Load, len(r.Rest) > 0)
	case r.Kind == KindBooking && r.Booking != nil:
		e.booking(r.Booking, len(r.Rest) > 0)
	case r.Kind == KindBye && (r.Lapsed || len(r.Rest) > 0):
		e.bool(r.Lapsed)
	}
	return append(e.b, r.Rest...)
}

type encoder struct{ b []byte }

func (e *encoder) uint(v uint64)  { e.b = binary.AppendUvarint(e.b, v) }
func (e *encoder) fixed(v uint64) { e.b = binary.LittleEndian.AppendUint64(e.b, v) }

func (e *encoder) string(s string) {
	e.uint(uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) strings(list []string) {
	e.uint(uint64(len(list)))
	for _, s := range list {
		e.string(s)
	}
}

func (e *encoder) bool(v bool) {
	if v {
		e.b = append(e.b, 1)
	} else {
		e.b = append(e.b, 0)
	}
}

func hashes[H ~uint64](e *encoder, list []H) {
	e.uint(uint64(len(list)))
	for _, h := range list {
		e.fixed(uint64(h))
	}
}

func (e *encoder) learned(l *Learned) {
	e.fixed(uint64(l.Seed))
	hashes(e, l.Chunks)
	e.uint(uint64(l.Bytes))
	e.uint(uint64(l.Tokens))
	e.uint(uint64(l.BlockSize))
	hashes(e, l.Blocks)
}

func (e *encoder) hello(h *Hello, all bool) {
	e.string(h.Address)
	e.uint(uint64(h.Role))
	e.bool(h.Ready)
	e.string(h.Model)
	e.strings(h.Served)
	e.strings(h.Adapters)
	e.uint(uint64(h.BlockSize))
	e.uint(uint64(h.KVBlocks))
	e.string(h.Deployment)
	e.uint(uint64(h.LeaseMs))
	bare := all || h.Bare
	places := bare || len(h.Loading) > 0 || h.Zone != "" || h.Rack != "" || h.Domain != "" || h.Lockstep || len(h.Tiers) > 0
	groups := places || len(h.Groups) > 0
	flags := groups || h.Eagle || h.NoEvents
	ranks := flags || h.Ranks != 0
	if ranks || h.Admin != "" {
		e.string(h.Admin)
	}
	if ranks {
		e.uint(uint64(h.Ranks))
	}
	if flags {
		e.bool(h.Eagle)
		e.bool(h.NoEvents)
	}
	if groups {
		e.groups(h.Groups)
	}
	if places {
		e.strings(h.Loading)
		e.string(h.Zone)
		e.string(h.Rack)
		e.string(h.Domain)
		e.bool(h.Lockstep)
		e.tiers(h.Tiers)
	}
	if bare {
		e.bool(h.Bare)
	}
}

// tiers writes a list whose items may grow, as groups.
func (e *encoder) tiers(list []TierSpec) {
	e.uint(uint64(len(list)))
	for _, t := range list {
		item := encoder{make([]byte, 0, 16)}
		item.uint(uint64(t.Tier))
		item.uint(t.BytesPerSecond)
		e.string(string(item.b))
	}
}

// groups writes a list whose items may grow: each has its length in front.
func (e *encoder) groups(list []GroupSpec) {
	e.uint(uint64(len(list)))
	for _, g := range list {
		item := encoder{make([]byte, 0, 16)}
		item.uint(uint64(g.Kind))
		item.uint(uint64(g.Window))
		item.uint(uint64(g.BlockSize))
		e.string(string(item.b))
	}
}

func (e *encoder) load(l *Load, all bool) {
	e.uint(uint64(l.Running))
	e.uint(uint64(l.Waiting))
	e.uint(l.QueuedTokens)
	e.uint(l.ContextTokens)
	e.uint(uint64(l.KVUsed))
	e.uint(uint64(l.KVTotal))
	e.strings(l.Accepted)
	e.samples(l.FirstToken)
	e.samples(l.Done)
	if all || len(l.Failed) > 0 || l.AgeMs > 0 {
		e.strings(l.Failed)
	}
	if all || l.AgeMs > 0 {
		e.uint(uint64(l.AgeMs))
	}
}

func (e *encoder) samples(list []Sample) {
	e.uint(uint64(len(list)))
	for i := range list {
		s := &list[i]
		e.string(s.Booking)
		e.int32(s.PromptTokens)
		e.int32(s.CachedTokens)
		e.int32(s.OutputTokens)
		e.fixed(math.Float64bits(s.FirstTokenMs))
		e.fixed(math.Float64bits(s.TotalMs))
		e.bool(s.Aborted)
	}
}

// int32 writes a signed number so that small ones of either sign are short.
func (e *encoder) int32(v int32) { e.uint(uint64(uint32(v<<1) ^ uint32(v>>31))) }

func (e *encoder) booking(b *Booking, all bool) {
	e.string(b.ID)
	e.string(b.Replica)
	e.uint(uint64(b.Cached))
	e.uint(uint64(b.Uncached))
	e.uint(uint64(b.State))
	e.uint(uint64(b.LeaseMs))
	if all || b.Prefill || b.Seq != 0 {
		e.uint(b.Seq)
	}
	if all || b.Prefill {
		e.bool(b.Prefill)
	}
}

// DecodeRecord reads what [AppendRecord] wrote, in this version or a neighbouring
// one: missing new fields are zero, and what is not known is in Rest. b must be one
// whole record. Anything else, also a number that is not in its shortest form, is
// refused with [ErrBadRecord]. Memory stays in proportion
// to len(b) whatever lengths b claims. Nothing in the result refers to b. Empty
// lists come back as nil.
func DecodeRecord(b []byte) (Record, error) {
	d := decoder{b: b}
	if d.byte() != codecVersion {
		d.bad = true
	}
	r := Record{Kind: Kind(d.uint(math.MaxUint8))}
	r.Owner = Owner{WorkerID(d.string()), uint16(d.uint(math.MaxUint16)), Tier(d.uint(NumTiers - 1))}
	r.Epoch = d.uint(math.MaxUint64)
	r.Term = d.uint(math.MaxUint64)
	r.Seq = d.uint(math.MaxUint64)
	r.EngineSeq = d.uint(math.MaxUint64)
	switch r.Kind {
	case KindStored:
		r.Stored = &Stored{uint16(d.uint(math.MaxUint16)), BlockHash(d.fixed()), decodeHashes[BlockHash](&d)}
	case KindRemoved:
		r.Removed = &Removed{uint16(d.uint(math.MaxUint16)), decodeHashes[BlockHash](&d)}
	case KindLearned:
		r.Learned = d.learned()
	case KindHello:
		r.Hello = d.hello()
	case KindLoad:
		r.Load = d.load()
	case KindBooking:
		r.Booking = d.booking()
	case KindBye:
		r.Lapsed = len(d.b) > 0 && d.bool()
	case 0:
		d.bad = true
	default: // no body, or one that is not known
	}
	if d.bad {
		return Record{}, fmt.Errorf("decode %d bytes: %w", len(b), ErrBadRecord)
	}
	if len(d.b) > 0 {
		r.Rest = append([]byte(nil), d.b...)
	}
	return r, nil
}

// decoder reads from the front of b. After a fault bad is set and everything
// reads as zero.
type decoder struct {
	b   []byte
	bad bool
}

// take returns the next n bytes, or nil.
func (d *decoder) take(n int) []byte {
	if d.bad || n > len(d.b) {
		d.bad = true
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) byte() byte {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (d *decoder) fixed() uint64 {
	if p := d.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

// uint reads a number up to limit in its shortest form.
func (d *decoder) uint(limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if d.bad || n <= 0 || v > limit || n > 1 && d.b[n-1] == 0 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) uint32() uint32 { return uint32(d.uint(math.MaxUint32)) }

func (d *decoder) int32() int32 {
	u := d.uint32()
	return int32(u>>1) ^ -int32(u&1)
}

func (d *decoder) bool() bool {
	v := d.byte()
	d.bad = d.bad || v > 1
	return v == 1
}

// count reads the length of a list whose items take at least size bytes.
func (d *decoder) count(size int) int { return int(d.uint(uint64(len(d.b) / size))) }

func (d *decoder) string() string { return string(d.take(d.count(1))) }

func (d *decoder) strings() []string {
	n := d.count(1)
	if n == 0 {
		return nil
	}
	// A string's header is 16 bytes and its encoding may be 1: grow as they come.
	list := make([]string, 0, min(n, 64))
	for range n {
		list = append(list, d.string())
		if d.bad {
			return nil
		}
	}
	return list
}

func decodeHashes[H ~uint64](d *decoder) []H {
	n := d.count(8)
	if n == 0 {
		return nil
	}
	list := make([]H, n)
	for i := range list {
		list[i] = H(d.fixed())
	}
	return list
}

func (d *decoder) learned() *Learned {
	return &Learned{
		Seed:      Seed(d.fixed()),
		Chunks:    decodeHashes[ChunkHash](d),
		Bytes:     d.uint32(),
		Tokens:    d.uint32(),
		BlockSize: d.uint32(),
		Blocks:    decodeHashes[BlockHash](d),
	}
}

func (d *decoder) hello() *Hello {
	h := &Hello{
		Address:    d.string(),
		Role:       Role(d.uint(math.MaxUint8)),
		Ready:      d.bool(),
		Model:      d.string(),
		Served:     d.strings(),
		Adapters:   d.strings(),
		BlockSize:  d.uint32(),
		KVBlocks:   d.uint32(),
		Deployment: d.string(),
		LeaseMs:    d.uint32(),
	}
	if d.more() {
		h.Admin = d.string()
	}
	if d.more() {
		h.Ranks = d.uint32()
	}
	if d.more() {
		h.Eagle, h.NoEvents = d.bool(), d.bool()
	}
	if d.more() {
		h.Groups = d.groups()
	}
	if d.more() {
		h.Loading, h.Zone, h.Rack, h.Domain = d.strings(), d.string(), d.string(), d.string()
		h.Lockstep, h.Tiers = d.bool(), d.tiers()
	}
	if d.more() {
		h.Bare = d.bool()
	}
	return h
}

// more reports whether a field that came later is there.
func (d *decoder) more() bool { return !d.bad && len(d.b) > 0 }

func (d *decoder) groups() []GroupSpec {
	n := d.count(1)
	if n == 0 {
		return nil
	}
	list := make([]GroupSpec, 0, min(n, 64))
	for range n {
		item := decoder{b: d.take(d.count(1)), bad: d.bad}
		list = append(list, GroupSpec{
			Kind: GroupKind(item.uint(math.MaxUint8)), Window: item.uint32(), BlockSize: item.uint32(),
		})
		if d.bad = d.bad || item.bad; d.bad {
			return nil
		}
	}
	return list
}

func (d *decoder) tiers() []TierSpec {
	n := d.count(1)
	if n == 0 {
		return nil
	}
	list := make([]TierSpec, 0, min(n, 64))
	for range n {
		item := decoder{b: d.take(d.count(1)), bad: d.bad}
		list = append(list, TierSpec{Tier: Tier(item.uint(math.MaxUint8)), BytesPerSecond: item.uint(math.MaxUint64)})
		if d.bad = d.bad || item.bad; d.bad {
			return nil
		}
	}
	return list
}

func (d *decoder) load() *Load {
	l := &Load{
		Running:       d.uint32(),
		Waiting:       d.uint32(),
		QueuedTokens:  d.uint(math.MaxUint64),
		ContextTokens: d.uint(math.MaxUint64),
		KVUsed:        d.uint32(),
		KVTotal:       d.uint32(),
		Accepted:      d.strings(),
		FirstToken:    d.samples(),
		Done:          d.samples(),
	}
	if d.more() {
		l.Failed = d.strings()
	}
	if d.more() {
		l.AgeMs = d.uint32()
	}
	return l
}

// minSample is the length of an encoded Sample with an empty id: 1 for the id,
// 3 numbers, 2 floats, 1 bool.
const minSample = 1 + 3 + 16 + 1

func (d *decoder) samples() []Sample {
	n := d.count(minSample)
	if n == 0 {
		return nil
	}
	list := make([]Sample, n)
	for i := range list {
		list[i] = Sample{
			Booking:      d.string(),
			PromptTokens: d.int32(),
			CachedTokens: d.int32(),
			OutputTokens: d.int32(),
			FirstTokenMs: math.Float64frombits(d.fixed()),
			TotalMs:      math.Float64frombits(d.fixed()),
			Aborted:      d.bool(),
		}
	}
	return list
}

func (d *decoder) booking() *Booking {
	b := &Booking{
		ID:       d.string(),
		Replica:  d.string(),
		Cached:   d.uint32(),
		Uncached: d.uint32(),
		State:    BookingState(d.uint(math.MaxUint8)),
		LeaseMs:  d.uint32(),
	}
	if d.more() {
		b.Seq = d.uint(math.MaxUint64)
	}
	if d.more() {
		b.Prefill = d.bool()
	}
	return b
}
