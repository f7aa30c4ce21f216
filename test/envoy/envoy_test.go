package envoy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"net"

	"github.com/kvlane/kvlane/extproc"
	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/kvindex"
)

// bothWays runs a test with answers outside and inside the ext_proc stream.
func bothWays(t *testing.T, n int, change func(*settings), test func(t *testing.T, r *rig)) {
	for _, bodies := range []bool{false, true} {
		t.Run(fmt.Sprintf("response bodies %t", bodies), func(t *testing.T) {
			r := start(t, n, func(s *settings) {
				s.envoy.ResponseBodies = bodies
				if change != nil {
					change(s)
				}
			})
			test(t, r)
			r.idle()
			for name, v := range r.stats("ext_proc.spurious_msgs_received|ext_proc.streams_failed") {
				if v != "0" {
					t.Errorf("%s is %s", name, v)
				}
			}
		})
	}
}

// TestBodies sends every size with a length and in chunks, and checks that the
// worker gets the same bytes, and the client the worker's.
func TestBodies(t *testing.T) {
	bothWays(t, 2, nil, func(t *testing.T, r *rig) {
		for _, size := range []int{1, 61_000, 62_001, 65_536, 1 << 20, 10 << 20} {
			for _, chunked := range []bool{false, true} {
				body := completion(size)
				for _, w := range r.workers {
					w.answer(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(body) })
				}
				req := r.request(http.MethodPost, "/v1/completions", bytes.NewReader(body))
				if chunked {
					req.ContentLength = -1
					req.Body = io.NopCloser(bytes.NewReader(body))
				}
				resp, got := r.do(req)
				if resp.StatusCode != 200 || !bytes.Equal(got, body) {
					t.Fatalf("%d bytes, chunked %t: status %d, %d bytes back", len(body), chunked, resp.StatusCode, len(got))
				}
				at := last(r)
				if at.sum != sum(body) {
					t.Errorf("%d bytes, chunked %t: the worker got %d other bytes", len(body), chunked, at.size)
				}
				if !chunked && at.length != int64(len(body)) {
					t.Errorf("%d bytes: the worker got content-length %d", len(body), at.length)
				}
			}
		}
	})
}

// last is the newest request of any worker.
func last(r *rig) seen {
	var s seen
	for _, w := range r.workers {
		if got := w.requests(); len(got) > 0 {
			s = got[len(got)-1]
		}
		w.mu.Lock()
		w.seen = nil
		w.mu.Unlock()
	}
	return s
}

// TestOtherRequests: requests without a body, with trailers, on unknown paths.
func TestOtherRequests(t *testing.T) {
	bothWays(t, 2, nil, func(t *testing.T, r *rig) {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodDelete, http.MethodPost} {
			resp, _ := r.do(r.request(method, "/v1/models", nil))
			if at := last(r); resp.StatusCode != 200 || at.method != method {
				t.Errorf("%s: status %d, worker saw %q", method, resp.StatusCode, at.method)
			}
		}
		for _, path := range []string{"/v1/completions", "/v1/other"} {
			req := r.request(http.MethodPost, path, io.MultiReader(bytes.NewReader(completion(100_000))))
			req.Trailer = http.Header{"X-Sum": {"7"}}
			resp, _ := r.do(req)
			at := last(r)
			if at.header.Get(extproc.HeaderTrailers) != "" || resp.StatusCode != 200 || at.trailer.Get("X-Sum") != "7" || at.sum != sum(completion(100_000)) {
				t.Errorf("%s with trailers: status %d, worker saw %d bytes, trailers %v", path, resp.StatusCode, at.size, at.trailer)
			}
		}
		req := r.request(http.MethodPost, "/v1/completions", strings.NewReader("not really gzip"))
		req.Header.Set("Content-Encoding", "gzip")
		if resp, _ := r.do(req); resp.StatusCode != 200 || last(r).sum != sum([]byte("not really gzip")) {
			t.Errorf("compressed: status %d", resp.StatusCode)
		}
	})
}

