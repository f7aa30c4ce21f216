package workers

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/kvindex"
)

// streamBuffer is the largest piece read from a stream at once, bytes.
const streamBuffer = 32 << 10

// transferMember is the member of a body that tells an engine where a prompt's
// KV lies.
const transferMember = "kv_transfer_params"

// exchange is one request to the engine and its answer.
type exchange struct {
	proxy *proxy
	w     http.ResponseWriter
	r     *http.Request
	rt    routing
	api   openai.API
	body  []byte
	req   *openai.Request // nil: the body could not be read and passes as it is
	in    *request
	pupil *pupil
	strip bool // the client did not ask for the ids that the answer carries

	code   int // of the answer, 0 before it began
	answer *openai.Answer
	model  *modelled // in the model of the engine's cache, if there is one
	failed bool      // this engine did, or the one of the prefill leg
	fault  bool      // this engine did, in a way that says something of it
	gone   bool      // the client is, as a write showed
}

// generate serves a request whose body the agent reads.
func (p *proxy) generate(w http.ResponseWriter, r *http.Request, rt routing, api openai.API) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, p.cfg.MaxBody))
	if err != nil {
		p.unreadable(w, r, api, err)
		return
	}
	x := &exchange{proxy: p, w: w, r: r, rt: rt, api: api, body: body}
	blind := true
	if req, perr := openai.Parse(api, body); perr == nil {
		x.req = req
		blind = !req.Stream
		if rt.leg != LegPrefill { // the decode leg teaches the same prompt
			x.pupil = p.learner.begin(req, rt.known)
		}
	}
	tokens := uncached(rt, int64(len(body)))
	if len(rt.prefill) > 0 && x.req != nil {
		tokens = 0 // the other worker's
	}
	x.in = p.load.begin(time.Now(), rt.booking, tokens, blind)
	defer x.end(r.Context())
	x.run(r.Context())
}

// unreadable answers a body that did not arrive whole.
func (p *proxy) unreadable(w http.ResponseWriter, r *http.Request, api openai.API, err error) {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		p.metrics.Errors.WithLabelValues("body_too_large").Inc()
		p.refuse(w, api.String(), openai.TooLarge(int(p.cfg.MaxBody)))
	case r.Context().Err() != nil:
		p.count(api.String(), statusClientClosed, r)
	default:
		p.metrics.Errors.WithLabelValues("body_cut").Inc()
		p.refuse(w, api.String(), openai.BadRequest("body_cut", "", "The request body did not arrive whole."))
	}
}

// run does the prefill leg if there is one, then asks the engine.
func (x *exchange) run(ctx context.Context) {
	var edits []openai.Edit
	if len(x.rt.prefill) > 0 && x.req != nil {
		params, ok := x.prefill(ctx)
		if !ok {
			return
		}
		if params != nil {
			edits = x.req.DecodeEdits(params)
		}
	}
	if edits == nil && x.rt.leg != LegPrefill && x.req != nil && x.req.Member(transferMember) != nil {
		// Where an engine fetches KV from is for agents to say: a client could make it
		// connect to any address.
		edits = append(edits, openai.Edit{Name: transferMember})
	}
	if x.pupil != nil && !x.req.ReturnTokenIDs {
		edits = append(edits, openai.Edit{Name: "return_token_ids", Value: []byte("true")})
		x.strip = true
	}
	body := x.body
	if x.req != nil {
		body = x.req.Splice(edits...)
	}
	resp, err := x.proxy.send(ctx, x.proxy.engine, x.r, x.r.Header, body)
	if err != nil {
		x.fail(err)
		return
	}
	defer resp.Body.Close()
	x.relay(ctx, resp)
}

// fail answers for the engine, before the answer has begun.
func (x *exchange) fail(err error) {
	x.failed, x.fault = true, true
	if x.r.Context().Err() != nil {
		return
	}
	rec := &recorder{ResponseWriter: x.w}
	x.proxy.fail(rec, x.api.String(), err)
	x.code = rec.code
}

// relay passes the engine's answer on in the way that it can be read.
func (x *exchange) relay(ctx context.Context, resp *http.Response) {
	x.failed, x.fault = resp.StatusCode >= http.StatusInternalServerError, engineFault(resp.StatusCode)
	header := endToEnd(resp.Header)
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	readable := x.req != nil && resp.StatusCode == http.StatusOK && !compressed(resp.Header)
	switch {
	case readable && err == nil && kind == "text/event-stream":
		x.stream(ctx, resp, header)
	case readable: // also where a stream was asked for: what is neither helps no client
		x.whole(ctx, resp, header)
	default:
		x.raw(resp, header, nil)
	}
}

// begin writes the answer's head.
func (x *exchange) begin(code int, header http.Header) {
	x.code = code
	dst := x.w.Header()
	maps.Copy(dst, header)
	x.w.WriteHeader(code)
}

// raw passes an answer on unread, after the bytes of it that were read already.
func (x *exchange) raw(resp *http.Response, header http.Header, head []byte) {
	x.begin(resp.StatusCode, header)
	flush := http.NewResponseController(x.w).Flush
	if _, err := x.w.Write(head); err != nil {
		x.gone = true
		return
	}
	buf := make([]byte, streamBuffer)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if _, werr := x.w.Write(buf[:n]); werr != nil {
				x.gone = true
				return
			}
			_ = flush() // an error shows at the next write
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && x.r.Context().Err() == nil {
				x.cut()
				panic(http.ErrAbortHandler) // the client must not take it for complete
			}
			return
		}
	}
}

