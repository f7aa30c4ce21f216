package envoy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// TestPickerCrash: a picker that dies while answers stream cuts none of them, and
// the agent's report closes their bookings. With the streams kept, Envoy cuts.
func TestPickerCrash(t *testing.T) {
	for name, leave := range map[string]bool{"left": true, "kept": false} {
		t.Run(name, func(t *testing.T) {
			r := start(t, 1, func(s *settings) { s.extproc.LeaveStreaming = leave })
			rest := make(chan struct{})
			r.workers[0].answer(func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(rw, "data: 1\n\n")
				rw.(http.Flusher).Flush()
				<-rest
				_, _ = io.WriteString(rw, "data: 2\n\n")
			})
			req := r.request(http.MethodPost, "/v1/completions", bytes.NewReader(completion(10)))
			req.Header.Set("X-Request-Id", "one")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			if _, err := io.ReadFull(resp.Body, make([]byte, 9)); err != nil {
				t.Fatal(err)
			}
			if leave {
				r.eventually("the stream has left", func() bool { return value(t, r.metrics.Streams) == 0 })
				if n := r.pool.Stats(time.Now()).Bookings; n != 1 {
					t.Errorf("%d bookings while the answer streams, want 1", n)
				}
			}
			r.grpc.Stop() // breaks every connection, as a crash does
			close(rest)
			got, err := io.ReadAll(resp.Body)
			if leave && (err != nil || string(got) != "data: 2\n\n") {
				t.Errorf("the answer was cut: %q, %v", got, err)
			}
			if !leave && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("Envoy no longer cuts (%q, %v): leaving may not be needed any more", got, err)
			}
			r.pool.Apply(&kvindex.Record{
				Owner: kvindex.Owner{Worker: "w0"}, Epoch: 1, Term: 1, Kind: kvindex.KindLoad,
				Load: &kvindex.Load{Done: []kvindex.Sample{{Booking: "one"}}},
			}, time.Now())
			r.idle()
		})
	}
}
