package simserver

import (
	"encoding/binary"
	"encoding/hex"
	"time"

	"github.com/zeebo/xxh3"
)

// hold is a prefilled prompt that waits for its decode engine.
type hold struct {
	promptHash string
	tokens     int
	until      time.Time
}

// holds are all of an engine. They expire in the order in which they came:
// the timeout is the same for all.
type holds struct {
	timeout time.Duration
	byID    map[string]*hold
	order   []string
}

func (h *holds) add(id string, x *hold, now time.Time) {
	x.until = now.Add(h.timeout)
	h.byID[id] = x
	h.order = append(h.order, id)
}

func (h *holds) remove(id string) { delete(h.byID, id) }

func (h *holds) clear() {
	clear(h.byID)
	h.order = nil
}

// next is the time until the first expiry.
func (h *holds) next() (time.Duration, bool) {
	for len(h.order) > 0 {
		if x := h.byID[h.order[0]]; x != nil {
			return max(time.Until(x.until), 0), true
		}
		h.order = h.order[1:]
	}
	return 0, false
}

// expired takes out the holds whose time is over.
func (h *holds) expired(now time.Time) []string {
	var ids []string
	for len(h.order) > 0 {
		id := h.order[0]
		if x := h.byID[id]; x != nil {
			if x.until.After(now) {
				break
			}
			ids = append(ids, id)
			h.remove(id)
		}
		h.order = h.order[1:]
	}
	return ids
}

// promptHash names a prompt on both ends of a transfer.
func promptHash(tokens []uint32, lora, salt string) string {
	b := make([]byte, 0, 4*len(tokens)+16+len(lora)+len(salt))
	for _, s := range []string{lora, salt} {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	sum := xxh3.Hash128(b).Bytes()
	return hex.EncodeToString(sum[:])
}
