package protocol

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// trace is what went over one stream.
type trace struct {
	lines []string
	got   []*answer
	first *request // the request's headers as they were sent

	// Counts of the answers by kind.
	headers, requestBodies, requestEnds, trailers                   int
	responseHeaders, responseBodies, responseEnds, responseTrailers int
	requestBody, responseBody                                       []byte // put together of streamed pieces
	immediate                                                       *extprocv3.ImmediateResponse
	err                                                             error // how the stream ended, if not as it should
	broken                                                          bool  // err is a gRPC error
	over                                                            bool  // the server has ended it
	endless                                                         bool  // it did not, after the half-close
}

// maxLines bounds a transcript; the middle of longer ones is left out.
const maxLines = 14

func (t *trace) note(line string) { t.lines = append(t.lines, line) }

func (t *trace) sent(m *request) {
	if t.first == nil && m.GetRequestHeaders() != nil {
		t.first = m
	}
	t.note("-> " + describe(m))
}

func (t *trace) received(a *answer) {
	t.got = append(t.got, a)
	t.note("<- " + explain(a))
	switch v := a.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		t.headers++
	case *extprocv3.ProcessingResponse_RequestBody:
		t.requestBodies++
		piece := v.RequestBody.GetResponse().GetBodyMutation().GetStreamedResponse()
		t.requestBody = append(t.requestBody, piece.GetBody()...)
		if piece.GetEndOfStream() {
			t.requestEnds++
		}
	case *extprocv3.ProcessingResponse_RequestTrailers:
		t.trailers++
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		t.responseHeaders++
	case *extprocv3.ProcessingResponse_ResponseBody:
		t.responseBodies++
		piece := v.ResponseBody.GetResponse().GetBodyMutation().GetStreamedResponse()
		t.responseBody = append(t.responseBody, piece.GetBody()...)
		if piece.GetEndOfStream() {
			t.responseEnds++
		}
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		t.responseTrailers++
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		t.immediate = v.ImmediateResponse
	}
}

// fail is a failure with the stream's messages.
func (t *trace) fail(want, format string, args ...any) error {
	lines := t.lines
	if len(lines) > maxLines {
		head, tail := maxLines*2/3, maxLines/3
		lines = slices.Concat(lines[:head], []string{fmt.Sprintf("   (%d messages)", len(lines)-head-tail)}, lines[len(lines)-tail:])
	}
	return &Failure{Want: want, Got: fmt.Sprintf(format, args...), Messages: lines}
}

// sound wants that nothing is wrong with the stream itself.
func (t *trace) sound(want string) error {
	if t.err != nil {
		return t.fail(want, "%v", t.err)
	}
	return nil
}

const wantPick = "a pick: an answer to the headers with a destination"

// picked wants a destination and no HTTP answer; what else should have come is
// another check's matter.
func (t *trace) picked() error {
	switch {
	case t.immediate != nil:
		return t.fail(wantPick, "HTTP status %d", t.status())
	case t.broken || t.err != nil && t.destination() == "":
		return t.fail(wantPick, "%v", t.err)
	case t.destination() == "":
		return t.fail(wantPick, "no %s", destinationKey)
	}
	return nil
}

// routed wants a pick on a stream on which all came that should.
func (t *trace) routed() error {
	if err := t.picked(); err != nil {
		return err
	}
	return t.sound(wantPick + ", and to all that follows")
}

// echoed wants a routed request whose body came back as it was, ended once.
func (t *trace) echoed(body []byte) error {
	if err := t.routed(); err != nil {
		return err
	}
	want := fmt.Sprintf("the body's %d bytes back unchanged, their end marked once", len(body))
	if !bytes.Equal(t.requestBody, body) {
		return t.fail(want, "%s", differ(t.requestBody, body))
	}
	if t.requestEnds != 1 {
		return t.fail(want, "%d ends of stream", t.requestEnds)
	}
	return nil
}

