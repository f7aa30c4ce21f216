package workers

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/kvlane/kvlane/internal/openai"
)

// maxPrefillAnswer bounds the answer of a prefill leg, bytes. It carries one
// token, the prompt's ids at most once, and a list of blocks.
const maxPrefillAnswer = 64 << 20

// prefillFailure is why a prefill leg gave nothing to decode from.
type prefillFailure struct {
	reason string // a label of Metrics.Prefill
	status int    // of the answer, 0 if there was none
	header http.Header
	body   []byte
}

// Error names the reason.
func (f *prefillFailure) Error() string { return "prefill leg: " + f.reason }

// prefill runs the prefill leg on the worker that the picker named. params is
// what its engine says of where the KV lies, byte for byte; nil with ok means
// that the own engine has to prefill. With !ok the client has its answer.
//
// The legs run one after the other (vLLM's pull). A client's error (400 and other
// 4xx but 408 and 429) goes back to the client. Anything else falls back to the
// own engine if the configuration says so; there is no second try elsewhere, for
// prefilling here costs less than another queue.
func (x *exchange) prefill(ctx context.Context) (params []byte, ok bool) {
	p := x.proxy
	params, err := x.prefillLeg(ctx)
	if err == nil {
		p.metrics.Prefill.WithLabelValues("ok").Inc()
		return params, true
	}
	if ctx.Err() != nil {
		return nil, false
	}
	var f *prefillFailure
	if !errors.As(err, &f) {
		f = &prefillFailure{reason: "unreachable"}
	}
	p.metrics.Prefill.WithLabelValues(f.reason).Inc()
	if f.reason != "status_4xx" && p.cfg.PrefillFallback {
		p.metrics.Prefill.WithLabelValues("fallback").Inc()
		p.log.Warn("prefill leg failed, prefilling here", "target", x.rt.prefill[0], "reason", f.reason, "err", err)
		x.in.requeue(uncached(x.rt, int64(len(x.body))))
		return nil, true
	}
	x.failed = f.status < http.StatusBadRequest || f.status >= http.StatusInternalServerError
	x.refusePrefill(f)
	return nil, false
}

// prefillLeg sends the leg and reads its answer.
func (x *exchange) prefillLeg(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, x.proxy.cfg.PrefillTimeout)
	defer cancel()
	header := x.r.Header.Clone()
	header.Set(HeaderLeg, LegPrefill)
	header.Set(HeaderUncached, strconv.FormatUint(uncached(x.rt, int64(len(x.body))), 10))
	if x.rt.booking != "" {
		header.Set(HeaderBooking, x.rt.booking)
	}
	header.Set("Accept", "application/json")
	to := &url.URL{Scheme: "http", Host: x.rt.prefill[0]}
	resp, err := x.proxy.send(ctx, to, x.r, header, x.req.Splice(x.req.PrefillEdits(nil)...))
	if err != nil {
		return nil, legFailure(ctx, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxPrefillAnswer))
	if err != nil {
		return nil, legFailure(ctx, err)
	}
	return readPrefill(resp, body)
}

// legFailure tells a leg that took too long from one that could not be asked.
func legFailure(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &prefillFailure{reason: "timeout"}
	}
	return errors.Join(&prefillFailure{reason: "unreachable"}, err)
}

// readPrefill takes the transfer parameters out of an answer.
func readPrefill(resp *http.Response, body []byte) ([]byte, error) {
	if code := resp.StatusCode; code != http.StatusOK {
		f := &prefillFailure{reason: "status_5xx", status: code, header: resp.Header, body: body}
		if code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests {
			f.reason = "status_4xx"
		}
		return nil, f
	}
	a, err := openai.ParseAnswer(body)
	if err != nil {
		return nil, &prefillFailure{reason: "garbage"}
	}
	if len(a.KVTransferParams) == 0 || a.KVTransferParams[0] != '{' {
		return nil, &prefillFailure{reason: "no_transfer_data"}
	}
	return a.KVTransferParams, nil
}

// refusePrefill answers the client with what the prefill leg answered, as an
// OpenAI-shaped error.
func (x *exchange) refusePrefill(f *prefillFailure) {
	e := openai.BadGateway("The prefill worker's answer could not be used (" + f.reason + ").")
	switch {
	case f.reason == "timeout":
		e.Status, e.Code = http.StatusGatewayTimeout, "prefill_timeout"
		e.Message = "The prefill worker did not answer in time."
	case f.status != 0:
		if retry := f.header.Get("Retry-After"); retry != "" {
			x.w.Header().Set("Retry-After", retry)
		}
		if a, err := openai.ParseAnswer(f.body); err == nil && a.Error != nil {
			x.code = f.status
			x.w.Header().Set("Content-Type", "application/json")
			x.w.Header().Set("Content-Length", strconv.Itoa(len(f.body)))
			x.w.WriteHeader(f.status)
			_, _ = x.w.Write(f.body) // the client may be gone
			return
		}
		e.Status, e.Message = f.status, "The prefill worker answered with status "+strconv.Itoa(f.status)+"."
	}
	x.proxy.metrics.Errors.WithLabelValues("prefill").Inc()
	x.code = e.Status
	x.proxy.refuse(&recorder{ResponseWriter: x.w}, x.api.String(), e)
}
