package simserver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/workers/engine/bpe"
	"github.com/kvlane/kvlane/workers/engine/sim"
)

const (
	// version is what /version answers: the vLLM whose surface this is.
	version = "0.32.0"
	// stopOneIn is after how many tokens on average a text ends by itself.
	stopOneIn = 256
	// pullTimeout bounds the question to a prefill engine. It moves no data.
	pullTimeout = 5 * time.Second
	// headerTimeout bounds the reading of a request's headers.
	headerTimeout = 10 * time.Second
)

// Server is one simulated engine. Build it with [New], start it with
// [Server.Run].
type Server struct {
	cfg      Config
	log      *slog.Logger
	tok      *bpe.Tokenizer
	models   *models
	engine   *engine
	pub      *publisher
	metrics  *metrics
	client   *http.Client
	handler  http.Handler
	faults   faults
	now      func() time.Time
	started  int64
	engineID string
	tpSize   int
	idBase   uint64
	idCount  atomic.Uint32

	ready chan struct{} // closed when the sockets are bound
	addrs addresses     // written before ready is closed
}

// addresses are where the engine is reached.
type addresses struct{ http, events, replay string }

// New builds an engine. It starts nothing and opens nothing.
func New(cfg Config, log *slog.Logger) (*Server, error) {
	d, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	tok, err := bpe.Load()
	if err != nil {
		return nil, fmt.Errorf("load tokenizer: %w", err)
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, fmt.Errorf("draw engine id: %w", err)
	}
	core := coreConfig(&cfg, d, tok)
	if _, err := sim.New(core); err != nil {
		return nil, fmt.Errorf("simulated engine: %w", err)
	}
	newCore := func() *sim.Core {
		c, err := sim.New(core)
		if err != nil {
			panic("a configuration that was good is bad now: " + err.Error())
		}
		return c
	}
	s := &Server{
		cfg: cfg, log: log, tok: tok, now: time.Now, started: time.Now().Unix(),
		models:   &models{base: cfg.Model, served: cfg.Served},
		metrics:  newMetrics(cfg.Served[0]),
		pub:      newPublisher(cfg.Form, cfg.BlockSize),
		client:   &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}},
		engineID: hex.EncodeToString(id[:]),
		tpSize:   d.GPUs,
		ready:    make(chan struct{}),
	}
	for _, b := range id[:8] {
		s.idBase = s.idBase<<8 | uint64(b)
	}
	s.engine = newEngine(newCore, cfg.Speed, cfg.HoldTimeout, s.pub, s.metrics)
	if err := s.metrics.registry.Register(newGauges(s.engine, &s.cfg, s.models)); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	s.handler = s.routes()
	return s, nil
}

func coreConfig(cfg *Config, d timing.Deployment, tok *bpe.Tokenizer) sim.Config {
	return sim.Config{
		Timing: d.Timing(), Transfer: timing.Known().Transfer, KVBytesPerToken: d.KVBytesPerToken,
		BlockSize: cfg.BlockSize, Blocks: cfg.Blocks,
		MaxBatchedTokens: cfg.MaxBatchedTokens, MaxSeqs: cfg.MaxSeqs, MaxModelLen: cfg.MaxModelLen,
		PrefixCaching: !cfg.NoPrefixCaching,
		Next:          sim.WordNext(tok.Words(), stopOneIn),
	}
}

// Ready is closed when the engine listens on all its sockets.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Addr is the host:port of the HTTP server as others reach it: bound once
// [Server.Ready] is closed, the configured one before.
func (s *Server) Addr() string {
	if s.isReady() {
		return s.addrs.http
	}
	return s.cfg.Listen
}

// EventsEndpoint is the bound endpoint of the KV events, ReplayEndpoint that of
// the replay socket; empty before [Server.Ready] and where there is none.
func (s *Server) EventsEndpoint() string {
	if s.isReady() {
		return s.addrs.events
	}
	return ""
}

// ReplayEndpoint is described at [Server.EventsEndpoint].
func (s *Server) ReplayEndpoint() string {
	if s.isReady() {
		return s.addrs.replay
	}
	return ""
}

// Topic is the topic of the KV events: kv@host:port@model.
func (s *Server) Topic() string { return "kv@" + s.Addr() + "@" + s.cfg.Served[0] }

func (s *Server) isReady() bool {
	select {
	case <-s.ready:
		return true
	default:
		return false
	}
}

// Handler is the HTTP surface. It answers while [Server.Run] runs.
func (s *Server) Handler() http.Handler { return s.handler }

// Run serves until ctx ends, then lets running requests finish for at most
// Config.Grace. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return s.listenError(err)
	}
	s.addrs.http = s.reachable(ln.Addr())
	// Everything below outlives ctx by the grace period.
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	sockets, err := s.openSockets(inner)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	close(s.ready)
	s.log.InfoContext(ctx, "simulated engine serves", "address", s.addrs.http, "model", s.cfg.Served[0], "deployment", s.cfg.Deployment,
		"blocks", s.cfg.Blocks, "speed", s.cfg.Speed, "events", s.addrs.events, "replay", s.addrs.replay)

	server := &http.Server{Handler: s.handler, ReadHeaderTimeout: headerTimeout, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}
	var g errgroup.Group
	g.Go(func() error { return s.engine.run(inner) })
	if sockets.replay != nil {
		g.Go(func() error { return s.pub.serveReplay(inner, sockets.replay) })
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	select {
	case err = <-served:
	case <-ctx.Done():
		s.shutdown(inner, server)
		err = <-served
	}
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	stop()
	err = errors.Join(err, g.Wait())
	sockets.close()
	return err
}

