package workers

import (
	"testing"
	"time"

	"github.com/kvlane/kvlane/workers/engine"
)

func TestPace(t *testing.T) {
	const ms = time.Millisecond
	least := time.Duration(0)
	p := &pace{fast: 100 * ms, slow: 2 * time.Second, least: func() time.Duration { return least }}
	idle := engine.Metrics{KVUsage: 0.5}
	busy := engine.Metrics{Running: 3, Waiting: 1, KVUsage: 0.5}
	fuller := engine.Metrics{KVUsage: 0.6}
	for i, step := range []struct {
		m    engine.Metrics
		want time.Duration
	}{
		{idle, 100 * ms}, // the first page
		{idle, 150 * ms},
		{idle, 225 * ms},
		{busy, 100 * ms},
		{busy, 100 * ms}, // nothing changed, but it works
		{idle, 100 * ms}, // the end is a change
		{idle, 150 * ms},
		{fuller, 100 * ms},
	} {
		if got := p.after(&step.m); got != step.want {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
	for range 20 {
		p.after(&fuller)
	}
	if got := p.after(&fuller); got != 2*time.Second {
		t.Errorf("idle for long: %v", got)
	}
	least = 300 * ms // many engines
	if got := p.after(&busy); got != least {
		t.Errorf("busy among many: %v, want %v", got, least)
	}
}
