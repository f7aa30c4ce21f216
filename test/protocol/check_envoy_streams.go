package protocol

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// envoyEarlyAnswer has an endpoint answer after the first bytes of a body, and the
// client send the rest after that.
func envoyEarlyAnswer(ctx context.Context, l *lab) error {
	return l.envoy.with(func(*worker) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			control := http.NewResponseController(rw)
			if control.EnableFullDuplex() != nil {
				return
			}
			if _, err := io.ReadFull(r.Body, make([]byte, 5)); err != nil {
				return
			}
			_, _ = io.WriteString(rw, "early ")
			if control.Flush() != nil {
				return
			}
			n, _ := io.Copy(io.Discard, r.Body)
			_, _ = fmt.Fprintf(rw, "%d", n)
		}
	}, func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*l.timeout)
		defer cancel()
		r := &reply{call: call{front: frontDuplex, method: "POST", path: unknownPath}, id: newID()}
		req, err := r.request(ctx, l, r.id)
		if err != nil {
			return err
		}
		body, rest := io.Pipe()
		req.Body, req.ContentLength = body, -1
		go func() { _, _ = rest.Write([]byte("first")) }() // ends with the request
		resp, err := l.envoy.http2.Do(req)
		if err != nil {
			return r.fail("an answer before the body ends", "%v", err)
		}
		defer func() { _ = resp.Body.Close() }() // read to its end
		if r.status = resp.StatusCode; r.status != http.StatusOK {
			return r.is(http.StatusOK)
		}
		got := make([]byte, 6)
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != "early " {
			return r.fail("the answer's first bytes before the body ends", "%q, %v", got, err)
		}
		if _, err := rest.Write(make([]byte, 1000)); err != nil {
			return r.fail("the body to go on after that", "%v", err)
		}
		_ = rest.Close()
		tail, err := io.ReadAll(resp.Body)
		if err != nil || string(tail) != "1000" {
			return r.fail(`"1000": the rest of the body at the endpoint`, "%q, %v", tail, err)
		}
		return nil
	})
}

// envoyWebSocket upgrades a connection and lets an endpoint echo on it.
func envoyWebSocket(ctx context.Context, l *lab) error {
	return l.envoy.with(func(*worker) http.HandlerFunc { return echoUpgraded }, func() error {
		r := &reply{call: call{front: frontDuplex, method: "GET", path: "/v1/realtime"}}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(l.envoy.urls[frontDuplex], "http://"))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if err := conn.SetDeadline(time.Now().Add(2 * l.timeout)); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"); err != nil {
			return err
		}
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil) //nolint:bodyclose // an upgraded connection has none
		if err != nil {
			return r.fail("status 101", "no answer within %v", 2*l.timeout)
		}
		if r.status = resp.StatusCode; r.status != http.StatusSwitchingProtocols {
			return r.fail("status 101", "status %d", r.status)
		}
		for _, text := range []string{"hello", "again"} {
			if _, err := io.WriteString(conn, text); err != nil {
				return r.fail("the connection to be open", "%v", err)
			}
			got := make([]byte, len(text))
			if _, err := io.ReadFull(in, got); err != nil || string(got) != text {
				return r.fail(fmt.Sprintf("%q back", text), "%q, %v", got, err)
			}
		}
		return nil
	})
}

func echoUpgraded(rw http.ResponseWriter, _ *http.Request) {
	conn, in, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"); err != nil {
		return
	}
	_, _ = io.Copy(conn, in) // ends with the connection
}

// begun starts a request whose endpoint sends one event and then goes on by rest,
// and reads that event.
func (l *lab) begun(ctx context.Context, rest func(*http.Request), then func(*reply, *http.Response) error) error {
	return l.envoy.with(func(*worker) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			rw.Header().Set("Content-Type", events)
			_, _ = io.WriteString(rw, "data: 1\n\n")
			_ = http.NewResponseController(rw).Flush()
			rest(r)
		}
	}, func() error {
		r := &reply{call: call{front: frontDuplex, method: "POST", path: completionsPath, body: l.completion(100)}, id: newID()}
		req, err := r.request(ctx, l, r.id)
		if err != nil {
			return err
		}
		resp, err := l.envoy.http1.Do(req)
		if err != nil {
			return r.fail("an answer", "%v", err)
		}
		defer func() { _ = resp.Body.Close() }() // read, or not wanted
		if r.status = resp.StatusCode; r.status != http.StatusOK {
			return r.is(http.StatusOK)
		}
		if _, err = io.ReadFull(resp.Body, make([]byte, 9)); err != nil {
			return r.fail("the answer's first event", "%v", err)
		}
		return then(r, resp)
	})
}

// next wants an ordinary request to be served.
func (l *lab) next(ctx context.Context) error {
	return l.do(ctx, call{front: frontDuplex, method: "POST", path: completionsPath, body: l.completion(100)}).followed()
}

// clientLeaves cancels a request in the middle of its answer.
func clientLeaves(ctx context.Context, l *lab) error {
	left := make(chan struct{}, 1)
	cancelled, cancel := context.WithTimeout(ctx, 2*l.timeout)
	defer cancel()
	err := l.begun(cancelled, func(r *http.Request) {
		<-r.Context().Done()
		left <- struct{}{}
	}, func(r *reply, _ *http.Response) error {
		cancel()
		select {
		case <-left:
			return nil
		case <-time.After(l.timeout):
			return r.fail("the endpoint to see the end of its request", "nothing within %v", l.timeout)
		}
	})
	if err != nil {
		return err
	}
	return l.next(ctx)
}

// endpointDies breaks an endpoint's connection in the middle of its answer.
func endpointDies(ctx context.Context, l *lab) error {
	die := make(chan struct{})
	limited, cancel := context.WithTimeout(ctx, 2*l.timeout)
	defer cancel()
	err := l.begun(limited, func(r *http.Request) {
		select {
		case <-die:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}, func(r *reply, resp *http.Response) error {
		close(die)
		if rest, err := io.ReadAll(resp.Body); err == nil {
			return r.fail("a broken body", "%q and its end", rest)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return l.next(ctx)
}
