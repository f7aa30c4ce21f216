package protocol

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// call is one HTTP request through the suite's Envoy.
type call struct {
	front, method, path string
	body                []byte
	chunked             bool
	headers             [][2]string
	trailer             http.Header
	h2                  bool
}

// reply is what became of a call.
type reply struct {
	call
	id      string
	status  int
	header  http.Header
	trailer http.Header
	body    []byte
	seen    []seen // by the workers, usually one
	err     error
}

// stripped are the headers that the suite's Envoy removes before it asks anybody.
func stripped() []string {
	return []string{
		destinationKey, servedKey, subsetKey, "x-gateway-destination-endpoint-fallbacks", "x-prefiller-host-port", "x-prefiller-url",
		"x-encoder-hosts-ports", "x-kv-cache-source-host-port", "x-data-parallel-host-port",
	}
}

func (c call) request(ctx context.Context, l *lab, id string) (*http.Request, error) {
	var body io.Reader = http.NoBody
	if c.body != nil {
		body = bytes.NewReader(c.body)
	}
	req, err := http.NewRequestWithContext(ctx, c.method, l.envoy.urls[c.front]+c.path, body)
	if err != nil {
		return nil, err
	}
	if c.chunked || c.trailer != nil {
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(c.body)), -1
	}
	req.Trailer = c.trailer
	if c.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("X-Request-Id", id)
	for _, h := range c.headers {
		req.Header.Add(h[0], h[1])
	}
	return req, nil
}

// do makes a call and reads its whole answer.
func (l *lab) do(ctx context.Context, c call) *reply {
	r := &reply{call: c, id: newID()}
	ctx, cancel := context.WithTimeout(ctx, 2*l.timeout)
	defer cancel()
	req, err := c.request(ctx, l, r.id)
	if err != nil {
		r.err = err
		return r
	}
	client := l.envoy.http1
	if c.h2 {
		client = l.envoy.http2
	}
	resp, err := client.Do(req)
	if err != nil {
		r.err = err
		return r
	}
	defer func() { _ = resp.Body.Close() }() // read to its end
	r.status, r.header = resp.StatusCode, resp.Header
	r.body, r.err = io.ReadAll(resp.Body)
	r.trailer = resp.Trailer
	r.seen = l.envoy.take(r.id)
	return r
}

// fail is a failure with the call and what came of it.
func (r *reply) fail(want, format string, args ...any) error {
	kind := "a length"
	if r.chunked || r.call.trailer != nil {
		kind = "chunked"
	}
	m := []string{fmt.Sprintf("-> %s %s to Envoy's listener %q, %d bytes (%s) %v", r.method, r.path, r.front, len(r.call.body), kind, r.headers)}
	for _, s := range r.seen {
		m = append(m, fmt.Sprintf("   endpoint %s got %s %s, %d bytes, destination %q", s.worker, s.method, s.path, s.size, s.header.Get(destinationKey)))
	}
	m = append(m, fmt.Sprintf("<- status %d, %.200q", r.status, r.body))
	if r.err != nil {
		m = append(m, "   "+r.err.Error())
	}
	return &Failure{Want: want, Got: fmt.Sprintf(format, args...), Messages: m}
}

// is wants a status.
func (r *reply) is(statuses ...int) error {
	if r.err != nil {
		return r.fail("status "+join(statuses), "%v", r.err)
	}
	if !slices.Contains(statuses, r.status) {
		return r.fail("status "+join(statuses), "status %d", r.status)
	}
	return nil
}

// arrived wants status 200 from one endpoint that got the same bytes, once.
func (r *reply) arrived() error {
	if err := r.is(200); err != nil {
		return err
	}
	if len(r.seen) != 1 {
		return r.fail("one endpoint to get the request", "%d", len(r.seen))
	}
	s := r.seen[0]
	if s.method != r.method || s.path != r.path {
		return r.fail(r.method+" "+r.path, "%s %s", s.method, s.path)
	}
	if s.sum != sum(r.call.body) {
		return r.fail("the same bytes at the endpoint", "%d bytes with another sha256", s.size)
	}
	return nil
}

// followed wants in addition that the endpoint is the first of the destination.
func (r *reply) followed() error {
	if err := r.arrived(); err != nil {
		return err
	}
	dst := r.seen[0].header.Get(destinationKey)
	if first, _, _ := strings.Cut(dst, ","); first != r.seen[0].worker {
		return r.fail("the endpoint that was picked to get the request", "%s got it, the destination is %q", r.seen[0].worker, dst)
	}
	return nil
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
