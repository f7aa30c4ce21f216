package envoy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/kvlane/kvlane/extproc"
)

// TestFlow: a request that waits for room does so for longer than Envoy's message
// timeout; it reaches the worker whole, and one whose client leaves never does.
func TestFlow(t *testing.T) {
	const timeout = 100 * time.Millisecond
	bothWays(t, 1, func(s *settings) {
		s.envoy.MessageTimeout = timeout
		s.picker.MaxRequests = 1
		s.extproc.Flow.Enabled, s.extproc.EnginePriority, s.extproc.MaxPriority = true, extproc.EnginePriorityVLLM, 9
	}, func(t *testing.T, r *rig) {
		entered, leave := make(chan struct{}, 1), make(chan struct{})
		r.workers[0].answer(func(rw http.ResponseWriter, _ *http.Request) {
			entered <- struct{}{}
			<-leave
			_, _ = io.WriteString(rw, "ok")
		})
		answers := make(chan string, 4)
		ask := func(ctx context.Context, name string, size int, chunked bool, headers ...string) {
			req := r.request(http.MethodPost, "/v1/completions", bytes.NewReader(completion(size))).WithContext(ctx)
			if chunked {
				req.ContentLength = -1
			}
			for i := 0; i < len(headers); i += 2 {
				req.Header.Set(headers[i], headers[i+1])
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				answers <- name + " failed"
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			answers <- fmt.Sprint(name, " ", resp.StatusCode, resp.Header.Get(extproc.HeaderReason))
		}
		waiting := func(n float64) {
			t.Helper()
			r.eventually(fmt.Sprint(n, " wait"), func() bool {
				return value(t, r.metrics.Flow.Requests.WithLabelValues("0"))+value(t, r.metrics.Flow.Requests.WithLabelValues("5")) == n
			})
		}
		go ask(t.Context(), "first", 10, false)
		<-entered
		go ask(t.Context(), "second", 200_000, false)
		waiting(1)
		go ask(t.Context(), "third", 1_000_000, true, extproc.HeaderPriority, "5")
		waiting(2)
		gone, cancel := context.WithCancel(t.Context())
		go ask(gone, "gone", 10, false)
		waiting(3)
		cancel()
		if got := <-answers; got != "gone failed" {
			t.Errorf("the one that left: %s", got)
		}
		waiting(2)

		// This one gives up after a time that is longer than Envoy's: the others
		// have waited at least as long then.
		go ask(t.Context(), "targeted", 10, false, extproc.HeaderSLOTTFT, fmt.Sprint((5 * timeout).Milliseconds()))
		if got := <-answers; got != "targeted 429slo-hopeless" {
			t.Errorf("the one with a target: %s", got)
		}
		leave <- struct{}{}
		for _, want := range []string{"first 200", "third 200", "second 200"} {
			if got := <-answers; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if want != "second 200" {
				<-entered
				leave <- struct{}{}
			}
		}
		seen := r.workers[0].requests()
		third := withPriority(completion(1_000_000), -5)
		if len(seen) != 3 || seen[1].sum != sum(third) || seen[2].sum != sum(completion(200_000)) {
			t.Errorf("%d requests reached the worker; want three, whole: %v", len(seen), seen)
		}
	})
}

// TestEnginePriority: a body of another length than the client's arrives whole.
func TestEnginePriority(t *testing.T) {
	bothWays(t, 1, func(s *settings) {
		s.extproc.EnginePriority, s.extproc.Objectives = extproc.EnginePriorityVLLM, "chat=7"
	}, func(t *testing.T, r *rig) {
		for _, size := range []int{1, 100_000} {
			for _, chunked := range []bool{false, true} {
				body := completion(size)
				req := r.request(http.MethodPost, "/v1/completions", bytes.NewReader(body))
				if chunked {
					req.ContentLength = -1
				}
				req.Header.Set("x-llm-d-inference-objective", "chat")
				if resp, _ := r.do(req); resp.StatusCode != 200 {
					t.Fatalf("%d bytes, chunked %t: %d", size, chunked, resp.StatusCode)
				}
				want := withPriority(body, -7)
				seen := r.workers[0].requests()
				got := seen[len(seen)-1]
				if got.sum != sum(want) || !chunked && got.length != int64(len(want)) {
					t.Errorf("%d bytes, chunked %t: %d bytes of length %d, want %d", size, chunked, got.size, got.length, len(want))
				}
			}
		}
	})
}

func withPriority(body []byte, priority int) []byte {
	return fmt.Appendf(nil, `%s, "priority": %d}`, bytes.TrimSuffix(body, []byte("}")), priority)
}
