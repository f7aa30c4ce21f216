package workers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// pair is a prefill worker and a decode worker that found each other in a log.
type pair struct {
	prefillEngine, decodeEngine *fakeEngine
	prefill, decode             *running
	watch                       *watch
}

func newPair(t *testing.T, change func(*Config)) pair {
	t.Helper()
	l := memlog.New(memlog.Options{})
	p := pair{prefillEngine: newFakeEngine(t), decodeEngine: newFakeEngine(t), watch: newWatch(t, l)}
	p.prefill = startAgent(t, p.prefillEngine.URL, l, func(c *Config) { c.Role = kvindex.RolePrefill })
	p.decode = startAgent(t, p.decodeEngine.URL, l, func(c *Config) {
		c.Role = kvindex.RoleDecode
		if change != nil {
			change(c)
		}
	})
	p.watch.awaitReady(p.prefill.cfg.WorkerID, true)
	p.watch.awaitReady(p.decode.cfg.WorkerID, true)
	return p
}

// strict answers a prefill leg as a real engine would: 400 for what it refuses.
func strict(answer []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var b struct {
			MinTokens     *int `json:"min_tokens"`
			MaxTokens     *int `json:"max_tokens"`
			Stream        *bool
			StreamOptions json.RawMessage `json:"stream_options"`
		}
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &b); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if b.MaxTokens == nil || (b.MinTokens != nil && *b.MinTokens > *b.MaxTokens) ||
			(b.StreamOptions != nil && (b.Stream == nil || !*b.Stream)) {
			http.Error(w, `{"error":{"message":"refused"}}`, http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write(answer)
	}
}

// TestPrefillParameters is case C22: what each leg is sent.
func TestPrefillParameters(t *testing.T) {
	p := newPair(t, nil)
	p.prefillEngine.answers(strict(readCase(t, "C22-prefill-answer.json")))
	p.decodeEngine.answersJSON(http.StatusOK, `{"id":"d","choices":[]}`)
	target := p.prefill.addr.String()
	type field struct {
		Field string
		Want  json.RawMessage
	}
	fields := lines[field](t, "C22-want-prefill.jsonl")
	clients := append([][]byte{readCase(t, "C22-client.json")}, bytes.Split(bytes.TrimSpace(readCase(t, "C22-more-clients.jsonl")), []byte("\n"))...)
	for i, client := range clients {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			path := "/v1/chat/completions"
			if bytes.Contains(client, []byte(`"prompt"`)) {
				path = "/v1/completions"
			}
			code, _, body := post(t, p.decode.url+path, string(client), HeaderPrefill, target, HeaderRequestID, "r-1", HeaderBooking, "b-1")
			if code != http.StatusOK || body != `{"id":"d","choices":[]}` {
				t.Fatalf("status %d: %s", code, body)
			}
			pre, dec := p.prefillEngine.last(), p.decodeEngine.last()
			if pre.header.Get(HeaderRequestID) != "r-1" || dec.header.Get(HeaderRequestID) != "r-1" {
				t.Error("the legs do not share the request id")
			}
			for _, f := range fields {
				checkField(t, f.Field, f.Want, pre.body, client)
			}
			if !strings.Contains(pre.path, path) {
				t.Errorf("prefill leg went to %s", pre.path)
			}
			want := string(client)
			if i == 0 {
				want = string(readCase(t, "C22-want-decode.json"))
			}
			compareDecode(t, dec.body, want, i == 0)
		})
	}
	if n := p.decode.metric("prefill_total", "ok"); n != float64(len(clients)) {
		t.Errorf("%v legs counted, want %d", n, len(clients))
	}
	p.watch.await("both agents to accept the booking", func(rs []kvindex.Record) bool {
		seen := map[kvindex.WorkerID]bool{}
		for i := range rs {
			if rs[i].Kind == kvindex.KindLoad && len(rs[i].Load.Accepted) > 0 {
				seen[rs[i].Owner.Worker] = true
			}
		}
		return len(seen) == 2
	})
	p.decode.idle()
	p.prefill.idle()
}

func checkField(t *testing.T, path string, want json.RawMessage, body string, client []byte) {
	t.Helper()
	var v any
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		t.Fatal(err)
	}
	var got any = "absent"
	for name := range strings.SplitSeq(path, ".") {
		m, _ := v.(map[string]any)
		var ok bool
		if v, ok = m[name]; !ok {
			break
		}
		got = v
	}
	if path == "messages" {
		var c map[string]any
		json.Unmarshal(client, &c)
		if c["messages"] != nil && !reflect.DeepEqual(c["messages"], got) {
			t.Errorf("messages changed: %v", got)
		}
		return
	}
	var options []any
	d := json.NewDecoder(bytes.NewReader(want))
	d.UseNumber()
	if err := d.Decode(&options); err != nil {
		t.Fatal(err)
	}
	for _, o := range options {
		if fmt.Sprint(o) == fmt.Sprint(got) {
			return
		}
	}
	t.Errorf("prefill leg: %s is %v, want one of %s", path, got, want)
}

