package epp

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/kvlane/kvlane/internal/config"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
	"github.com/kvlane/kvlane/kvindex/redislog"
)

// source is the log that a picker follows: its own, which it serves to agents,
// or one in Redis, which it shares with other pickers.
type source struct {
	kvindex.Log
	embedded *memlog.Log   // nil: the log is in Redis
	redis    *redislog.Log // nil: it is not
	name     string        // for people
	opened   time.Time
}

// openSource makes the log that the configuration names. It does no I/O.
func openSource(c config.Log) (*source, error) {
	if c.Redis == "" {
		own := memlog.New(memlog.Options{})
		return &source{Log: own, embedded: own, opened: time.Now()}, nil
	}
	shared, err := redislog.New(redislog.Options{URL: c.Redis, Pool: c.Pool})
	if err != nil {
		return nil, fmt.Errorf("log in Redis: %w", err)
	}
	return &source{Log: shared, redis: shared, name: withoutSecrets(c.Redis) + ", pool " + c.Pool, opened: time.Now()}, nil
}

// withoutSecrets is a URL for people, without user, password and parameters.
func withoutSecrets(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		return "Redis"
	}
	rest, _, _ = strings.Cut(rest, "?")
	return scheme + "://" + rest[strings.LastIndexByte(rest, '@')+1:]
}

// watchEvery is how often the log's state is looked at to tell of a change. It
// has to be seen twice: one command that fails is none.
const watchEvery = 500 * time.Millisecond

// watch tells when the log cannot be read or written any more, and when it can
// again, until ctx ends. reports is told at each look.
func (s *source) watch(ctx context.Context, reports func(arrive bool), logger *slog.Logger) error {
	if s.redis == nil {
		return nil
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	told, before := true, true // a log that answers from the start is no news
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := s.redis.Status()
		reports(now.Connected || now.Full) // a full Redis is still read
		if now.Connected == before && now.Connected != told {
			told = now.Connected
			switch {
			case told:
				logger.Info("the log is back", "log", s.name)
			case now.Denied:
				logger.Error("Redis refuses the user or password of the log's URL (AUTH); picks go on with what is known", "log", s.name, "err", now.Err)
			case now.Full:
				logger.Warn("Redis is full and takes no records; picks go on with what is known", "log", s.name, "err", now.Err)
			default:
				logger.Warn("the log is away; picks go on with what is known", "log", s.name, "err", now.Err)
			}
		}
		before = now.Connected
	}
}

// close ends the log's connections.
func (s *source) close() {
	if s.redis != nil {
		_ = s.redis.Close() // nothing can be done about it at the end
	}
}

// where names the log for people; listen is where an embedded one is served.
func (s *source) where(listen string) string {
	if s.redis != nil {
		return s.name
	}
	return listen
}

// view is the state of the log itself.
func (s *source) view() LogView {
	if s.redis == nil {
		return LogView{Kind: "embedded", Connected: true, Since: s.opened}
	}
	now := s.redis.Status()
	return LogView{
		Kind: "redis", Connected: now.Connected, Since: now.Since, Error: now.Err,
		LagMs: float64(now.Lag) / float64(time.Millisecond),
	}
}