// TestUnannouncedTrailers: trailers that no header announces; the body still
// arrives once.
func TestUnannouncedTrailers(t *testing.T) {
	bothWays(t, 1, nil, func(t *testing.T, r *rig) {
		body := completion(100_000)
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"+
			"%x\r\n%s\r\n0\r\nx-sum: 7\r\n\r\n", len(body), body); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if at := last(r); resp.StatusCode != 200 || at.sum != sum(body) || at.header.Get(extproc.HeaderTrailers) != "" {
			t.Errorf("status %d, worker saw %d bytes of %d, headers %v", resp.StatusCode, at.size, len(body), at.header)
		}
	})
}

// TestRefusals: statuses and bodies of requests that reach no worker.
func TestRefusals(t *testing.T) {
	bothWays(t, 1, func(s *settings) {
		s.extproc.MaxBodyBytes = 100_000
		s.extproc.Overloaded529 = true
		s.picker.MaxRequests = 1
	}, func(t *testing.T, r *rig) {
		check := func(what string, resp *http.Response, body []byte, want int, reason extproc.Cause) {
			t.Helper()
			var e struct{ Error struct{ Message string } }
			if err := json.Unmarshal(body, &e); err != nil || e.Error.Message == "" {
				t.Errorf("%s: no error object: %q", what, body)
			}
			if resp.StatusCode != want || resp.Header.Get(extproc.HeaderReason) != string(reason) ||
				resp.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s: want %d %s, got %d %v", what, want, reason, resp.StatusCode, resp.Header)
			}
		}
		resp, b := r.do(r.request(http.MethodPost, "/v1/completions", strings.NewReader("{")))
		check("malformed", resp, b, 400, extproc.CauseMalformed)
		resp, b = r.do(r.request(http.MethodPost, "/v1/completions", strings.NewReader(`{"model":"x","prompt":"a"}`)))
		check("model", resp, b, 404, extproc.CauseNoModel)
		big := completion(300_000)
		resp, b = r.do(r.request(http.MethodPost, "/v1/completions", bytes.NewReader(big)))
		check("large", resp, b, 413, extproc.CauseTooLarge)
		resp, b = r.do(r.request(http.MethodPost, "/v1/completions", io.MultiReader(bytes.NewReader(big))))
		check("large in chunks", resp, b, 413, extproc.CauseTooLarge)

		entered, leave := make(chan struct{}), make(chan struct{})
		r.workers[0].answer(func(http.ResponseWriter, *http.Request) { close(entered); <-leave })
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = r.do(r.request(http.MethodGet, "/hold", nil))
		}()
		<-entered
		resp, b = r.do(r.request(http.MethodPost, "/v1/completions", bytes.NewReader(completion(10))))
		check("overloaded", resp, b, 529, extproc.CauseOverloaded)
		if resp.Header.Get("Retry-After") == "" {
			t.Error("overloaded: no retry-after")
		}
		close(leave)
		<-done
		r.workers[0].answer(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(204) })
		r.idle()
		if resp, _ = r.do(r.request(http.MethodGet, "/v1/models", nil)); resp.StatusCode != 204 {
			t.Errorf("the next request: %d", resp.StatusCode)
		}
	})
}

// TestForgedHeaders: a worker never sees a routing header of the client, be it
// stripped by Envoy or, with an Envoy that does not, by the picker.
func TestForgedHeaders(t *testing.T) {
	for _, early := range []bool{true, false} {
		bothWays(t, 1, func(s *settings) {
			if !early {
				s.envoy.StripHeaders = nil
			}
		}, func(t *testing.T, r *rig) {
			for _, path := range []string{"/v1/completions", "/v1/other"} {
				req := r.request(http.MethodPost, path, bytes.NewReader(completion(10)))
				for _, h := range extproc.RoutingHeaders() {
					req.Header[http.CanonicalHeaderKey(h)] = []string{"192.0.2.99:80", "192.0.2.98:80"}
				}
				if resp, _ := r.do(req); resp.StatusCode != 200 {
					t.Errorf("%s: status %d", path, resp.StatusCode)
				}
				for name, values := range last(r).header {
					for _, v := range values {
						if strings.Contains(v, "192.0.2.9") {
							t.Errorf("early %t, %s: worker got %s: %s", early, path, name, v)
						}
					}
				}
			}
		})
	}
}