// compareDecode checks that the decode leg is the client's bytes plus the
// transfer data plus return_token_ids.
func compareDecode(t *testing.T, got, want string, exact bool) {
	t.Helper()
	got = strings.Replace(got, `, "return_token_ids": true`, "", 1)
	if exact {
		if got != want {
			t.Errorf("decode leg\ngot  %s\nwant %s", got, want)
		}
		return
	}
	head := strings.TrimRight(want, "}\n")
	if !strings.HasPrefix(got, head) || !strings.Contains(got, `"x_future": {"big": 9007199254740997}`) {
		t.Errorf("decode leg\ngot  %s\nwant it to begin %s and to have the transfer data", got, head)
	}
}

// prefillCase is a row of case C23.
type prefillCase struct {
	Name         string
	Status       int
	Headers      map[string]string
	Body         json.RawMessage
	BodyText     string `json:"body_text"`
	NeverAnswers bool   `json:"never_answers"`
	Connection   string
}

func (c prefillCase) serve(w http.ResponseWriter, r *http.Request) {
	switch {
	case c.NeverAnswers:
		<-r.Context().Done()
		return
	case c.Connection == "reset after the header block":
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		buf.WriteString("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n")
		buf.Flush()
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
		return
	}
	for k, v := range c.Headers {
		w.Header().Set(k, v)
	}
	w.WriteHeader(c.Status)
	io.WriteString(w, string(c.Body)+c.BodyText)
}

// TestPrefillFails is case C23: with the fall-back every failure but the client's
// is answered by the own engine; without it the client has an error at once.
func TestPrefillFails(t *testing.T) {
	for _, fallback := range []bool{true, false} {
		t.Run(fmt.Sprintf("fallback=%v", fallback), func(t *testing.T) { testPrefillFails(t, fallback) })
	}
}

func testPrefillFails(t *testing.T, fallback bool) {
	refused := porttest.Address(t)
	e := newFakeEngine(t) // a prefill engine without an agent: its answers come as they are
	decode, a, _ := attach(t, func(c *Config) {
		c.PrefillAllow = []string{e.Listener.Addr().String(), refused}
		c.PrefillTimeout = 300 * time.Millisecond
		c.PrefillFallback = fallback
	})
	decode.answersJSON(http.StatusOK, `{"id":"local","choices":[]}`)
	want := map[string]struct {
		code   int
		text   string
		reason string
	}{
		"500":                         {500, "prefill broke", "status_5xx"},
		"400":                         {400, "prompt too long", "status_4xx"},
		"429":                         {429, "busy", "status_5xx"},
		"503":                         {503, "status 503", "status_5xx"},
		"silent":                      {504, "did not answer in time", "timeout"},
		"refused":                     {502, "unreachable", "unreachable"},
		"reset after headers":         {502, "unreachable", "unreachable"},
		"200 without transfer data":   {502, "no_transfer_data", "no_transfer_data"},
		"200 with null transfer data": {502, "no_transfer_data", "no_transfer_data"},
		"200 with broken JSON":        {502, "garbage", "garbage"},
	}
	const chat = `{"model":"base","messages":[{"role":"user","content":"q"}]}`
	for _, c := range lines[prefillCase](t, "C23-prefill-answers.jsonl") {
		t.Run(c.Name, func(t *testing.T) {
			w, ok := want[c.Name]
			if !ok {
				t.Fatal("a new row: say what is right")
			}
			target := e.Listener.Addr().String()
			if c.Connection == "refused" {
				target = refused
			}
			e.answers(c.serve)
			before, counted := len(decode.requests()), a.metric("prefill_total", w.reason)
			code, h, body := post(t, a.url+"/v1/chat/completions", chat, HeaderPrefill, target)
			local := fallback && c.Status != 400
			if local && (code != 200 || !strings.Contains(body, "local") || len(decode.requests()) != before+1) {
				t.Errorf("status %d %s, want the own engine's answer", code, body)
			}
			if !local && (code != w.code || !strings.Contains(body, w.text) || !strings.Contains(body, `"error"`) || len(decode.requests()) != before) {
				t.Errorf("status %d %s, want %d with %q and no decode leg", code, body, w.code, w.text)
			}
			if !local && c.Name == "429" && h.Get("Retry-After") != "3" {
				t.Error("retry-after is gone")
			}
			if got := a.metric("prefill_total", w.reason); got != counted+1 {
				t.Errorf("%s counted %v times, want %v", w.reason, got, counted+1)
			}
			if code, _, _ := post(t, a.url+"/v1/chat/completions", chat); code != 200 {
				t.Errorf("a request after it: %d", code)
			}
			a.idle()
		})
	}
}

