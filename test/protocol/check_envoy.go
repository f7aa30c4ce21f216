package protocol

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"

	"net/http/httptrace"
)

// envoyChecks send HTTP through a stock Envoy that asks the picker.
func envoyChecks() []Check {
	checks := []Check{
		throughEnvoy("get", FromProtocol, "A GET through Envoy reaches the endpoint that was picked.", func(ctx context.Context, l *lab) error {
			return l.do(ctx, call{front: frontDuplex, method: "GET", path: modelsPath}).followed()
		}),
		throughEnvoy("head", FromProtocol, "A HEAD through Envoy reaches the endpoint that was picked.", func(ctx context.Context, l *lab) error {
			return l.do(ctx, call{front: frontDuplex, method: "HEAD", path: modelsPath}).followed()
		}),
		throughEnvoy("post", FromProtocol, "A POST with a length reaches the endpoint that was picked, with its bytes and its length.",
			func(ctx context.Context, l *lab) error {
				body := l.completion(3000)
				r := l.do(ctx, call{front: frontDuplex, method: "POST", path: completionsPath, body: body})
				if err := r.followed(); err != nil {
					return err
				}
				if r.seen[0].length != int64(len(body)) {
					return r.fail(fmt.Sprintf("content-length %d", len(body)), "%d", r.seen[0].length)
				}
				return nil
			}),
		throughEnvoy("post-chunked", FromProtocol, "A POST without a length reaches the endpoint that was picked, with its bytes.",
			func(ctx context.Context, l *lab) error {
				return l.do(ctx, call{front: frontDuplex, method: "POST", path: completionsPath, body: l.completion(100_000), chunked: true}).followed()
			}),
		throughEnvoy("post-empty", FromProtocol, "A POST without a body reaches the endpoint that was picked.", func(ctx context.Context, l *lab) error {
			return l.do(ctx, call{front: frontDuplex, method: "POST", path: completionsPath}).followed()
		}),
		throughEnvoy("unknown-path", FromUs, "A request to a path that nobody knows, with a query, reaches the endpoint that was picked.",
			func(ctx context.Context, l *lab) error {
				return l.do(ctx, call{front: frontDuplex, method: "PUT", path: unknownPath + "?a=1&b=%2F", body: noise(70_000)}).followed()
			}),
		throughEnvoy("gzip", FromUs, "A compressed body reaches the endpoint with the client's own bytes, or is refused with 415.", envoyGzip),
		throughEnvoy("h2-endpoint", FromProtocol, "Endpoints may be asked with HTTP/2 in clear text (appProtocol kubernetes.io/h2c).",
			func(ctx context.Context, l *lab) error {
				r := l.do(ctx, call{front: frontH2, method: "POST", path: completionsPath, body: l.completion(100_000), h2: true})
				if err := r.followed(); err != nil {
					return err
				}
				if r.seen[0].proto != "HTTP/2.0" {
					return r.fail("HTTP/2 at the endpoint", "%s", r.seen[0].proto)
				}
				return nil
			}),
		throughEnvoy("trailers", FromProtocol, "The request's trailers reach the endpoint, and its body once.", func(ctx context.Context, l *lab) error {
			return envoyTrailers(ctx, l, completionsPath)
		}),
		throughEnvoy("trailers-unknown-path", FromProtocol, "On a path that the picker does not read, trailers reach the endpoint too, and the body once.",
			func(ctx context.Context, l *lab) error {
				return envoyTrailers(ctx, l, unknownPath)
			}),
		throughEnvoy("subset", FromProtocol, "A subset hint in Envoy's metadata decides where the request goes.", func(ctx context.Context, l *lab) error {
			for _, e := range l.target.Endpoints {
				r := l.do(ctx, call{front: frontDuplex, method: "GET", path: modelsPath, headers: [][2]string{{subsetHeader, e}}})
				if err := r.followed(); err != nil {
					return err
				}
				if r.seen[0].worker != e {
					return r.fail(e, "%s", r.seen[0].worker)
				}
			}
			return nil
		}),
		throughEnvoy("subset-unknown-is-503", FromProtocol, "A hint without an endpoint is a 503 for the client.", func(ctx context.Context, l *lab) error {
			return l.do(ctx, call{front: frontDuplex, method: "GET", path: modelsPath, headers: [][2]string{{subsetHeader, "198.51.100.7:80"}}}).is(503)
		}),
	}
	for _, size := range []int{1, 62_001, 1 << 20, 5 << 20} {
		checks = append(checks, throughEnvoy(fmt.Sprintf("size-%d", size), FromProtocol,
			fmt.Sprintf("A body of %d bytes reaches the endpoint, and one of that size the client.", size), func(ctx context.Context, l *lab) error {
				return envoySize(ctx, l, size)
			}))
	}
	return slices.Concat(checks, envoyManyChecks(), envoyAnswerChecks())
}