// TestFallback: the target is dead, the next address of the plan serves, and
// the picker learns it.
func TestFallback(t *testing.T) {
	bothWays(t, 1, func(s *settings) {
		s.dead = []string{porttest.Address(t), porttest.Address(t)}
	}, func(t *testing.T, r *rig) {
		alive := r.workers[0].Listener.Addr().String()
		moved := 0
		for i := range 20 {
			size := 100
			if i >= 10 {
				size = 3 << 20 // more than the connection's buffers hold
			}
			body := completion(size)
			req := r.request(http.MethodPost, "/v1/completions", bytes.NewReader(body))
			req.Header.Set("X-Request-Id", fmt.Sprintf("fallback-%d", i))
			resp, got := r.do(req)
			if resp.StatusCode != 200 {
				t.Fatalf("request %d: status %d %s", i, resp.StatusCode, got)
			}
			at := last(r)
			if at.sum != sum(body) {
				t.Errorf("request %d: the worker got %d bytes, want %d", i, at.size, len(body))
			}
			r.idle()
			e, ok := r.server.Plans().Get(fmt.Sprintf("fallback-%d", i))
			if !ok || e.Served != alive {
				t.Fatalf("request %d: served %q, want %q", i, e.Served, alive)
			}
			if e.Decision.Plan.Decode.Address != alive {
				moved++
			}
		}
		if moved == 0 {
			t.Error("no plan had a dead target")
		}
	})
}

// TestEnds: how the picker learns the end: done for whole answers, aborted for
// clients that leave, at every point.
func TestEnds(t *testing.T) {
	for _, bodies := range []bool{false, true} {
		t.Run(fmt.Sprintf("response bodies %t", bodies), func(t *testing.T) { testEnds(t, bodies) })
	}
}

func testEnds(t *testing.T, bodies bool) {
	r := start(t, 1, func(s *settings) { s.envoy.ResponseBodies = bodies })
	// What an end without trailers, and one that was cut, look like.
	whole, cut := "answered", "answered"
	if bodies {
		whole, cut = "done", "aborted"
	}
	outcome := func(o string) float64 { return value(t, r.metrics.Requests.WithLabelValues(o)) }
	resp, _ := r.do(r.request(http.MethodPost, "/v1/completions", bytes.NewReader(completion(100))))
	r.idle()
	if resp.StatusCode != 200 || outcome(whole) != 1 {
		t.Errorf("a whole answer: %d, %g done, %g aborted", resp.StatusCode, outcome("done"), outcome("aborted"))
	}
	r.workers[0].answer(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Trailer", "X-End")
		_, _ = io.WriteString(rw, "some")
		rw.(http.Flusher).Flush()
		_, _ = io.WriteString(rw, "more")
		rw.Header().Set("X-End", "1")
	})
	done := outcome("done")
	resp, _ = r.do(r.request(http.MethodGet, "/", nil))
	r.idle()
	if resp.Trailer.Get("X-End") != "1" || outcome("done") != done+1 {
		t.Errorf("an answer with trailers: %v, %g done, %g aborted", resp.Trailer, outcome("done"), outcome("aborted"))
	}
	// In the answer.
	left := make(chan struct{}, 1)
	r.workers[0].answer(func(rw http.ResponseWriter, req *http.Request) {
		_, _ = io.WriteString(rw, "data: 1\n\n")
		rw.(http.Flusher).Flush()
		<-req.Context().Done()
		left <- struct{}{}
	})
	before := outcome(cut)
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := http.DefaultClient.Do(r.request(http.MethodGet, "/", nil).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadFull(resp.Body, make([]byte, 8))
	cancel()
	_ = resp.Body.Close()
	<-left
	r.idle()
	if outcome(cut) != before+1 {
		t.Errorf("a cut answer does not count as %s", cut)
	}
	// Before the answer.
	before = outcome("aborted")
	entered := make(chan struct{})
	r.workers[0].answer(func(_ http.ResponseWriter, req *http.Request) {
		close(entered)
		<-req.Context().Done()
		left <- struct{}{}
	})
	ctx, cancel = context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	if resp, err := http.DefaultClient.Do(r.request(http.MethodGet, "/", nil).WithContext(ctx)); err == nil {
		_ = resp.Body.Close()
		t.Error("want the request cancelled")
	}
	<-left
	r.idle()
	// In the request's body.
	ctx, cancel = context.WithCancel(t.Context())
	pr, pw := io.Pipe()
	failed := make(chan error, 1)
	go func() {
		_, err := http.DefaultClient.Do(r.request(http.MethodPost, "/v1/completions", pr).WithContext(ctx))
		failed <- err
	}()
	if _, err := pw.Write(completion(10)[:5]); err != nil {
		t.Fatal(err)
	}
	r.eventually("the body's start is read", func() bool { return value(t, r.metrics.BufferedBytes) > 0 })
	cancel()
	_ = pr.CloseWithError(context.Canceled) // the client's transport waits for its reader
	<-failed
	r.eventually("the stream has ended", func() bool { return value(t, r.metrics.Streams) == 0 })
	if outcome("aborted") != before+2 || value(t, r.metrics.BufferedBytes) != 0 {
		t.Errorf("want %g aborted, got %g", before+2, outcome("aborted"))
	}
}

