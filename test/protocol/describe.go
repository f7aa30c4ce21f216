package protocol

import (
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// describe is a message to the picker in a line.
func describe(m *request) string {
	switch v := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		line := "request_headers " + headersLine(v.RequestHeaders.GetHeaders()) + ended(v.RequestHeaders.GetEndOfStream())
		if m.GetProtocolConfig() != nil {
			a, b := declared(m)
			line += fmt.Sprintf("; modes %s, %s", a, b)
		}
		if m.GetObservabilityMode() {
			line += "; observability_mode"
		}
		return line + metadataLine(m)
	case *extprocv3.ProcessingRequest_RequestBody:
		return "request_body " + bytesLine(v.RequestBody.GetBody()) + ended(v.RequestBody.GetEndOfStream())
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return "request_trailers"
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return "response_headers " + headersLine(v.ResponseHeaders.GetHeaders()) + ended(v.ResponseHeaders.GetEndOfStream()) + metadataLine(m)
	case *extprocv3.ProcessingRequest_ResponseBody:
		return "response_body " + bytesLine(v.ResponseBody.GetBody()) + ended(v.ResponseBody.GetEndOfStream())
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return "response_trailers"
	}
	return "(a message without a request)"
}

// explain is a picker's answer in a line.
func explain(a *answer) string {
	var line string
	switch v := a.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		line = "request_headers" + commonLine(v.RequestHeaders.GetResponse())
	case *extprocv3.ProcessingResponse_RequestBody:
		line = "request_body" + commonLine(v.RequestBody.GetResponse())
	case *extprocv3.ProcessingResponse_RequestTrailers:
		line = "request_trailers"
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		line = "response_headers" + commonLine(v.ResponseHeaders.GetResponse())
	case *extprocv3.ProcessingResponse_ResponseBody:
		line = "response_body" + commonLine(v.ResponseBody.GetResponse())
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		line = "response_trailers"
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		line = fmt.Sprintf("immediate_response %d %.120q", v.ImmediateResponse.GetStatus().GetCode(), v.ImmediateResponse.GetBody())
	default:
		line = "(an answer of no known kind)"
	}
	if d := a.GetDynamicMetadata(); d != nil {
		line += fmt.Sprintf("; metadata %.160s", d.String())
	}
	return line
}

func commonLine(c *extprocv3.CommonResponse) string {
	var out strings.Builder
	for _, h := range c.GetHeaderMutation().GetSetHeaders() {
		fmt.Fprintf(&out, " %s=%.60q", h.GetHeader().GetKey(), text(h.GetHeader()))
	}
	for _, k := range c.GetHeaderMutation().GetRemoveHeaders() {
		fmt.Fprintf(&out, " -%s", k)
	}
	switch b := c.GetBodyMutation().GetMutation().(type) {
	case *extprocv3.BodyMutation_StreamedResponse:
		fmt.Fprintf(&out, " streamed %s%s", bytesLine(b.StreamedResponse.GetBody()), ended(b.StreamedResponse.GetEndOfStream()))
	case *extprocv3.BodyMutation_Body:
		fmt.Fprintf(&out, " replaces the body with %s", bytesLine(b.Body))
	case *extprocv3.BodyMutation_ClearBody:
		fmt.Fprint(&out, " clears the body")
	}
	return out.String()
}

func headersLine(m *corev3.HeaderMap) string {
	var out []string
	for i, h := range m.GetHeaders() {
		switch k := h.GetKey(); k {
		case ":scheme", ":authority", "x-request-id", "x-worker":
		default:
			if i > 20 {
				return strings.Join(out, " ") + fmt.Sprintf(" (%d headers)", len(m.GetHeaders()))
			}
			out = append(out, fmt.Sprintf("%s=%.60q", k, text(h)))
		}
	}
	return strings.Join(out, " ")
}

func metadataLine(m *request) string {
	if c := m.GetMetadataContext(); c != nil {
		return fmt.Sprintf("; metadata %.160s", c.String())
	}
	return ""
}

func bytesLine(b []byte) string { return fmt.Sprintf("%d bytes %.40q", len(b), b) }

func ended(end bool) string {
	if end {
		return " end_of_stream"
	}
	return ""
}
