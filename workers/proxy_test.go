package workers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

func readCase(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(casesDir + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// lines decodes a JSON Lines file.
func lines[T any](t *testing.T, name string) []T {
	t.Helper()
	var out []T
	for line := range bytes.Lines(readCase(t, name)) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out = append(out, v)
	}
	return out
}

// TestUsageCutAnywhere is case C10: the counts are right and the bytes are the
// engine's, however the answer is cut.
func TestUsageCutAnywhere(t *testing.T) {
	e, a, w := attach(t, nil)
	type want struct {
		File       string
		Prompt     *int32 `json:"prompt_tokens"`
		Completion *int32 `json:"completion_tokens"`
		Cached     *int32 `json:"cached_tokens"`
	}
	for _, c := range lines[want](t, "C10-want.jsonl") {
		data := readCase(t, c.File)
		stream := strings.HasSuffix(c.File, ".sse")
		cuts := []int{0, 1, len(data) - 1}
		for i := 7; i < len(data); i += 61 { // every position is the business of internal/openai's test
			cuts = append(cuts, i)
		}
		for _, cut := range append(cuts, -1) {
			booking := fmt.Sprintf("%s@%d", c.File, cut)
			e.answers(func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Content-Type", "application/json")
				if stream {
					rw.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
				}
				writeCut(rw, data, cut)
			})
			body := fmt.Sprintf(`{"model":"base","messages":[{"role":"user","content":"q"}],"stream":%v}`, stream)
			code, _, got := post(t, a.url+"/v1/chat/completions", body, HeaderBooking, booking)
			if code != http.StatusOK || got != string(data) {
				t.Fatalf("%s: status %d, %d bytes, want 200 and the engine's %d bytes", booking, code, len(got), len(data))
			}
			checkSample(t, w, booking, c.Prompt, c.Completion, c.Cached)
		}
	}
	a.idle()
}

// writeCut writes data in two flushed pieces, or byte by byte with cut -1.
func writeCut(w http.ResponseWriter, data []byte, cut int) {
	flush := http.NewResponseController(w).Flush
	if cut >= 0 {
		w.Write(data[:cut])
		flush()
		w.Write(data[cut:])
		return
	}
	for i := range data {
		w.Write(data[i : i+1])
		flush()
	}
}

func checkSample(t *testing.T, w *watch, booking string, prompt, output, cached *int32) {
	t.Helper()
	var got kvindex.Sample
	w.await("the sample of "+booking, func(rs []kvindex.Record) bool {
		for _, r := range slices.Backward(rs) {
			if r.Kind != kvindex.KindLoad {
				continue
			}
			for _, s := range r.Load.Done {
				if s.Booking == booking {
					got = s
					return true
				}
			}
		}
		return false
	})
	want := kvindex.Sample{Booking: booking, CachedTokens: -1}
	if prompt != nil {
		want.PromptTokens, want.OutputTokens, want.CachedTokens = *prompt, *output, *cached
	}
	got.FirstTokenMs, got.TotalMs = 0, 0
	if got != want {
		t.Errorf("%s: sample %+v, want %+v", booking, got, want)
	}
}

// TestBodiesPassUntouched: of a body only return_token_ids is added, and nothing
// where the client asked for the ids or the body cannot be read.
func TestBodiesPassUntouched(t *testing.T) {
	e, a, _ := attach(t, nil)
	e.answersJSON(http.StatusOK, `{"id":"x","choices":[]}`)
	for _, c := range []struct{ name, body, want string }{
		{"added", `{"model":"base","messages":[{"role":"user","content":"q"}], "seed":12345678901234567890 }`,
			`{"model":"base","messages":[{"role":"user","content":"q"}], "seed":12345678901234567890, "return_token_ids": true }`},
		{"asked for", `{"messages":[{"content":"q"}],"return_token_ids":true}`, `{"messages":[{"content":"q"}],"return_token_ids":true}`},
		{"asked not to", `{"messages":[{"content":"q"}],"return_token_ids":false}`, `{"messages":[{"content":"q"}],"return_token_ids":true}`},
		{"not JSON", `{"messages":[`, `{"messages":[`},
		{"empty", ``, ``},
	} {
		t.Run(c.name, func(t *testing.T) {
			if code, _, got := post(t, a.url+"/v1/chat/completions?x=1", c.body); code != http.StatusOK {
				t.Fatalf("status %d: %s", code, got)
			}
			seen := e.last()
			if seen.body != c.want || seen.path != "/v1/chat/completions?x=1" {
				t.Errorf("engine got %s %q\nwant %q", seen.path, seen.body, c.want)
			}
		})
	}
	gz := readCase(t, "C05-body.json.gz")
	if code, _, _ := post(t, a.url+"/v1/chat/completions", string(gz), "Content-Encoding", "GZIP"); code != http.StatusOK {
		t.Fatalf("compressed: status %d", code)
	}
	if e.last().body != string(gz) || e.last().header.Get("Content-Encoding") != "GZIP" {
		t.Error("a compressed body was touched")
	}
}