// refused wants one of the HTTP statuses, as the stream's last message.
func (t *trace) refused(statuses ...int) error {
	want := "an immediate response with status " + join(statuses)
	if t.immediate == nil && t.err != nil {
		return t.fail(want, "%v", t.err)
	}
	if t.immediate == nil {
		return t.fail(want, "destination %q", t.destination())
	}
	if !slices.Contains(statuses, t.status()) {
		return t.fail(want, "status %d", t.status())
	}
	if t.err != nil {
		return t.fail(want+" and nothing after it", "%v", t.err)
	}
	if last := t.got[len(t.got)-1]; last.GetImmediateResponse() == nil {
		return t.fail(want+" as the last message", "more after it")
	}
	return nil
}

func join(statuses []int) string {
	var out []string
	for _, s := range statuses {
		out = append(out, strconv.Itoa(s))
	}
	return strings.Join(out, " or ")
}

func (t *trace) status() int { return int(t.immediate.GetStatus().GetCode()) }

// changes are all changes of the request's headers, in order.
func (t *trace) changes() []*extprocv3.HeaderMutation {
	var out []*extprocv3.HeaderMutation
	for _, a := range t.got {
		for _, c := range []*extprocv3.CommonResponse{a.GetRequestHeaders().GetResponse(), a.GetRequestBody().GetResponse()} {
			if m := c.GetHeaderMutation(); m != nil {
				out = append(out, m)
			}
		}
	}
	return out
}

// destination is the header's value; empty if there is none.
func (t *trace) destination() string {
	dst := ""
	for _, m := range t.changes() {
		for _, h := range m.GetSetHeaders() {
			if strings.EqualFold(h.GetHeader().GetKey(), destinationKey) {
				dst = text(h.GetHeader())
			}
		}
	}
	return dst
}

// inMetadata is the destination in the dynamic metadata; empty if there is none.
func (t *trace) inMetadata() string {
	dst := ""
	for _, a := range t.got {
		if v := a.GetDynamicMetadata().GetFields()[lbNamespace].GetStructValue().GetFields()[destinationKey].GetStringValue(); v != "" {
			dst = v
		}
	}
	return dst
}

// addresses is the destination taken apart.
func (t *trace) addresses() []string { return strings.Split(t.destination(), ",") }

// upstream is the request's headers as Envoy would send them: it removes first,
// then sets.
func (t *trace) upstream() map[string][]string {
	out := make(map[string][]string)
	for _, h := range t.first.GetRequestHeaders().GetHeaders().GetHeaders() {
		k := strings.ToLower(h.GetKey())
		out[k] = append(out[k], text(h))
	}
	for _, m := range t.changes() {
		for _, k := range m.GetRemoveHeaders() {
			delete(out, strings.ToLower(k))
		}
		for _, h := range m.GetSetHeaders() {
			apply(out, h)
		}
	}
	return out
}

func apply(headers map[string][]string, o *corev3.HeaderValueOption) {
	k, v := strings.ToLower(o.GetHeader().GetKey()), text(o.GetHeader())
	_, present := headers[k]
	action := o.GetAppendAction()
	if a := o.GetAppend(); a != nil && !a.GetValue() { //nolint:staticcheck // deprecated, and Envoy still heeds it
		action = corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD
	}
	switch action {
	case corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD:
		// ext_proc overwrites unless append is asked for by the older field.
		if o.GetAppend().GetValue() { //nolint:staticcheck // see above
			headers[k] = append(headers[k], v)
		} else {
			headers[k] = []string{v}
		}
	case corev3.HeaderValueOption_ADD_IF_ABSENT:
		if !present {
			headers[k] = []string{v}
		}
	case corev3.HeaderValueOption_OVERWRITE_IF_EXISTS:
		if present {
			headers[k] = []string{v}
		}
	default:
		headers[k] = []string{v}
	}
}

func text(h *corev3.HeaderValue) string {
	if len(h.GetRawValue()) > 0 {
		return string(h.GetRawValue())
	}
	return h.GetValue()
}

// differ says how a body differs from the one that was sent.
func differ(got, want []byte) string {
	n := 0
	for n < len(got) && n < len(want) && got[n] == want[n] {
		n++
	}
	from := max(0, n-16)
	return fmt.Sprintf("%d bytes; the first difference is at byte %d: %.48q in place of %.48q", len(got), n, got[min(from, len(got)):], want[from:])
}
