package redislog

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Options say where a log is and how much it keeps. A field that is 0 takes its
// default. All agents and pickers of a pool should have the same ones.
type Options struct {
	// URL is where Redis is, with user and password if it has any:
	//
	//	redis://[user:password@]host:port[/db]
	//	unix://[user:password@]/path/to/socket[?db=n]
	//	redis-cluster://[user:password@]host:port,host:port
	//	redis-sentinel://[user:password@]host:port,host:port/master[?db=n]
	//
	// rediss, rediss-cluster and rediss-sentinel are the same over TLS, with the
	// parameters ca, cert and key (PEM files, read at each connect) and
	// servername. sentinel-user and sentinel-password are for the Sentinels.
	URL string
	// Pool names the pool within the server; default "default".
	Pool string
	// Prefix begins every key; default "kvlane".
	Prefix string
	// Lease is how long a worker that said no Hello yet counts as present;
	// afterwards its Hello says. Default 5 s.
	Lease time.Duration
	// Margin is how much longer than its lease a worker's keys live when nobody is
	// there to take them away. Default 1 minute.
	Margin time.Duration
	// Keep is how long entries stay that every snapshot covers, for readers that are
	// just beginning. Default 5 s.
	Keep time.Duration
	// MaxAge is how old a worker's snapshot may get before it has to write all anew.
	// Default 10 minutes.
	MaxAge time.Duration
	// Recent is how long loads and bookings stay. Default 10 s.
	Recent time.Duration
	// LearnedBytes bounds the learned texts kept for new readers. Default 64 MiB.
	LearnedBytes int
	// CheckpointBytes and CheckpointEvery bound what a worker writes between two
	// snapshots: at least that many bytes (or twice the last snapshot, if that is
	// more) or that time. Defaults 1 MiB and 30 s.
	CheckpointBytes int
	CheckpointEvery time.Duration
	// Timeout bounds a command whose context has no earlier deadline, and every
	// connect. Default 1 s.
	Timeout time.Duration
}

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{
		{&o.Lease, 5 * time.Second},
		{&o.Margin, time.Minute},
		{&o.Keep, 5 * time.Second},
		{&o.MaxAge, 10 * time.Minute},
		{&o.Recent, 10 * time.Second},
		{&o.CheckpointEvery, 30 * time.Second},
		{&o.Timeout, time.Second},
	} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	for _, d := range []struct {
		v   *int
		def int
	}{{&o.LearnedBytes, 64 << 20}, {&o.CheckpointBytes, 1 << 20}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if o.Pool == "" {
		o.Pool = "default"
	}
	if o.Prefix == "" {
		o.Prefix = "kvlane"
	}
	return o
}

// server is a parsed URL.
type server struct {
	kind           string // redis, unix, cluster or sentinel
	addrs          []string
	master         string
	user, password string
	sentinelUser   string
	sentinelPass   string
	db             int
	tls            *tlsFiles
}

// tlsFiles are read at every connect, so that renewed certificates are taken up.
type tlsFiles struct{ ca, cert, key, serverName string }

var errURL = errors.New("bad Redis URL")

// parseURL never repeats the URL in an error: it may hold a password.
func parseURL(raw string) (server, error) {
	var s server
	u, err := splitURL(raw)
	if err != nil {
		return s, err
	}
	scheme, secure := u.Scheme, false
	if rest, ok := strings.CutPrefix(scheme, "rediss"); ok {
		scheme, secure = "redis"+rest, true
	}
	query := u.Query()
	take := func(key string) string {
		v := query.Get(key)
		query.Del(key)
		return v
	}
	s.user = u.User.Username()
	s.password, _ = u.User.Password()
	s.sentinelUser, s.sentinelPass = take("sentinel-user"), take("sentinel-password")
	if secure {
		s.tls = &tlsFiles{take("ca"), take("cert"), take("key"), take("servername")}
	}
	db := take("db")
	path := strings.Trim(u.Path, "/")
	s.addrs = strings.Split(u.Host, ",")
	switch scheme {
	case "redis":
		s.kind = "redis"
		if path != "" {
			db = path
		}
	case "unix":
		s.kind, s.addrs = "unix", []string{u.Path}
	case "redis-cluster":
		s.kind = "cluster"
	case "redis-sentinel":
		s.kind, s.master = "sentinel", path
		if path == "" {
			return s, fmt.Errorf("%w: a Sentinel URL ends with /<name of the master>", errURL)
		}
	default:
		return s, fmt.Errorf("%w: scheme %q: want redis, rediss, unix, redis-cluster or redis-sentinel", errURL, u.Scheme)
	}
	for k := range query {
		return s, fmt.Errorf("%w: unknown parameter %q", errURL, k)
	}
	if db != "" {
		if s.db, err = strconv.Atoi(db); err != nil {
			return s, fmt.Errorf("%w: database %q is not a number", errURL, db)
		}
	}
	err = s.check()
	return s, err
}