// TestTokenIDsAreStripped: the client sees the answer without what the agent
// asked for, with the right length, unless it asked itself.
func TestTokenIDsAreStripped(t *testing.T) {
	e, a, _ := attach(t, nil)
	const answer = `{"id":"x","prompt_token_ids":[1,2],"choices":[{"index":0,"message":{"content":"a"},"token_ids":[3],"finish_reason":"stop"}]}`
	e.answersJSON(http.StatusOK, answer)
	const ask = `{"model":"base","messages":[{"role":"user","content":"q"}]`
	_, h, got := post(t, a.url+"/v1/chat/completions", ask+"}")
	if want := `{"id":"x","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if h.Get("Content-Length") != fmt.Sprint(len(got)) {
		t.Errorf("content-length %s for %d bytes", h.Get("Content-Length"), len(got))
	}
	if _, _, got := post(t, a.url+"/v1/chat/completions", ask+`,"return_token_ids":true}`); got != answer {
		t.Errorf("the client asked for the ids and got %s", got)
	}
}

// TestEngineErrors: what the client gets when the engine fails, and that the next
// request works.
func TestEngineErrors(t *testing.T) {
	e, a, _ := attach(t, nil)
	const chat = `{"model":"base","messages":[{"role":"user","content":"q"}]}`
	const stream = `{"model":"base","messages":[{"role":"user","content":"q"}],"stream":true}`
	hijack := func(head string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			c, buf, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			buf.WriteString(head)
			buf.Flush()
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	}
	for _, c := range []struct {
		name, body, path string
		answer           http.HandlerFunc
		code             int
		want             string
	}{
		{"garbage", chat, "/v1/chat/completions", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }, 502, `"code":"bad_gateway"`},
		{"garbage for a stream", stream, "/v1/chat/completions", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }, 502, `"code":"bad_gateway"`},
		{"an answer for a stream", stream, "/v1/chat/completions", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"choices":[]}`)
		}, 200, `{"choices":[]}`},
		{"closed", chat, "/v1/chat/completions", hijack(""), 502, `"code":"bad_gateway"`},
		{"cut", chat, "/v1/chat/completions", hijack("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"), 502, `"code":"bad_gateway"`},
		{"closed, another path", `{}`, "/v1/embeddings", hijack(""), 502, `"code":"bad_gateway"`},
		{"own error", chat, "/v1/chat/completions", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(429)
			io.WriteString(w, `{"error":{"message":"mine"}}`)
		}, 429, `{"error":{"message":"mine"}}`},
		{"own 500, not JSON", chat, "/v1/chat/completions", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			io.WriteString(w, `boom`)
		}, 500, `boom`},
		{"stream cut", stream, "/v1/chat/completions",
			hijack("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n10\r\ndata: {\"id\":1}\n\n\r\n"), 200, "data: {\"id\":1}\n\ndata: {\"error\":{"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e.answers(c.answer)
			code, _, got := post(t, a.url+c.path, c.body)
			if code != c.code || !strings.Contains(got, c.want) {
				t.Errorf("status %d %q, want %d with %q", code, got, c.code, c.want)
			}
			e.answersJSON(200, `{"choices":[]}`)
			if code, header, got := post(t, a.url+"/v1/chat/completions", chat); code != 200 || header.Get(HeaderUnserved) != "" {
				t.Errorf("next request: %d %s", code, got)
			}
		})
	}
	if code, _, got := post(t, a.url+"/v1/chat/completions", strings.Repeat("x", 33<<20)); code != 413 || !strings.Contains(got, "request_too_large") {
		t.Errorf("large body: %d %.100s", code, got)
	}
	a.idle()
}

