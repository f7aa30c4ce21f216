package workers

import (
	"time"

	"github.com/kvlane/kvlane/workers/engine"
)

// pace says how long to wait until an engine's metrics page is read again: fast while
// the engine is busy or changes, then slower and slower.
type pace struct {
	fast, slow time.Duration
	// least is the shortest pause that all engines together leave room for.
	least func() time.Duration

	pause time.Duration
	last  engine.Metrics
}

// after is the pause after a page that said m.
func (p *pace) after(m *engine.Metrics) time.Duration {
	changed := m.Running != p.last.Running || m.Waiting != p.last.Waiting || m.KVUsage != p.last.KVUsage
	p.last = *m
	if changed || m.Running+m.Waiting > 0 || p.pause == 0 {
		p.pause = p.fast
	} else {
		p.pause = min(p.pause+p.pause/2, p.slow)
	}
	return max(p.pause, p.least())
}
