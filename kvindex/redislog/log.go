package redislog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/kvlane/kvlane/kvindex"
)

// ErrTooLarge refuses a record of more than 3 MiB.
var ErrTooLarge = errors.New("record too large")

// poolTTL is how long a pool's own keys live after its last reader and writer.
const poolTTL = 24 * time.Hour

// Log is a pool's log in Redis. It is safe for concurrent use. It connects when it
// is first used, and again whenever a connection broke.
type Log struct {
	opts    Options
	keys    keys
	client  redis.UniversalClient
	where   string // host:port or path, of all servers
	scripts scripts
	// session and next make tokens that nobody else makes.
	session string
	next    atomic.Uint64
	status  reporter

	mu      sync.Mutex
	writers map[kvindex.WorkerID]*writer
}

// Quiet turns off the Redis client's own log lines, which tell every attempt to
// connect; [Log.Status] has what matters. It is for the start of a program: it
// changes a global variable of the client's package.
func Quiet() { logging.Disable() }

// New makes a log. It does no I/O; an error is about the options.
func New(opts Options) (*Log, error) {
	opts = opts.withDefaults()
	s, err := parseURL(opts.URL)
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(opts.Pool, "{}") || strings.ContainsAny(opts.Prefix, "{}") {
		return nil, fmt.Errorf("pool %q, prefix %q: braces have a meaning in Redis", opts.Pool, opts.Prefix)
	}
	return &Log{
		opts: opts, keys: newKeys(opts.Prefix, opts.Pool), client: s.client(opts.Timeout), scripts: newScripts(),
		where:   strings.Join(s.addrs, ", "),
		session: strconv.FormatUint(rand.Uint64(), 36), writers: map[kvindex.WorkerID]*writer{},
	}, nil
}

// Close ends the connections and with them all running calls.
func (l *Log) Close() error {
	if err := l.client.Close(); err != nil {
		return fmt.Errorf("close log: %w", err)
	}
	return nil
}

// token is different at each call, in all processes.
func (l *Log) token() string {
	return l.session + "." + strconv.FormatUint(l.next.Add(1), 36)
}

// limit bounds a command whose context has no deadline.
func (l *Log) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, l.opts.Timeout)
}

// run runs a script that writes, and notes how that went.
func (l *Log) run(ctx context.Context, s *redis.Script, args ...any) ([]any, error) {
	ctx, cancel := l.limit(ctx)
	defer cancel()
	reply, err := s.Run(ctx, l.client, []string{l.keys.log()}, args...).Slice()
	l.status.saw(writing, err)
	return reply, explained(err)
}

// Ping asks the server whether it is there and takes this user; an error says where
// it was looked for.
func (l *Log) Ping(ctx context.Context) error {
	ctx, cancel := l.limit(ctx)
	defer cancel()
	if err := explained(l.client.Ping(ctx).Err()); err != nil {
		return fmt.Errorf("ask Redis at %s: %w", l.where, err)
	}
	return nil
}

// explained says of an error that it is about user and password, if it is.
func explained(err error) error {
	if denied(err) {
		return fmt.Errorf("%w: %w", kvindex.ErrDenied, err)
	}
	return err
}

// Drop ends a worker's lease now: every reader gets a Bye, its keys go. It is for
// workers that are known to be gone; the lease of a silent one ends by itself
// while a reader is there.
func (l *Log) Drop(ctx context.Context, w kvindex.WorkerID) error {
	ctx, cancel := l.limit(ctx)
	defer cancel()
	err := l.scripts.drop.Run(ctx, l.client, []string{l.keys.log()}, l.token(), shardOf(w), string(w)).Err()
	l.status.saw(writing, err)
	if err != nil {
		return fmt.Errorf("drop worker %s: %w", w, err)
	}
	return nil
}
