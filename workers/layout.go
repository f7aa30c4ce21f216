package workers

import (
	"slices"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
)

// layout is what is known of an engine's KV-cache groups: by what an operator said,
// else by the words of the events.
//
// Invariant: the numbers that it gives groups in the log do not change. Number 0 is
// the first group of full attention met, other groups have the engine's number
// plus 1.
type layout struct {
	said    []kvindex.GroupSpec // by the operator, by the engine's number; nil: nothing
	primary int                 // the engine's number of group 0; -1: not met yet
	size    int                 // of its blocks in tokens; 0: not known yet
	specs   []kvindex.GroupSpec // by number in the log
	// changed is set when specs did.
	changed bool
}

// newLayout is a layout of which the operator said this, perhaps nothing.
func newLayout(said []kvindex.GroupSpec) layout {
	l := layout{said: said, primary: -1}
	if len(said) > 0 {
		full := func(g kvindex.GroupSpec) bool { return g.Kind == kvindex.GroupFull }
		l.primary = max(0, slices.IndexFunc(said, full))
	}
	return l
}

// number is a group's number in the log.
func (l *layout) number(group int) uint16 {
	if group == l.primary {
		return 0
	}
	return uint16(group + 1)
}

// unused reports whether the operator said that a group says nothing.
func (l *layout) unused(group int) bool {
	return len(l.said) > 0 && (group >= len(l.said) || l.said[group].Kind == kvindex.GroupUnused)
}

// see learns from an event.
func (l *layout) see(e *enginewire.Event) {
	if e.Kind != enginewire.Stored {
		return
	}
	spec := kvindex.GroupSpec{Window: uint32(e.Window)}
	spec.Kind, _ = enginewire.KindOf(e.GroupKind)
	if len(l.said) > 0 {
		spec = kvindex.GroupSpec{Kind: kvindex.GroupUnused}
		if e.Group < len(l.said) {
			spec = l.said[e.Group]
		}
	}
	if l.primary < 0 && spec.Kind == kvindex.GroupFull {
		l.primary = e.Group
	}
	if e.BlockSize > 0 {
		if e.Group == l.primary {
			l.size = e.BlockSize
		}
		spec.BlockSize = uint32(e.BlockSize)
	}
	n := int(l.number(e.Group))
	for len(l.specs) <= n {
		l.specs = append(l.specs, kvindex.GroupSpec{Kind: kvindex.GroupUnused})
	}
	old := &l.specs[n]
	if spec.BlockSize == 0 {
		spec.BlockSize = old.BlockSize
	}
	if *old != spec {
		*old = spec
		l.changed = true
	}
}

// hello are the groups as a Hello names them: nil where there is but the first.
func (l *layout) hello() []kvindex.GroupSpec {
	if len(l.specs) < 2 {
		return nil
	}
	list := slices.Clone(l.specs)
	for i := range list {
		if list[i].BlockSize == uint32(l.size) {
			list[i].BlockSize = 0
		}
	}
	list[0].Kind = kvindex.GroupFull
	return list
}