func (s *server) check() error {
	for _, a := range s.addrs {
		if s.kind == "unix" {
			if a == "" {
				return fmt.Errorf("%w: no path of a socket", errURL)
			}
			continue
		}
		_, port, err := net.SplitHostPort(a)
		if err != nil {
			return fmt.Errorf("%w: %q is not host:port", errURL, a)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("%w: port %q of %q is not within 1 to 65535", errURL, port, a)
		}
	}
	if s.db < 0 {
		return fmt.Errorf("%w: database %d is negative", errURL, s.db)
	}
	if s.kind == "redis" && len(s.addrs) > 1 {
		return fmt.Errorf("%w: %d addresses: want redis-cluster:// or redis-sentinel:// before them", errURL, len(s.addrs))
	}
	if s.kind == "cluster" && s.db != 0 {
		return fmt.Errorf("%w: a cluster has only database 0", errURL)
	}
	return nil
}

// splitURL is url.Parse for a host part that may be a list of addresses.
func splitURL(raw string) (*url.URL, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return nil, fmt.Errorf("%w: no scheme: want redis://host:port", errURL)
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	credentials, hosts := "", authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		credentials, hosts = authority[:i+1], authority[i+1:]
	}
	u, err := url.Parse(scheme + "://" + credentials + "host" + tail)
	if err != nil || u.Fragment != "" {
		return nil, fmt.Errorf("%w: cannot be parsed; signs like # / ? in a password are written as %%23 %%2F %%3F", errURL)
	}
	u.Host = hosts
	if u.Scheme != "unix" && u.Port() == "" && !strings.Contains(hosts, ",") && hosts != "" {
		u.Host = net.JoinHostPort(u.Hostname(), "6379")
	}
	return u, nil
}

// client makes the client; it does not connect yet.
func (s *server) client(timeout time.Duration) redis.UniversalClient {
	o := &redis.UniversalOptions{
		Addrs: s.addrs, MasterName: s.master, DB: s.db,
		Username: s.user, Password: s.password,
		SentinelUsername: s.sentinelUser, SentinelPassword: s.sentinelPass,
		// Without it a deadline does not end a command that was sent
		// (redis/go-redis#2145).
		ContextTimeoutEnabled: true,
		DialTimeout:           timeout, ReadTimeout: timeout, WriteTimeout: timeout,
		DialerRetries: 1, MaxRetries: 1, MinRetryBackoff: 8 * time.Millisecond, MaxRetryBackoff: 50 * time.Millisecond,
		Protocol: 2, DisableIdentity: true, PipelinePoolSize: -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		IsClusterMode:            s.kind == "cluster",
	}
	switch s.kind {
	case "cluster":
		c := o.Cluster()
		c.Dialer = s.dialer(timeout)
		return redis.NewClusterClient(c)
	case "sentinel":
		f := o.Failover()
		f.Dialer = s.dialer(timeout)
		return redis.NewFailoverClient(f)
	default:
		c := o.Simple()
		c.Dialer = s.dialer(timeout)
		return redis.NewClient(c)
	}
}

func (s *server) dialer(timeout time.Duration) func(context.Context, string, string) (net.Conn, error) {
	d := &net.Dialer{Timeout: timeout, KeepAlive: 5 * time.Second}
	network := "tcp"
	if s.kind == "unix" {
		network = "unix"
	}
	if s.tls == nil {
		return func(ctx context.Context, _, addr string) (net.Conn, error) {
			return d.DialContext(ctx, network, addr)
		}
	}
	return func(ctx context.Context, _, addr string) (net.Conn, error) {
		config, err := s.tls.config()
		if err != nil {
			return nil, err
		}
		return (&tls.Dialer{NetDialer: d, Config: config}).DialContext(ctx, network, addr)
	}
}

func (f *tlsFiles) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.serverName}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, fmt.Errorf("read authorities for Redis: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: no certificate in it", f.ca)
		}
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("read certificate for Redis: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
