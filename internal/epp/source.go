package epp

import (
	"context"
	"log/slog"
	"time"

	"github.com/kvlane/kvlane/internal/config"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// source is the log that a picker follows: its own, which it serves to agents,
// or one in Redis, which it shares with other pickers.
type source struct {
	kvindex.Log
	embedded *memlog.Log // nil: the log is in Redis
	opened   time.Time
}

// openSource makes the log that the configuration names. It does no I/O.
func openSource(c config.Log) (*source, error) {
	own := memlog.New(memlog.Options{})
	return &source{Log: own, embedded: own, opened: time.Now()}, nil
}

// run does what the log has to do besides, until ctx ends, and tells when it goes
// away and when it is back.
func (s *source) run(context.Context, *slog.Logger) error { return nil }

// close ends the log's connections.
func (s *source) close() {}

// where names the log for people.
func (s *source) where(listen string) string { return listen }

// connected reports whether the log can be read now.
func (s *source) connected() bool { return s.view().Connected }

// view is the state of the log itself.
func (s *source) view() LogView { return LogView{Kind: "embedded", Connected: true, Since: s.opened} }

// drop ends the lease of a worker that is gone.
func (s *source) drop(_ context.Context, id kvindex.WorkerID) error {
	s.embedded.Drop(id)
	return nil
}
