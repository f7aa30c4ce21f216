package extproc

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/picker"
	"github.com/kvlane/kvlane/picker/flow"
)

// maxPiece is the largest piece of a body in one message, bytes. Envoy's
// protocol gives no number; the inference extension's own pickers cut at this one.
const maxPiece = 62_000

// Cause is why a request is answered here and not sent to a worker. The set is
// closed; metrics use it as a label.
type Cause string

// The causes. Those from a plan have the plan's reason as text.
const (
	CauseMalformed  Cause = "malformed"
	CauseNoModel    Cause = Cause(picker.ReasonNoModel)
	CauseTimeout    Cause = "body-timeout"
	CauseTooLarge   Cause = "body-too-large"
	CauseOverloaded Cause = Cause(picker.ReasonOverloaded)
	CauseNoEndpoint Cause = Cause(picker.ReasonNoEndpoint)
	CauseSubset     Cause = Cause(picker.ReasonSubset)
	CauseStreams    Cause = "too-many-streams"
	CauseMemory     Cause = "body-memory"
	CauseInternal   Cause = "internal"
	CauseRewrite    Cause = "model-rewrite"

	CauseQueueFull  Cause = Cause(flow.ReasonFull)
	CauseQueueBytes Cause = Cause(flow.ReasonBytes)
	CausePushedOut  Cause = Cause(flow.ReasonPushedOut)
	CauseExpired    Cause = Cause(flow.ReasonExpired)
	CauseHopeless   Cause = Cause(flow.ReasonHopeless)
	CauseStopping   Cause = "stopping"
)

// Refusal is an answer to the client in place of a worker's.
type Refusal struct {
	Cause Cause
	// Detail is for people; empty for the cause's own text.
	Detail string
	// Code is a machine-readable word for the error, and Param the member of the
	// body at fault; empty for none.
	Code, Param string
	// RetryAfter is when another try makes sense; 0 if the server cannot say.
	RetryAfter time.Duration
}

// Error is the cause and the detail.
func (r *Refusal) Error() string { return strings.TrimSuffix(string(r.Cause)+": "+r.Detail, ": ") }

// Answer is the HTTP status and the error object for a refusal: the one place
// where both are chosen. overloaded529 is [Config.Overloaded529].
func (r *Refusal) Answer(overloaded529 bool) *openai.Error {
	e := openai.Unavailable(r.Detail)
	switch r.Cause {
	case CauseMalformed:
		e = openai.BadRequest(r.Code, r.Param, r.Detail)
	case CauseNoModel:
		e = openai.ModelNotFound(r.Detail)
	case CauseTimeout:
		e = openai.BadRequest("request_timeout", "", "The request body did not arrive in time.")
		e.Status = http.StatusRequestTimeout
	case CauseTooLarge:
		e = openai.BadRequest("request_too_large", "", r.Detail)
		e.Status = http.StatusRequestEntityTooLarge
	case CauseOverloaded, CauseQueueFull, CauseQueueBytes, CausePushedOut, CauseExpired, CauseHopeless:
		e = openai.TooManyRequests(r.Cause.shed())
		if overloaded529 {
			e.Status, e.Type = 529, "overloaded_error"
		}
	case CauseStopping:
		e = openai.Unavailable("The endpoint picker stops.")
	case CauseNoEndpoint:
		e = openai.Unavailable("No worker is ready.")
	case CauseSubset:
		e = openai.Unavailable("No worker is ready among those that the gateway allows.")
	case CauseStreams, CauseMemory:
		e = openai.Unavailable("The endpoint picker is at its limit.")
	case CauseRewrite:
		e = openai.Unavailable("The model of this request is served under another name, and the gateway has passed too little of the body to change it.")
	case CauseInternal:
		e = openai.Unavailable("The endpoint picker failed.")
	}
	return e
}

// shed says why a request was shed.
func (c Cause) shed() string {
	switch c {
	case CauseQueueFull, CauseQueueBytes, CausePushedOut:
		return "Every worker is at its limit, and too many requests wait."
	case CauseExpired:
		return "No worker had room in time."
	case CauseHopeless:
		return "The target for the time to first token cannot be met now."
	default:
		return "Every worker is at its limit."
	}
}

// immediate is the message that ends a stream with an HTTP answer.
func (r *Refusal) immediate(overloaded529 bool) *extprocv3.ProcessingResponse {
	e := r.Answer(overloaded529)
	headers := &extprocv3.HeaderMutation{}
	headers.SetHeaders = append(headers.SetHeaders, set("content-type", "application/json"), set(HeaderReason, string(r.Cause)))
	if r.RetryAfter > 0 {
		seconds := strconv.Itoa(int(math.Ceil(r.RetryAfter.Seconds())))
		headers.SetHeaders = append(headers.SetHeaders, set("retry-after", seconds))
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(e.Status)},
			Headers: headers,
			Body:    openai.ErrorBody(e),
			Details: "kvlane_" + strings.ReplaceAll(string(r.Cause), "-", "_"),
		}}}
}