// shutdown ends the HTTP server: politely for the grace period, then not.
func (s *Server) shutdown(ctx context.Context, server *http.Server) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Grace)
	defer cancel()
	if err := server.Shutdown(ctx); err == nil {
		return
	}
	// What is left are clients that did not finish in time; closing them is the
	// purpose, so an error from it changes nothing.
	_ = server.Close()
}

func (s *Server) listenError(err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("listen on %s: the port is in use, perhaps by another engine: %w", s.cfg.Listen, err)
	}
	return fmt.Errorf("listen on %s: %w", s.cfg.Listen, err)
}

// reachable is a listener's address with a host that other programs of the
// machine can dial.
func (s *Server) reachable(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	if s.cfg.Advertise != "" {
		host = s.cfg.Advertise
	} else if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// sockets are the ZMQ sockets of a run.
type sockets struct{ events, replay zmq4.Socket }

func (s *Server) openSockets(ctx context.Context) (sockets, error) {
	var out sockets
	var err error
	if s.cfg.Events == "" {
		return out, nil
	}
	topic := "kv@" + s.addrs.http + "@" + s.cfg.Served[0]
	if out.events, err = s.pub.open(ctx, s.cfg.Events, topic); err != nil {
		return out, fmt.Errorf("open KV events: %w", err)
	}
	s.addrs.events = "tcp://" + s.reachable(out.events.Addr())
	if s.cfg.Replay == "" {
		return out, nil
	}
	if out.replay, err = bind(zmq4.NewRouter(ctx, quiet()), s.cfg.Replay); err != nil {
		out.close()
		return out, fmt.Errorf("open replay: %w", err)
	}
	s.addrs.replay = "tcp://" + s.reachable(out.replay.Addr())
	return out, nil
}

// close ends the sockets. Their errors say that a peer was gone already.
func (k sockets) close() {
	for _, sock := range []zmq4.Socket{k.events, k.replay} {
		if sock != nil {
			_ = sock.Close()
		}
	}
}

// routes maps vLLM's paths, and /sim/ for what a real engine does not have.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	api := func(pattern string, f func(http.ResponseWriter, *http.Request) error) {
		mux.Handle(pattern, s.faults.gate(s.answer(f)))
	}
	generate := func(pattern string, f func(http.ResponseWriter, *http.Request) error) {
		mux.Handle(pattern, s.faults.gate(s.faults.garble(s.answer(f))))
	}
	generate("POST /v1/chat/completions", s.chat)
	generate("POST /v1/completions", s.complete)
	api("POST /v1/chat/completions/render", s.renderChat)
	api("POST /v1/completions/render", s.renderCompletion)
	api("POST /tokenize", s.tokenize)
	api("POST /detokenize", s.detokenize)
	api("GET /v1/models", s.listModels)
	api("POST /v1/load_lora_adapter", s.loadAdapter)
	api("POST /v1/unload_lora_adapter", s.unloadAdapter)
	api("POST /reset_prefix_cache", s.resetCache)
	api("GET /health", s.health)
	api("GET /version", s.version)
	api("POST /sim/kv/pull", s.servePull)
	mux.Handle("GET /metrics", s.faults.gate(promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{})))
	mux.Handle("GET /sim/content", s.answer(s.listContent))
	mux.Handle("POST /sim/fault", loopbackOnly(s.answer(s.fault)))
	return mux
}

// answer turns a handler's error into vLLM's body. A handler that has begun to
// answer returns none.
func (s *Server) answer(f func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := f(w, r)
		if err == nil || r.Context().Err() != nil {
			return
		}
		e := asAPIError(err)
		if e.Status >= http.StatusInternalServerError {
			s.log.WarnContext(r.Context(), "request failed", "path", r.URL.Path, "status", e.Status, "error", err)
		}
		if err := writeJSON(w, e.Status, e.body()); err != nil {
			s.log.ErrorContext(r.Context(), "error body", "error", err)
		}
	})
}

func (s *Server) health(w http.ResponseWriter, r *http.Request) error {
	if err := s.engine.do(r.Context(), func() {}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

type versionAnswer struct {
	Version string `json:"version"`
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, versionAnswer{version})
}

type resetAnswer struct {
	Success bool `json:"success"`
}

// resetCache empties the prefix cache. As in vLLM it does nothing while
// requests hold blocks.
func (s *Server) resetCache(w http.ResponseWriter, r *http.Request) error {
	force, _ := strconv.ParseBool(r.URL.Query().Get("reset_running_requests")) // anything else is false
	var out resetAnswer
	err := s.engine.do(r.Context(), func() {
		st := s.engine.core.Stats()
		if st.UsedBlocks > 0 && !force {
			return
		}
		s.engine.deliver(s.engine.core.Clear(s.engine.clock.now()))
		out.Success = true
	})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, out)
}

// contentAnswer is what /sim/content lists.
type contentAnswer struct {
	EngineID string `json:"engine_id"`
	// Life counts the engine's restarts; NextSeq is the number that the next batch
	// of events will have.
	Life      int    `json:"life"`
	NextSeq   uint64 `json:"next_seq"`
	BlockSize int    `json:"block_size"`
	// CachedBlocks is the core's own count of them.
	CachedBlocks int            `json:"cached_blocks"`
	Blocks       []contentBlock `json:"blocks"`
}

// listContent lists what the cache holds; with ?ids=1 also the token ids.
func (s *Server) listContent(w http.ResponseWriter, r *http.Request) error {
	withIDs := r.URL.Query().Get("ids") != ""
	out := contentAnswer{EngineID: s.engineID, BlockSize: s.cfg.BlockSize}
	err := s.engine.do(r.Context(), func() {
		e := s.engine
		out.Life, out.NextSeq, out.Blocks = e.life, s.pub.next(), e.content.list(withIDs)
		out.CachedBlocks = e.core.Stats().CachedBlocks
	})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, out)
}
