package workers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/kvindex"
)

const (
	// connectTimeout bounds a connection to the engine or to a prefill worker, both
	// on the same network.
	connectTimeout = 2 * time.Second
	// idleConns is how many idle connections to one host are kept; an engine runs
	// at most a few hundred sequences at a time.
	idleConns = 512
	// maxAnswer bounds an answer without streaming that is read before it is passed
	// on, bytes; a longer one is passed on unread.
	maxAnswer = 64 << 20
	// bytesPerToken estimates a prompt's tokens where the picker did not say.
	bytesPerToken = 4
)

// newTransport is the pool of connections to engines and other agents. Requests
// are passed on as they are, so nothing is compressed or unpacked on the way,
// and proxies of the environment are not asked.
func newTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: 15 * time.Second}
	return &http.Transport{
		DialContext:         dialer.DialContext,
		MaxIdleConnsPerHost: idleConns,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
	}
}

// proxy serves clients from the engine.
type proxy struct {
	cfg       Config
	engine    *url.URL
	transport http.RoundTripper
	direct    *httputil.ReverseProxy
	load      *load
	learner   *learner
	cache     *cacheModel // nil: the engine says itself what it holds
	prefills  *prefillSet
	metrics   *Metrics
	log       *slog.Logger
	suspect   func() // the engine may be down: look at once
	renamed   func() // the engine's adapters may have changed
}

// finish fills in what follows from the fields: all but direct are set.
func (p *proxy) finish() *proxy {
	p.direct = &httputil.ReverseProxy{
		Rewrite:       p.rewrite,
		Transport:     p.transport,
		FlushInterval: -1, // at once
		ErrorHandler:  p.directError,
		ErrorLog:      slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	return p
}

// ServeHTTP routes one request: the two APIs whose answers teach something go
// through generate, everything else is passed on.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.metrics.InFlight.Inc()
	defer p.metrics.InFlight.Dec()
	rt := takeRouting(r.Header)
	if bad, ok := p.forbidden(rt); ok {
		p.metrics.Prefill.WithLabelValues("refused_target").Inc()
		p.log.Warn("refused a prefill target", "target", bad, "remote", r.RemoteAddr)
		p.refuse(w, "other", &openai.Error{
			Status: http.StatusForbidden, Type: "permission_error", Code: "prefill_target",
			Message: "The named prefill worker is not known to this worker.",
		})
		return
	}
	api := openai.APIOf(r.Method, r.URL.Path)
	if api == openai.APINone || compressed(r.Header) {
		p.pass(w, r, rt)
		return
	}
	p.generate(w, r, rt, api)
}

// forbidden names the first prefill target that may not be called.
func (p *proxy) forbidden(rt routing) (string, bool) {
	for _, target := range rt.prefill {
		if !p.prefills.allows(target) {
			return target, true
		}
	}
	return "", false
}

// pass hands a request to the engine unread. It counts as load if it carries a
// booking, so that the picker's own count ends.
func (p *proxy) pass(w http.ResponseWriter, r *http.Request, rt routing) {
	rec := &recorder{ResponseWriter: w}
	var in *request
	whole := false // an answer that breaks off panics; by the engine or by the client, nobody says
	if rt.booking != "" {
		in = p.load.begin(time.Now(), rt.booking, uncached(rt, textBytes(r)), true)
		defer func() {
			gone := r.Context().Err() != nil
			if engineFault(rec.code) && !gone {
				in.blame()
			}
			in.end(time.Now(), kvindex.Sample{CachedTokens: -1, Aborted: rec.code >= 500 || gone || !whole})
		}()
	}
	defer func() {
		p.count("other", rec.code, r)
		if r.Method == http.MethodPost && rec.code == http.StatusOK {
			switch r.URL.Path {
			case "/v1/load_lora_adapter", "/v1/unload_lora_adapter":
				p.renamed()
			}
		}
	}()
	p.direct.ServeHTTP(rec, r)
	whole = true
}

// textBytes is the length of a body that may be a prompt: JSON, and not a file
// or a recording.
func textBytes(r *http.Request) int64 {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return 0
	}
	return r.ContentLength
}

// uncached is the prompt's work in tokens: as the picker predicted it, else
// estimated from the body's length.
func uncached(rt routing, bytes int64) uint64 {
	if rt.uncached >= 0 {
		return uint64(rt.uncached)
	}
	return uint64(max(bytes, 0)) / bytesPerToken
}

// recorder notes the status of an answer.
type recorder struct {
	http.ResponseWriter
	code int
}

// WriteHeader notes the first final status.
func (r *recorder) WriteHeader(code int) {
	if r.code == 0 && code >= http.StatusOK {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

// Write is an implicit 200.
func (r *recorder) Write(b []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap gives [http.ResponseController] the flusher.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (p *proxy) rewrite(pr *httputil.ProxyRequest) {
	pr.Out.URL.Scheme, pr.Out.URL.Host = p.engine.Scheme, p.engine.Host
	pr.Out.Host = p.engine.Host
	// ReverseProxy drops these; they tell the engine's log who asked.
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v := pr.In.Header[name]; v != nil {
			pr.Out.Header[name] = v
		}
	}
}

// directError answers when the engine could not be asked.
func (p *proxy) directError(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		w.WriteHeader(statusClientClosed)
		return
	}
	p.fail(w, "other", err)
}

// statusClientClosed is what is counted when the client went away first; nobody
// receives it.
const statusClientClosed = 499

// fail answers a request that the engine did not.
func (p *proxy) fail(w http.ResponseWriter, api string, err error) {
	p.suspect()
	reason := "engine_unreachable"
	message := "The engine of this worker cannot be reached."
	var oe *openai.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		w.Header().Set(HeaderUnserved, "engine")
	case errors.As(err, &oe):
		reason, message = "engine_garbage", oe.Message
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		reason, message = "engine_cut", "The engine of this worker closed the connection without an answer."
	}
	p.metrics.Errors.WithLabelValues(reason).Inc()
	p.log.Warn("engine failed a request", "reason", reason, "err", err)
	p.refuse(w, api, openai.BadGateway(message))
}

// refuse writes an error of the agent's own.
func (p *proxy) refuse(w http.ResponseWriter, api string, e *openai.Error) {
	if _, counts := w.(*recorder); !counts {
		p.metrics.Requests.WithLabelValues(api, strconv.Itoa(e.Status)).Inc()
	}
	body := openai.ErrorBody(e)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(e.Status)
	_, _ = w.Write(body) // the client may be gone; there is nobody else to tell
}

// count ends the bookkeeping of a request that was answered.
func (p *proxy) count(api string, code int, r *http.Request) {
	if r.Context().Err() != nil {
		p.metrics.Aborted.Inc()
		code = statusClientClosed
	}
	if code == 0 {
		code = http.StatusOK
	}
	p.metrics.Requests.WithLabelValues(api, strconv.Itoa(code)).Inc()
}

// send asks a server the same question with another body.
func (p *proxy) send(ctx context.Context, to *url.URL, r *http.Request, header http.Header, body []byte) (*http.Response, error) {
	u := *r.URL
	u.Scheme, u.Host = to.Scheme, to.Host
	req, err := http.NewRequestWithContext(ctx, r.Method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.Header = endToEnd(header)
	req.Header.Del("Content-Length")
	req.Header.Del("Expect")          // the body is here already
	req.Header.Del("Accept-Encoding") // the answer is read on the way
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header["User-Agent"] = nil
	}
	return p.transport.RoundTrip(req)
}