// refusalOf turns a plan without a target into its refusal.
func refusalOf(d *Decision) *Refusal {
	p := &d.Plan
	r := &Refusal{Cause: Cause(p.Reason)}
	switch p.Reason {
	case picker.ReasonNoModel:
		if r.Detail = d.Model; d.Rewrite != "" { // the configuration named it, not the client
			r.Cause, r.RetryAfter = CauseNoEndpoint, time.Second
		}
	case picker.ReasonOverloaded:
		r.RetryAfter = retryAfter(milliseconds(p.RetryAfterMs))
	case picker.ReasonNoEndpoint, picker.ReasonSubset:
		r.RetryAfter = time.Second
	default:
		r.Cause = CauseInternal
		r.Detail = fmt.Sprintf("plan without a target: %s", p.Reason)
	}
	return r
}

// destination is the chosen address and what to try after it.
func destination(p picker.Plan) string {
	list := make([]string, 0, 1+len(p.Fallbacks))
	list = append(list, p.Decode.Address)
	for _, f := range p.Fallbacks {
		list = append(list, f.Address)
	}
	return strings.Join(list, ",")
}

// routed is the change of the request's headers for a decision: the headers
// that only the picker may set, and the removal of those that the client sent.
func routed(h head, d *Decision) *extprocv3.CommonResponse {
	dst := destination(d.Plan)
	m := &extprocv3.HeaderMutation{}
	m.SetHeaders = append(m.SetHeaders,
		set(HeaderDestination, dst),
		set(HeaderUpstreams, dst),
		set(HeaderBooking, d.Plan.Request),
		set(HeaderRank, strconv.Itoa(int(d.Plan.Decode.Rank))))
	if d.Prompts == 1 { // of several prompts a sum says nothing to the agent
		m.SetHeaders = append(m.SetHeaders, set(HeaderKnownTokens, strconv.Itoa(d.KnownTokens)))
	}
	if d.Prompts > 0 {
		m.SetHeaders = append(m.SetHeaders, set(HeaderUncached, strconv.Itoa(max(1, d.Plan.ISL-d.Plan.Cached))))
	}
	if d.Plan.Prefill != nil {
		m.SetHeaders = append(m.SetHeaders, set(HeaderPrefill, d.Plan.Prefill.Address))
	}
	if d.Rewrite != "" {
		m.SetHeaders = append(m.SetHeaders, set(HeaderModelRewrite, d.Rewrite))
	}
	if h.requestID == "" {
		m.SetHeaders = append(m.SetHeaders, set(HeaderRequestID, d.Plan.Request))
	}
	m.RemoveHeaders = without(h.strip, m)
	return &extprocv3.CommonResponse{HeaderMutation: m}
}

// without are the names in strip that the change does not set itself: data
// planes differ in which of the two they do first.
func without(strip []string, m *extprocv3.HeaderMutation) []string {
	var out []string
next:
	for _, name := range strip {
		for _, s := range m.GetSetHeaders() {
			if s.GetHeader().GetKey() == name {
				continue next
			}
		}
		out = append(out, name)
	}
	return out
}

// metadata is the destination again, where Envoy's load balancer looks first.
func metadata(p picker.Plan) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		MetadataNamespace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			HeaderDestination: structpb.NewStringValue(destination(p)),
		}}),
	}}
}

func requestHeadersAnswer(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extprocv3.HeadersResponse{Response: c}}}
}

func requestBodyAnswer(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
		RequestBody: &extprocv3.BodyResponse{Response: c}}}
}

func requestTrailersAnswer() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{
		RequestTrailers: &extprocv3.TrailersResponse{}}}
}

func responseHeadersAnswer() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
		ResponseHeaders: &extprocv3.HeadersResponse{}}}
}

func responseBodyAnswer(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{
		ResponseBody: &extprocv3.BodyResponse{Response: c}}}
}

func responseTrailersAnswer() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{
		ResponseTrailers: &extprocv3.TrailersResponse{}}}
}

// streamed is a piece of a body in full-duplex mode.
func streamed(piece []byte, end bool) *extprocv3.CommonResponse {
	return &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
		Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{
			Body: piece, EndOfStream: end}}}}
}

// pieces calls yield with the body cut into messages; the last has end. A body
// without bytes is one empty piece if end is set, and none otherwise.
func pieces(body []byte, end bool, yield func(piece []byte, end bool)) {
	for len(body) > maxPiece {
		yield(body[:maxPiece:maxPiece], false)
		body = body[maxPiece:]
	}
	if len(body) > 0 || end {
		yield(body, end)
	}
}
