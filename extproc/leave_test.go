package extproc

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvlane/kvlane/picker"
)

// TestLeave: a stream leaves only where its agent is sure to report the end: a
// worker answers with a stream of events whose bytes do not pass here.
func TestLeave(t *testing.T) {
	const none, duplex = extprocfilterv3.ProcessingMode_NONE, extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	cases := []struct {
		name         string
		allowed      bool
		mode         extprocfilterv3.ProcessingMode_BodySendMode
		served       string
		status, kind string
		want         bool
	}{
		{"events", true, none, "192.0.2.10:8000", "200", "text/event-stream; charset=utf-8", true},
		{"no reports arrive", true, none, "192.0.2.10:8000", "200", "text/event-stream", false},
		{"not allowed", false, none, "192.0.2.10:8000", "200", "text/event-stream", false},
		{"bodies pass here", true, duplex, "192.0.2.10:8000", "200", "text/event-stream", false},
		{"the gateway's own answer", true, none, "", "200", "text/event-stream", false},
		{"an error", true, none, "192.0.2.10:8000", "502", "text/event-stream", false},
		{"no agent", true, none, "192.0.2.10:8000", "200", "text/event-stream", false},
		{"a document", true, none, "192.0.2.10:8000", "200", "application/json", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg := Default()
			cfg.LeaveStreaming = c.allowed
			w := newWorld(t, cfg, picker.DefaultConfig())
			w.server.SetReports(c.name != "no reports arrive")
			h := hello("192.0.2.10:8000")
			h.Bare = c.name == "no agent"
			w.worker("w1", h)
			open := func() *stream {
				st := newStream(w.server)
				st.responseMode = c.mode
				w.send(st, requestHeadersMessage(false, ":method", "POST", ":path", "/v1/completions", "x-request-id", "one"))
				w.send(st, requestBodyMessage([]byte(`{"model":"base","prompt":"hello"}`), true))
				return st
			}
			st := open()
			answer := responseHeadersMessage(false)
			answer.GetResponseHeaders().Headers = &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
				{Key: ":status", Value: c.status}, {Key: "content-type", RawValue: []byte(c.kind)},
			}}
			if c.served != "" {
				answer.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
					MetadataNamespace: {Fields: map[string]*structpb.Value{KeyServed: structpb.NewStringValue(c.served)}},
				}}
			}
			w.send(st, answer)
			if st.left != c.want {
				t.Fatalf("left %t, want %t", st.left, c.want)
			}
			st.end(w.now)
			if got := w.pool.Booked("one"); got != c.want {
				t.Errorf("booked after the stream ended: %t, want %t", got, c.want)
			}
			if again := open(); (again.id != "one") != c.want {
				t.Errorf("a second request of that id is called %q", again.id)
			}
		})
	}
}