// envoyManyChecks send more than one request.
func envoyManyChecks() []Check {
	return []Check{
		throughEnvoy("in-turn", FromEnvoy, "Requests with and without a body, in turn on one connection, all arrive.",
			func(ctx context.Context, l *lab) error {
				for i := range 20 {
					if err := l.do(ctx, call{front: frontDuplex, method: "POST", path: completionsPath, body: l.completion(100 * (i + 1))}).followed(); err != nil {
						return err
					}
					if err := l.do(ctx, call{front: frontDuplex, method: "GET", path: modelsPath}).followed(); err != nil {
						return err
					}
				}
				return nil
			}),
		throughEnvoy("parallel", FromUs, "40 requests at the same time all arrive, each with its own body.", envoyParallel),
	}
}

func throughEnvoy(name string, source Source, rule string, run func(context.Context, *lab) error) Check {
	return Check{ID: "envoy/" + name, Rule: rule, Source: source, needs: []need{needEnvoy}, run: run}
}

func envoyGzip(ctx context.Context, l *lab) error {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(l.completion(30_000)); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	r := l.do(ctx, call{front: frontDuplex, method: "POST", path: completionsPath, body: b.Bytes(), headers: [][2]string{{"content-encoding", "gzip"}}})
	if r.status == http.StatusUnsupportedMediaType {
		return nil
	}
	return r.followed()
}

func envoyTrailers(ctx context.Context, l *lab, path string) error {
	r := l.do(ctx, call{front: frontDuplex, method: "POST", path: path, body: l.completion(100_000), trailer: http.Header{"X-Sum": {"7"}}})
	if err := r.followed(); err != nil {
		return err
	}
	if got := r.seen[0].trailer.Get("X-Sum"); got != "7" {
		return r.fail("the trailer x-sum: 7", "%v", r.seen[0].trailer)
	}
	return nil
}

func envoySize(ctx context.Context, l *lab, size int) error {
	body := noise(size)
	return l.envoy.with(func(w *worker) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) { w.answer(rw, r, body) }
	}, func() error {
		for _, path := range []string{completionsPath, unknownPath} {
			c := call{front: frontDuplex, method: "POST", path: path, body: body}
			if path == completionsPath {
				c.body = l.completion(size)
			}
			r := l.do(ctx, c)
			if err := r.followed(); err != nil {
				return err
			}
			if !bytes.Equal(r.body, body) {
				return r.fail("the endpoint's answer", "%s", differ(r.body, body))
			}
		}
		return nil
	})
}

