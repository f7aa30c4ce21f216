package extproc

import (
	"fmt"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvlane/kvlane/picker"
)

// exchange is one request that ends with a status at an address; cut: its answer's
// end is not seen.
func (w *world) exchange(id, status, served string, cut bool) {
	st := w.stream(id)
	w.send(st, requestHeadersMessage(true, ":method", "GET", ":path", "/v1/models", "x-request-id", id))
	in := responseHeadersMessage(!cut)
	in.GetResponseHeaders().Headers = &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":status", RawValue: []byte(status)}}}
	if served != "" {
		in.MetadataContext = metadataContext(MetadataNamespace, KeyServed, structpb.NewStringValue(served))
	}
	w.send(st, in)
	st.end(w.now)
	delete(w.streams, id)
}

// Which answers speak against a worker, which for it, and which say nothing.
func TestOutcomes(t *testing.T) {
	const w1, w2 = "192.0.2.10:8000", "192.0.2.11:8000"
	for _, c := range []struct {
		status   string
		served   string
		cut      bool
		failures [picker.NumBlames]uint64
		ejects   bool // five of them after four failures do not let it stay
	}{
		{status: "500", served: w1, failures: [picker.NumBlames]uint64{picker.BlameStatus: 1}, ejects: true},
		{status: "502", served: w1, failures: [picker.NumBlames]uint64{picker.BlameStatus: 1}, ejects: true},
		{status: "503", served: w1, failures: [picker.NumBlames]uint64{picker.BlameStatus: 1}, ejects: true},
		{status: "504", served: w1, failures: [picker.NumBlames]uint64{picker.BlameStatus: 1}, ejects: true},
		{status: "503", failures: [picker.NumBlames]uint64{picker.BlameStatus: 1}, ejects: true},
		{status: "501", served: w1},
		{status: "529", served: w1},
		{status: "400", served: w1},
		{status: "429", served: w1},
		{status: "200", served: w1},
		{status: "200", served: w1, cut: true},
		{status: "200", served: w2, failures: [picker.NumBlames]uint64{picker.BlameConnect: 1}, ejects: true},
		{status: "502", served: w2, failures: [picker.NumBlames]uint64{picker.BlameStatus: 1, picker.BlameConnect: 1}, ejects: true},
	} {
		t.Run(fmt.Sprint(c.status, c.served, c.cut), func(t *testing.T) {
			pc := picker.DefaultConfig()
			pc.EjectShare = 1
			w := newWorld(t, Default(), pc)
			w.worker("w1", hello(w1))
			w.exchange("a", c.status, c.served, c.cut) // w1 is alone: it is the target
			w.worker("w2", hello(w2))
			if c.served == w2 {
				w = newWorld(t, Default(), pc)
				w.worker("w1", hello(w1))
				st := w.stream("b")
				w.send(st, requestHeadersMessage(true, ":method", "GET", ":path", "/v1/models", "x-request-id", "b"))
				w.worker("w2", hello(w2))
				in := responseHeadersMessage(true)
				in.GetResponseHeaders().Headers = &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":status", RawValue: []byte(c.status)}}}
				in.MetadataContext = metadataContext(MetadataNamespace, KeyServed, structpb.NewStringValue(w2))
				w.send(st, in)
				st.end(w.now)
			}
			if got := w.pool.Stats(w.now).Failures; got != c.failures {
				t.Errorf("failures %v, want %v", got, c.failures)
			}
			for i := range 4 {
				w.pool.Failed(fmt.Sprint("f", i), w1, w.now)
			}
			if got := w.pool.Stats(w.now).Ejected == 1; got != c.ejects {
				t.Errorf("ejected after four more: %v", got)
			}
		})
	}
}

// A good answer makes up for failures, once it is whole.
func TestWholeAnswerCounts(t *testing.T) {
	const w1 = "192.0.2.10:8000"
	for _, cut := range []bool{false, true} {
		w := newWorld(t, Default(), picker.DefaultConfig())
		w.worker("w1", hello(w1))
		for i := range 4 {
			w.pool.Failed(fmt.Sprint("f", i), w1, w.now)
		}
		w.exchange("good", "200", w1, cut)
		w.worker("w2", hello("192.0.2.11:8000"))
		w.pool.Failed("f5", w1, w.now)
		if got := w.pool.Stats(w.now).Ejected == 1; got != cut {
			t.Errorf("cut %v: ejected %v", cut, got)
		}
	}
}
