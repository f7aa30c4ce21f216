package sim

import (
	"container/list"
	"slices"
)

// hostTier is memory beside the device's, as of an engine that offloads: what the
// device evicts goes there, and comes back when a prompt needs it. The blocks not
// used for the longest time give way. Copying there takes no time from the engine;
// a block that comes back stays there too.
type hostTier struct {
	size   int
	byID   map[BlockID]*list.Element
	order  *list.List // of BlockID, the next one to go first
	events []Event
}

func newHostTier(size int) *hostTier {
	return &hostTier{size: size, byID: map[BlockID]*list.Element{}, order: list.New()}
}

// put takes in a block that the device evicts. A nil tier takes nothing, and has
// nothing.
func (h *hostTier) put(b *block) {
	if h == nil {
		return
	}
	if at := h.byID[b.id]; at != nil {
		h.order.MoveToBack(at)
		return
	}
	if len(h.byID) == h.size {
		oldest, _ := h.order.Remove(h.order.Front()).(BlockID)
		delete(h.byID, oldest)
		h.events = removed(h.events, oldest)
	}
	h.byID[b.id] = h.order.PushBack(b.id)
	// Tails are evicted first: a run grows towards its start, and is turned around
	// when it is returned.
	if n := len(h.events); n > 0 && h.events[n-1].Kind == Stored && h.events[n-1].HasParent && h.events[n-1].Parent == b.id {
		e := &h.events[n-1]
		e.Blocks = append(e.Blocks, b.id)
		e.Parent, e.HasParent = b.parent, b.hasParent
		return
	}
	h.events = append(h.events, Event{Kind: Stored, Blocks: []BlockID{b.id}, Parent: b.parent, HasParent: b.hasParent})
}

// run is how many of the blocks, one after the other, are here, and uses them.
func (h *hostTier) run(ids []BlockID) int {
	if h == nil {
		return 0
	}
	for i, id := range ids {
		at := h.byID[id]
		if at == nil {
			return i
		}
		h.order.MoveToBack(at)
	}
	return len(ids)
}

// holds is run without using the blocks.
func (h *hostTier) holds(ids []BlockID) int {
	if h == nil {
		return 0
	}
	for i, id := range ids {
		if h.byID[id] == nil {
			return i
		}
	}
	return len(ids)
}

func (h *hostTier) clear() {
	if h == nil {
		return
	}
	clear(h.byID)
	h.order.Init()
	h.events = append(h.events, Event{Kind: Cleared})
}

// takeEvents returns the events not returned yet, in order.
func (h *hostTier) takeEvents() []Event {
	if h == nil {
		return nil
	}
	events := h.events
	h.events = nil
	for i := range events {
		if events[i].Kind == Stored {
			slices.Reverse(events[i].Blocks)
		}
	}
	return events
}
