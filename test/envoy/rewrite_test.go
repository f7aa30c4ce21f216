package envoy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/extproc"
	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/picker"
)

// TestRewrite: the worker gets the other model, every other byte as it was, and the
// right length, in each mode in which the picker reads bodies.
func TestRewrite(t *testing.T) {
	for _, mode := range []string{"FULL_DUPLEX_STREAMED", "BUFFERED", "BUFFERED_PARTIAL"} {
		for _, lengths := range []bool{true, false} {
			for _, target := range []string{"b", "a-much-longer-name-than-that"} {
				t.Run(fmt.Sprintf("%s/lengths %t/%d", mode, lengths, len(target)), func(t *testing.T) {
					r := start(t, 1, func(s *settings) {
						s.rewrites = []picker.Rewrite{{Model: "alias", Targets: []picker.RewriteTarget{{Model: target, Weight: 1}}}}
						s.bootstrap = func(b string) string {
							b = strings.Replace(b, "request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: "+mode, 1)
							// Without it, Envoy takes lengths away and sends chunks.
							return strings.Replace(b, "allow_content_length_header: true", "allow_content_length_header: "+strconv.FormatBool(lengths), 1)
						}
					})
					r.serve(0, target)
					for _, size := range []int{10, 70_000, 300_000} {
						r.rewritten(mode, target, size, false)
						r.rewritten(mode, target, size, true)
					}
					r.idle()
				})
			}
		}
	}
}

func (r *rig) rewritten(mode, target string, size int, chunked bool) {
	r.t.Helper()
	text := strings.Repeat("x", size)
	body := []byte(`{"seed":9007199254740995, "model" : "alias","z":1.0,"prompt":"` + text + `"}`)
	want := bytes.Replace(body, []byte(`"alias"`), []byte(`"`+target+`"`), 1)
	req := r.request(http.MethodPost, "/v1/completions", bytes.NewReader(body))
	req.Header.Set(extproc.HeaderModelRewrite, "spoofed")
	if chunked {
		req.ContentLength, req.Body = -1, io.NopCloser(bytes.NewReader(body))
	}
	resp, got := r.do(req)
	at := last(r)
	if resp.StatusCode != http.StatusOK || at.sum != sum(want) {
		r.t.Errorf("%s, %d bytes, chunked %t: status %d (%s), the worker got %d bytes, want %d", mode, len(body), chunked, resp.StatusCode, got, at.size, len(want))
	}
	if n := at.header.Get("Content-Length"); n != "" && n != strconv.Itoa(len(want)) || at.length >= 0 && at.length != int64(len(want)) {
		r.t.Errorf("%s, %d bytes, chunked %t: length %q, %d of %d", mode, len(body), chunked, n, at.length, len(want))
	}
	if name := at.header.Get(extproc.HeaderModelRewrite); name != target {
		r.t.Errorf("%s: header %q, want %q", mode, name, target)
	}
}

// TestEjection: a worker where nobody listens, and one that answers 500, get no
// requests after a few, and the pool goes on with the others.
func TestEjection(t *testing.T) {
	dead := porttest.Address(t)
	r := start(t, 3, func(s *settings) {
		s.picker.Policy, s.picker.EjectTime = picker.PolicyRoundRobin, s.picker.MaxEjectTime
		s.dead = []string{dead}
	})
	r.workers[1].answer(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusInternalServerError) })
	send := func() int {
		resp, _ := r.do(r.request(http.MethodPost, "/v1/completions", bytes.NewReader(completion(10))))
		return resp.StatusCode
	}
	for range 40 {
		send()
	}
	r.idle()
	stats := r.pool.Stats(time.Now())
	if stats.Ejected != 2 || stats.Ejections != 2 || stats.Failures != [picker.NumBlames]uint64{picker.BlameStatus: 5, picker.BlameConnect: 5} {
		t.Fatalf("stats %+v", stats)
	}
	before := len(r.workers[1].requests())
	for range 10 {
		if code := send(); code != http.StatusOK {
			t.Errorf("status %d", code)
		}
	}
	if n := len(r.workers[1].requests()) - before; n != 0 {
		t.Errorf("%d requests went to the worker that fails", n)
	}
}