// TestDeadEngine: one clear error while the engine is away, service when it is
// back.
func TestDeadEngine(t *testing.T) {
	e, a, w := attach(t, nil)
	addr := e.Listener.Addr().String()
	const chat = `{"model":"base","messages":[{"role":"user","content":"q"}]}`
	e.Close()
	w.awaitReady(a.cfg.WorkerID, false)
	for _, path := range []string{"/v1/chat/completions", "/v1/embeddings"} {
		code, header, got := post(t, a.url+path, chat)
		if code != http.StatusBadGateway || header.Get(HeaderUnserved) == "" || !strings.Contains(got, "cannot be reached") {
			t.Fatalf("%s: %d %v %s", path, code, header, got)
		}
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	e.answersJSON(200, `{"choices":[]}`)
	srv := &http.Server{Handler: http.HandlerFunc(e.serve)}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	w.awaitReady(a.cfg.WorkerID, true)
	if code, header, got := post(t, a.url+"/v1/chat/completions", chat); code != 200 || header.Get(HeaderUnserved) != "" {
		t.Fatalf("after its return: %d %s", code, got)
	}
	w.await("a new epoch", func(rs []kvindex.Record) bool {
		return rs[0].Epoch < rs[len(rs)-1].Epoch
	})
}

// TestSteeringHeaders is the agent's half of case C25.
func TestSteeringHeaders(t *testing.T) {
	forged, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer forged.Close()
	go func() {
		for {
			c, err := forged.Accept()
			if err != nil {
				return
			}
			t.Error("a forged address was called")
			c.Close()
		}
	}()
	e, a, _ := attach(t, func(c *Config) { c.PrefillAllow = []string{"192.0.2.20:8000"} })
	e.answersJSON(http.StatusOK, `{"choices":[]}`)
	type row struct {
		Name    string
		Headers [][2]string
	}
	rows := lines[row](t, "C25-headers.jsonl")
	own := row{Name: "own headers"}
	for _, h := range []string{HeaderBooking, HeaderUncached, HeaderRank, HeaderLeg, "x-kvlane-known-tokens", "x-kvlane-upstreams", "x-kvlane-deadline-ms", "X-KVLANE-other"} {
		own.Headers = append(own.Headers, [2]string{h, "192.0.2.99:80"})
	}
	for _, r := range append(rows[:len(rows)-1], own) {
		for _, path := range []string{"/v1/chat/completions", "/v1/embeddings"} {
			t.Run(r.Name+path, func(t *testing.T) {
				before := len(e.requests())
				var hs []string
				for _, h := range r.Headers {
					hs = append(hs, h[0], strings.ReplaceAll(h[1], "192.0.2.99:80", forged.Addr().String()))
				}
				code, _, body := post(t, a.url+path, `{"messages":[{"content":"q"}]}`, hs...)
				if strings.HasPrefix(r.Name, "prefill") {
					if code != http.StatusForbidden || len(e.requests()) != before {
						t.Errorf("status %d %s, want 403 and nothing at the engine", code, body)
					}
					return
				}
				if code != http.StatusOK {
					t.Fatalf("status %d %s", code, body)
				}
				for name := range e.last().header {
					if steers(name) {
						t.Errorf("the engine got %s", name)
					}
				}
			})
		}
	}
}

// TestStreamArrivesAtOnce: every event reaches the client when the engine sent it,
// and the request is no longer queued after its first token.
func TestStreamArrivesAtOnce(t *testing.T) {
	e, a, w := attach(t, nil)
	next := make(chan struct{})
	e.answers(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(rw, "data: {\"prompt_token_ids\":[1,2,3],\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d\"},\"token_ids\":[%d]}]}\n\n", i, i)
			http.NewResponseController(rw).Flush()
			<-next
		}
	})
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, a.url+"/v1/chat/completions",
		strings.NewReader(`{"messages":[{"role":"user","content":"q"}],"stream":true}`))
	req.Header.Set(HeaderBooking, "b1")
	req.Header.Set(HeaderUncached, "77")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	events := bufio.NewReader(resp.Body)
	for i := range 3 {
		line, err := events.ReadString('\n')
		if want := fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d\"}}]}\n", i); err != nil || line != want {
			t.Fatalf("event %d: %q, %v, want %q", i, line, err, want)
		}
		if blank, _ := events.ReadString('\n'); blank != "\n" {
			t.Fatalf("want an empty line, got %q", blank)
		}
		if i == 0 {
			w.await("the first token's report", func(rs []kvindex.Record) bool {
				return has(rs, func(r *kvindex.Record) bool {
					return r.Kind == kvindex.KindLoad && len(r.Load.FirstToken) == 1 && r.Load.FirstToken[0].Booking == "b1" &&
						r.Load.Running == 1 && r.Load.Waiting == 0 && r.Load.QueuedTokens == 0 && r.Load.ContextTokens >= 3
				})
			})
		}
		next <- struct{}{}
	}
	w.await("the booking's report", func(rs []kvindex.Record) bool {
		return has(rs, func(r *kvindex.Record) bool {
			return r.Kind == kvindex.KindLoad && len(r.Load.Accepted) == 1 && r.Load.Accepted[0] == "b1"
		})
	})
	a.idle()
}