// cut counts an answer that the engine broke off.
func (x *exchange) cut() {
	x.failed, x.fault = true, true
	x.proxy.metrics.Errors.WithLabelValues("engine_cut").Inc()
	x.proxy.suspect()
}

// whole reads an answer without streaming and passes it on in one piece.
func (x *exchange) whole(ctx context.Context, resp *http.Response, header http.Header) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		x.fail(err)
		return
	case len(body) > maxAnswer:
		x.raw(resp, header, body)
		return
	}
	a, err := openai.ParseAnswer(body)
	if err != nil {
		x.fail(err)
		return
	}
	x.answer = a
	x.model = x.proxy.cache.begin(ctx, x.req, a)
	if x.strip {
		body = openai.StripTokenIDs(body)
	}
	header.Set("Content-Length", strconv.Itoa(len(body)))
	x.begin(resp.StatusCode, header)
	_, _ = x.w.Write(body) // the client may be gone; the engine has done its work all the same
	x.pupil.reply(ctx, a)
}

// stream passes events on as they come.
func (x *exchange) stream(ctx context.Context, resp *http.Response, header http.Header) {
	header.Del("Content-Length")
	x.begin(resp.StatusCode, header)
	flush := http.NewResponseController(x.w).Flush
	_ = flush() // the head must not wait for the first token
	s := openai.NewStream(openai.StreamOptions{Strip: x.strip, Collect: x.pupil != nil})
	x.answer = s.Answer()
	buf := make([]byte, streamBuffer)
	grown := 0
	for {
		n, err := resp.Body.Read(buf)
		if out := s.Write(buf[:n]); len(out) > 0 {
			if _, werr := x.w.Write(out); werr != nil {
				x.gone = true
				return
			}
			_ = flush() // an error shows at the next write
		}
		grown = x.progress(ctx, grown)
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			_, _ = x.w.Write(s.Close()) // the client may be gone
			x.pupil.reply(ctx, x.answer)
			return
		}
		if x.r.Context().Err() == nil {
			x.cut()
			x.broken()
		}
		return
	}
}

// progress notes the first token and the growth of the answer. grown is the
// number of generated ids seen so far.
func (x *exchange) progress(ctx context.Context, grown int) int {
	if !x.answer.Started {
		return grown
	}
	if !x.in.startedOnce() {
		sample := x.sample()
		x.in.firstToken(time.Now(), sample)
		x.proxy.metrics.FirstByte.Observe(time.Since(x.in.arrived).Seconds())
		x.pupil.prompts(ctx, x.answer)
		x.model = x.proxy.cache.begin(ctx, x.req, x.answer)
	}
	total := 0
	for i := range x.answer.Choices {
		total += len(x.answer.Choices[i].TokenIDs)
	}
	x.in.grow(total - grown)
	x.model.grow(ctx, total-grown)
	return total
}

// broken ends a stream whose engine died: what is cut in the middle of an event
// was held back or is closed with an empty line, then an error event follows, so
// that clients raise an error in place of taking the answer for complete.
func (x *exchange) broken() {
	var b bytes.Buffer
	if !x.strip {
		b.WriteString("\n\n")
	}
	b.WriteString("data: ")
	b.Write(openai.ErrorBody(openai.BadGateway("The engine of this worker died while it answered.")))
	b.WriteString("\n\n")
	_, _ = x.w.Write(b.Bytes()) // the client may be gone
}

// engineFault reports whether a status says that the engine failed: others from
// 500 on say what it cannot do.
func engineFault(code int) bool {
	switch code {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	default:
		return false
	}
}

// sample is what the engine said of the request, in its own counts.
func (x *exchange) sample() kvindex.Sample {
	s := kvindex.Sample{CachedTokens: -1}
	if x.answer == nil {
		return s
	}
	prompt, output := len(x.answer.PromptTokenIDs), 0
	for i := range x.answer.Choices {
		c := &x.answer.Choices[i]
		output += len(c.TokenIDs)
		if x.answer.PromptTokenIDs == nil && (x.req.N <= 1 || c.Index%x.req.N == 0) {
			prompt += len(c.PromptTokenIDs)
		}
	}
	if prompt == 0 && x.req != nil { // ids that the client sent do not come back
		for _, ids := range x.req.TokenPrompts {
			prompt += len(ids)
		}
	}
	if u := x.answer.Usage; u != nil {
		prompt, output = u.Prompt, u.Completion
		s.CachedTokens = int32(u.Cached)
	}
	s.PromptTokens, s.OutputTokens = int32(prompt), int32(output)
	return s
}

// end takes the request out of the load, whatever became of it.
func (x *exchange) end(ctx context.Context) {
	s := x.sample()
	gone := x.gone || x.r.Context().Err() != nil
	s.Aborted = x.failed || gone
	if x.fault && !gone {
		x.in.blame()
	}
	x.in.end(time.Now(), s)
	x.model.end(ctx, x.answer, int(s.CachedTokens))
	x.proxy.count(x.api.String(), x.code, x.r)
	if x.answer == nil {
		return
	}
	t := x.proxy.metrics.Tokens
	if u := x.answer.Usage; u != nil {
		t.WithLabelValues("prompt").Add(float64(u.Prompt))
		t.WithLabelValues("output").Add(float64(u.Completion))
		t.WithLabelValues("cached").Add(float64(max(u.Cached, 0)))
	}
}