// TestSlowBody: Envoy's message timeout does not cut a slow client short; the
// picker's own limit does.
func TestSlowBody(t *testing.T) {
	r := start(t, 1, func(s *settings) {
		s.envoy.MessageTimeout = 50 * time.Millisecond
		s.extproc.BodyIdleTimeout, s.extproc.BodyTimeout = 500*time.Millisecond, 600*time.Millisecond
	})
	pr, pw := io.Pipe()
	go func() { _, _ = pw.Write([]byte(`{"model"`)) }()
	resp, b := r.do(r.request(http.MethodPost, "/v1/completions", pr))
	_ = pw.Close()
	if resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("want 408, got %d %s", resp.StatusCode, b)
	}
	r.idle()
}

// TestPickerDown: no picker, no request at a worker.
func TestPickerDown(t *testing.T) {
	r := start(t, 1, nil)
	r.grpc.Stop()
	for _, req := range []*http.Request{
		r.request(http.MethodGet, "/v1/models", nil),
		r.request(http.MethodPost, "/v1/completions", bytes.NewReader(completion(10))),
	} {
		req.Header.Set("X-Gateway-Destination-Endpoint", r.workers[0].Listener.Addr().String())
		if resp, _ := r.do(req); resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s: want 503, got %d", req.Method, resp.StatusCode)
		}
	}
	if got := r.workers[0].requests(); len(got) != 0 {
		t.Errorf("the worker got %d requests", len(got))
	}
}

// TestEvents: events of a stream reach an HTTP/2 client one by one, and headers
// for one hop stay on it.
func TestEvents(t *testing.T) {
	bothWays(t, 1, nil, func(t *testing.T, r *rig) {
		const events = 200
		next := make(chan struct{}, 1)
		r.workers[0].answer(func(rw http.ResponseWriter, _ *http.Request) {
			h := rw.Header()
			h.Set("Content-Type", "text/event-stream; charset=utf-8")
			h.Set("Keep-Alive", "timeout=5, max=100")
			h.Set("X-End", "for-the-client")
			for i := range events {
				_, _ = fmt.Fprintf(rw, "data: %d\n\n", i)
				rw.(http.Flusher).Flush()
				<-next // the client has this one
			}
		})
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		client := &http.Client{Transport: &http.Transport{Protocols: &protocols}}
		defer client.CloseIdleConnections()
		resp, err := client.Do(r.request(http.MethodPost, "/v1/completions", bytes.NewReader(completion(10))))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.Header.Get("X-End") == "" || resp.ContentLength >= 0 || resp.Header.Get("Keep-Alive") != "" || resp.ProtoMajor != 2 {
			t.Errorf("answer %s with headers %v", resp.Proto, resp.Header)
		}
		for i := range events {
			want := fmt.Sprintf("data: %d\n\n", i)
			got := make([]byte, len(want))
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
				t.Fatalf("event %d: %q, %v", i, got, err)
			}
			next <- struct{}{}
		}
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
			t.Errorf("after the last event: %q, %v", rest, err)
		}
	})
}

// TestNotReady: a pool without a ready worker answers 503.
func TestNotReady(t *testing.T) {
	r := start(t, 1, nil)
	r.pool.Apply(&kvindex.Record{Owner: kvindex.Owner{Worker: "w0"}, Epoch: 1, Term: 1, Kind: kvindex.KindBye}, time.Now())
	resp, _ := r.do(r.request(http.MethodPost, "/v1/completions", bytes.NewReader(completion(10))))
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("want 503 with retry-after, got %d %v", resp.StatusCode, resp.Header)
	}
}
