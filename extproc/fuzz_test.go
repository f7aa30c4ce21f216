package extproc

import (
	"bytes"
	"testing"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvlane/kvlane/picker"
)

// messageOf is the message for one byte of a fuzzed script.
func messageOf(op byte) *extprocv3.ProcessingRequest {
	body := [][]byte{nil, []byte(`{"model":"base","prompt":"`), []byte(`x"}`), []byte("}"), bytes.Repeat([]byte("a"), 70_000), []byte(`{"model":"base","prompt":[1,2,3]}`)}[int(op>>4)%6]
	end := op&8 != 0
	switch op & 7 {
	case 0:
		return requestHeadersMessage(end, ":method", "POST", ":path", "/v1/completions", "x-request-id", "r")
	case 1:
		return requestHeadersMessage(end, ":method", "POST", ":path", "/other", "X-Prefiller-Host-Port", "192.0.2.99:80")
	case 2, 3:
		return requestBodyMessage(body, end)
	case 4:
		return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}}
	case 5:
		return responseHeadersMessage(end)
	case 6:
		return responseBodyMessage(body, end)
	default:
		if end {
			return &extprocv3.ProcessingRequest{}
		}
		return responseTrailersMessage()
	}
}

// FuzzMessages sends messages in any order. Nothing panics, the rules of C07
// hold, the body comes back as a prefix of what was sent, and nothing is left.
func FuzzMessages(f *testing.F) {
	f.Add(byte(4), []byte{0x00, 0x12, 0x2a, 0x05, 0x1e})
	f.Add(byte(4), []byte{0x00, 0x12, 0x22, 0x04, 0x05, 0x07})
	f.Add(byte(4), []byte{0x01, 0x42, 0x4a, 0x4a, 0x0d})
	f.Add(byte(2), []byte{0x00, 0x5a, 0x05, 0x0e})
	f.Add(byte(3), []byte{0x00, 0x52, 0x04})
	f.Add(byte(1), []byte{0x00, 0x12, 0x2a})
	f.Add(byte(0), []byte{0x08, 0x00})
	f.Fuzz(func(t *testing.T, mode byte, script []byte) {
		script = script[:min(len(script), 40)]
		cfg := Default()
		cfg.MaxBodyBytes, cfg.MaxBufferedBytes = 200_000, 500_000
		w := newWorld(t, cfg, picker.DefaultConfig())
		w.worker("w1", hello("192.0.2.10:8000"))
		st := newStream(w.server)
		bodyMode := filterv3.ProcessingMode_BodySendMode(mode % 5)
		var out responses
		var sent []byte
		for i, op := range script {
			in := messageOf(op)
			if i == 0 {
				in.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: bodyMode, ResponseBodyMode: bodyMode}
			}
			if st.phase == reading || st.phase == passing {
				sent = append(sent, in.GetRequestBody().GetBody()...)
			}
			got := w.send(st, in)
			if bodyMode != filterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
				checkPlain(t, in, got)
			}
			out = append(out, got...)
			w.now = w.now.Add(time.Second)
			out = append(out, st.expire(w.now, nil)...)
			st.release()
		}
		if bodyMode == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
			if back, _ := checkOrder(t, out); !bytes.HasPrefix(sent, back) {
				t.Errorf("sent %d bytes, got %d others back", len(sent), len(back))
			}
		}
		st.end(w.now)
		st.end(w.now)
		for name, v := range w.metrics() {
			if v != 0 && (name == "open_bookings" || name == "buffered_body_bytes") {
				t.Errorf("%s is %g", name, v)
			}
		}
		if s := w.pool.Stats(w.now); s.Bookings != 0 || s.UnknownCloses != 0 || len(w.server.ids.open) != 0 || w.server.streams.Load() != 0 {
			t.Errorf("left behind: %+v, ids %v, streams %d", s, w.server.ids.open, w.server.streams.Load())
		}
	})
}

// checkPlain holds the rule of the modes that ask and wait: at most one answer,
// of the message's own kind or an HTTP answer.
func checkPlain(t *testing.T, in *extprocv3.ProcessingRequest, out responses) {
	t.Helper()
	if len(out) > 1 {
		t.Fatalf("%d answers to one message", len(out))
	}
	if len(out) == 0 || out[0].GetImmediateResponse() != nil {
		return
	}
	same := in.GetRequestHeaders() != nil && out[0].GetRequestHeaders() != nil ||
		in.GetRequestBody() != nil && out[0].GetRequestBody() != nil ||
		in.GetRequestTrailers() != nil && out[0].GetRequestTrailers() != nil ||
		in.GetResponseHeaders() != nil && out[0].GetResponseHeaders() != nil ||
		in.GetResponseBody() != nil && out[0].GetResponseBody() != nil ||
		in.GetResponseTrailers() != nil && out[0].GetResponseTrailers() != nil
	if !same {
		t.Fatalf("answer %v to message %v", out[0], in)
	}
	if out[0].GetRequestBody().GetResponse().GetBodyMutation() != nil {
		t.Fatal("a body that was not streamed is replaced")
	}
}