func envoyParallel(ctx context.Context, l *lab) error {
	var all sync.WaitGroup
	faults := make([]error, 40)
	for i := range faults {
		all.Go(func() {
			body := fmt.Appendf(nil, `{"model":%q,"prompt":%q}`, l.model(), strings.Repeat(strconv.Itoa(i), 1000))
			c := call{front: frontDuplex, method: "POST", path: completionsPath, body: body, chunked: i%2 == 0}
			r := &reply{call: c, id: newID()}
			req, err := c.request(ctx, l, r.id)
			if err != nil {
				faults[i] = err
				return
			}
			resp, err := l.envoy.http1.Do(req)
			if err != nil {
				faults[i] = err
				return
			}
			got, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close() // read
			if want := sum(body); err != nil || string(got) != want {
				faults[i] = r.fail("the sha256 of the body "+want, "status %d, %q, %v", resp.StatusCode, got, err)
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	err := l.envoy.with(func(*worker) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err == nil {
				_, _ = io.WriteString(rw, sum(b))
			}
		}
	}, func() error {
		<-done
		return errors.Join(faults...)
	})
	return err
}

// envoyAnswerChecks are about answers on their way through Envoy.
func envoyAnswerChecks() []Check {
	return []Check{
		throughEnvoy("events", FromUs, "Events of a stream reach an HTTP/2 client one by one: none waits for the next.",
			func(ctx context.Context, l *lab) error {
				return envoyEvents(ctx, l, frontDuplex)
			}),
		throughEnvoy("events-without-bodies", FromUs, "Where response bodies do not pass the picker, events reach the client one by one too.",
			func(ctx context.Context, l *lab) error {
				return envoyEvents(ctx, l, frontQuiet)
			}),
		throughEnvoy("response-trailers", FromEnvoy, "An answer's trailers reach the client.", func(ctx context.Context, l *lab) error {
			return l.envoy.with(func(w *worker) http.HandlerFunc {
				return func(rw http.ResponseWriter, r *http.Request) {
					rw.Header().Set("Trailer", "X-End")
					w.answer(rw, r, []byte("{}"))
					rw.Header().Set("X-End", "1")
				}
			}, func() error {
				r := l.do(ctx, call{front: frontDuplex, method: "POST", path: completionsPath, body: l.completion(100)})
				if err := r.followed(); err != nil {
					return err
				}
				if r.trailer.Get("X-End") != "1" {
					return r.fail("the trailer x-end: 1", "%v", r.trailer)
				}
				return nil
			})
		}),
		throughEnvoy("endpoint-error", FromUs, "An endpoint's own error passes as it is.", func(ctx context.Context, l *lab) error {
			return l.envoy.with(func(w *worker) http.HandlerFunc {
				return func(rw http.ResponseWriter, r *http.Request) {
					rw.Header().Set("Retry-After", "7")
					rw.WriteHeader(http.StatusTooManyRequests)
					w.answer(rw, r, []byte(`{"error":"mine"}`))
				}
			}, func() error {
				r := l.do(ctx, call{front: frontDuplex, method: "POST", path: completionsPath, body: l.completion(100)})
				if err := r.is(429); err != nil {
					return err
				}
				if string(r.body) != `{"error":"mine"}` || r.header.Get("Retry-After") != "7" {
					return r.fail("the endpoint's body and retry-after", "%q, %q", r.body, r.header.Get("Retry-After"))
				}
				return nil
			})
		}),
		throughEnvoy("early-hints", FromStandard, "Informational answers (103) pass before the final one.", envoyEarlyHints),
		throughEnvoy("expect-continue", FromStandard, "A client that waits for 100 (Continue) is served.", func(ctx context.Context, l *lab) error {
			c := call{front: frontDuplex, method: "POST", path: completionsPath, body: l.completion(2000), headers: [][2]string{{"Expect", "100-continue"}}}
			return l.do(ctx, c).followed()
		}),
		throughEnvoy("early-answer", FromUs, "An endpoint may answer before the request's body has ended.", envoyEarlyAnswer),
		throughEnvoy("websocket", FromUs, "An upgrade to WebSocket reaches an endpoint, and bytes pass both ways.", envoyWebSocket),
		throughEnvoy("client-leaves", FromUs, "A client that leaves in an answer ends the request at the endpoint; the next is served.", clientLeaves),
	}
}

func envoyEvents(ctx context.Context, l *lab, front string) error {
	const count = 50
	next := make(chan struct{}, 1)
	return l.envoy.with(func(w *worker) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			if w.read(r) != nil {
				return
			}
			rw.Header().Set("Content-Type", events)
			control := http.NewResponseController(rw)
			for i := range count {
				_, _ = fmt.Fprintf(rw, "data: %d\n\n", i)
				if control.Flush() != nil {
					return
				}
				select {
				case <-next:
				case <-r.Context().Done():
					return
				}
			}
		}
	}, func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*l.timeout)
		defer cancel()
		r := &reply{call: call{front: front, method: "POST", path: completionsPath, body: l.completion(100)}, id: newID()}
		req, err := r.request(ctx, l, r.id)
		if err != nil {
			return err
		}
		resp, err := l.envoy.http2.Do(req)
		if err != nil {
			return r.fail("an answer that begins with its first event", "%v", err)
		}
		defer func() { _ = resp.Body.Close() }() // read to its end
		if r.status = resp.StatusCode; r.status != http.StatusOK {
			return r.is(http.StatusOK)
		}
		for i := range count {
			want := fmt.Sprintf("data: %d\n\n", i)
			got := make([]byte, len(want))
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
				return r.fail(fmt.Sprintf("event %d before the next is sent", i), "%q, %v", got, err)
			}
			next <- struct{}{}
		}
		rest, err := io.ReadAll(resp.Body)
		if err != nil || len(rest) > 0 || resp.ContentLength >= 0 {
			return r.fail("the end after the last event, and no content-length", "%q, %v, length %d", rest, err, resp.ContentLength)
		}
		return nil
	})
}

func envoyEarlyHints(ctx context.Context, l *lab) error {
	return l.envoy.with(func(w *worker) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Link", "</style.css>; rel=preload")
			rw.WriteHeader(http.StatusEarlyHints)
			w.answer(rw, r, []byte("{}"))
		}
	}, func() error {
		var hints []int
		traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
			hints = append(hints, code)
			return nil
		}})
		r := l.do(traced, call{front: frontQuiet, method: "POST", path: completionsPath, body: l.completion(100)})
		if err := r.followed(); err != nil {
			return err
		}
		if len(hints) != 1 || hints[0] != http.StatusEarlyHints {
			return r.fail("one 103 before the 200", "%v", hints)
		}
		return nil
	})
}
