package workers

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/kvindex"
)

// TestBlame: which ends of requests are reported as the engine's failures.
func TestBlame(t *testing.T) {
	e, a, w := attach(t, nil)
	status := func(code int) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(code)
			io.WriteString(rw, `{"choices":[]}`)
		}
	}
	cut := func(rw http.ResponseWriter, _ *http.Request) {
		c, buf, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		buf.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n10\r\ndata: {\"id\":1}\n\n\r\n")
		buf.Flush()
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	began := make(chan struct{}, 1)
	never := func(_ http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-r.Context().Done()
	}
	var ids, want []string
	for i, c := range []struct {
		answer http.HandlerFunc
		failed bool
		leaves bool
	}{
		{answer: status(200)}, {answer: status(400)}, {answer: status(429)}, {answer: status(501)}, {answer: status(529)},
		{answer: status(500), failed: true}, {answer: status(502), failed: true}, {answer: status(503), failed: true}, {answer: status(504), failed: true},
		{answer: cut, failed: true},
		{answer: never, leaves: true},
	} {
		for _, path := range []string{"/v1/chat/completions", "/v1/embeddings"} {
			id := fmt.Sprintf("%d%s", i, path)
			ids = append(ids, id)
			if c.failed {
				want = append(want, id)
			}
			e.answers(c.answer)
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+path, strings.NewReader(`{"messages":[{"role":"user","content":"q"}],"stream":true}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(HeaderBooking, id)
			done := make(chan struct{})
			go func() {
				defer close(done)
				if resp, err := http.DefaultClient.Do(req); err == nil {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			if c.leaves {
				<-began
				cancel()
			}
			<-done
			cancel()
		}
	}
	var failed []string
	w.await("the end of every request", func(records []kvindex.Record) bool {
		done := map[string]bool{}
		failed = nil
		for i := range records {
			if l := records[i].Load; l != nil {
				for j := range l.Done {
					done[l.Done[j].Booking] = true
				}
				failed = append(failed, l.Failed...)
			}
		}
		return !slices.ContainsFunc(ids, func(id string) bool { return !done[id] })
	})
	slices.Sort(failed)
	slices.Sort(want)
	want = slices.DeleteFunc(want, func(id string) bool { return id == "9/v1/embeddings" }) // passed on unread: who broke it off does not show
	if !slices.Equal(failed, want) {
		t.Errorf("failed\n%q\nwant\n%q", failed, want)
	}
}