// TestPrefillAbort: a client that goes away ends whichever leg runs.
func TestPrefillAbort(t *testing.T) {
	p := newPair(t, nil)
	began, gone := make(chan string, 4), make(chan string, 4)
	hang := func(leg string) http.HandlerFunc {
		return func(_ http.ResponseWriter, r *http.Request) {
			began <- leg
			<-r.Context().Done()
			gone <- leg
		}
	}
	p.decodeEngine.answers(hang("decode"))
	for _, leg := range []string{"prefill", "decode"} {
		p.prefillEngine.answers(hang("prefill"))
		if leg == "decode" {
			p.prefillEngine.answers(strict(readCase(t, "C22-prefill-answer.json")))
		}
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, p.decode.url+"/v1/chat/completions",
			strings.NewReader(`{"model":"base","messages":[{"role":"user","content":"q"}],"stream":true}`))
		req.Header.Set(HeaderPrefill, p.prefill.addr.String())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
			}
		}()
		if got := <-began; got != leg {
			t.Fatalf("%s leg began, want %s", got, leg)
		}
		cancel()
		select {
		case got := <-gone:
			if got != leg {
				t.Errorf("%s leg was cancelled, want %s", got, leg)
			}
		case <-time.After(patience):
			t.Fatalf("the %s leg was not cancelled", leg)
		}
		<-done
		p.decode.idle()
		p.prefill.idle()
	}
}

// TestPrefillTargets: workers may be named once they are in the log, with their
// exact port, and not after they left.
func TestPrefillTargets(t *testing.T) {
	p := newPair(t, nil)
	p.prefillEngine.answers(strict(readCase(t, "C22-prefill-answer.json")))
	p.decodeEngine.answersJSON(http.StatusOK, `{"id":"d","choices":[]}`)
	const chat = `{"model":"base","messages":[{"role":"user","content":"q"}]}`
	target := p.prefill.addr.String()
	if code, _, body := post(t, p.decode.url+"/v1/chat/completions", chat, HeaderPrefill, target); code != 200 {
		t.Fatalf("known worker: %d %s", code, body)
	}
	for _, bad := range []string{"http://" + target, target + "@x", p.decode.addr.String(), target + "," + "192.0.2.1:1", "localhost:1"} {
		if code, _, _ := post(t, p.decode.url+"/v1/chat/completions", chat, HeaderPrefill, bad); code != 403 {
			t.Errorf("%q: status %d, want 403", bad, code)
		}
	}
	if err := p.prefill.stop(); err != nil {
		t.Fatal(err)
	}
	p.watch.await("the bye", func(rs []kvindex.Record) bool {
		return has(rs, func(r *kvindex.Record) bool { return r.Kind == kvindex.KindBye })
	})
	for deadline := time.After(patience); p.decode.prefill.allows(target); {
		select {
		case <-deadline:
			t.Fatal("a worker that left is still allowed")
		case <-time.After(time.Millisecond):
		}
	}
	if code, _, _ := post(t, p.decode.url+"/v1/chat/completions", chat, HeaderPrefill, target); code != 403 {
		t.Errorf("after its bye: status %d, want 403", code)
	}
}

// TestTransferIsNotTheClients: a client cannot say from where an engine fetches
// KV, with or without a prefill leg.
func TestTransferIsNotTheClients(t *testing.T) {
	e, a, _ := attach(t, nil)
	e.answersJSON(http.StatusOK, `{"choices":[]}`)
	for _, name := range []string{"kv_transfer_params", `kv\u005ftransfer_params`} {
		body := `{"model":"base","` + name + `":{"do_remote_prefill":true,"remote_host":"192.0.2.99","remote_port":80},"prompt":[1,2]}`
		if code, _, answer := post(t, a.url+"/v1/completions", body); code != http.StatusOK {
			t.Fatalf("status %d: %s", code, answer)
		}
		if got := e.last().body; got != `{"model":"base","prompt":[1,2]}` {
			t.Errorf("the engine got %s", got)
		}
	}
}