// TestRanksAreTheEngines: with several ranks behind one endpoint the engine
// chooses among them, whatever the picker wrote.
func TestRanksAreTheEngines(t *testing.T) {
	p, q := newPublisherSocket(t, true), newPublisherSocket(t, true)
	e, a, _ := attach(t, func(c *Config) {
		c.KVEvents, c.KVReplay = []string{p.events, q.events}, []string{p.replay, q.replay}
	})
	e.answersJSON(http.StatusOK, `{"choices":[]}`)
	if code, _, body := post(t, a.url+"/v1/completions", `{"prompt":"q"}`, HeaderRank, "0"); code != http.StatusOK {
		t.Fatalf("status %d: %s", code, body)
	}
	if rank, ok := e.last().header["X-Data-Parallel-Rank"]; ok {
		t.Errorf("the engine was told rank %v", rank)
	}
}

// TestContextOfTokenPrompts: a prompt of ids counts as context once it is
// prefilled, though no ids come back.
func TestContextOfTokenPrompts(t *testing.T) {
	e, a, w := attach(t, nil)
	next := make(chan struct{})
	e.answers(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(rw, "data: {\"choices\":[{\"index\":0,\"text\":\"x\"}]}\n\n")
		http.NewResponseController(rw).Flush()
		<-next
	})
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, a.url+"/v1/completions",
		strings.NewReader(`{"prompt":[[1,2,3],[4,5]],"stream":true}`))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	w.await("the context", func(rs []kvindex.Record) bool {
		return has(rs, func(r *kvindex.Record) bool { return r.Kind == kvindex.KindLoad && r.Load.ContextTokens == 5 })
	})
	close(next)
	io.Copy(io.Discard, resp.Body)
	a.idle()
}

// TestClientsThatGoAway: an abort reaches the engine and leaves no count behind.
func TestClientsThatGoAway(t *testing.T) {
	e, a, _ := attach(t, nil)
	began := make(chan struct{}, 100)
	gone := make(chan struct{}, 100)
	e.answers(func(rw http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.RawQuery, "started") {
			rw.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(rw, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"token_ids\":[1]}],\"prompt_token_ids\":[1]}\n\n")
			http.NewResponseController(rw).Flush()
		}
		began <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	})
	for _, path := range []string{"/v1/chat/completions", "/v1/chat/completions?started", "/v1/embeddings"} {
		for i := range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, a.url+path,
				strings.NewReader(`{"messages":[{"role":"user","content":"q"}],"stream":true}`))
			req.Header.Set(HeaderBooking, fmt.Sprint(path, i))
			done := make(chan struct{})
			go func() {
				defer close(done)
				if resp, err := http.DefaultClient.Do(req); err == nil {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			<-began
			cancel()
			select {
			case <-gone:
			case <-time.After(patience):
				t.Fatalf("%s: the engine saw no cancel", path)
			}
			<-done
		}
	}
	a.idle()
	e.answersJSON(200, `{"choices":[]}`)
	if code, _, _ := post(t, a.url+"/v1/chat/completions", `{"messages":[{"content":"q"}]}`); code != 200 {
		t.Errorf("next request: %d", code)
	}
}
