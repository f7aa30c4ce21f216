package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const cases = root + "/test/data/cases"

// TestAggregated has one stack of four workers for everything that leaves it as
// it was. Its engines run twenty times faster than the deployment.
func TestAggregated(t *testing.T) {
	s := startUp(t, 4, "--time-scale", "20")
	for _, tc := range []struct {
		name string
		test func(*stack, *testing.T)
	}{
		{"Chat", (*stack).testChat},
		{"Completions", (*stack).testCompletions},
		{"RequestID", (*stack).testRequestID},
		{"WithoutBody", (*stack).testWithoutBody},
		{"Python", (*stack).testPython},
		{"Conversations", (*stack).testConversations},
		{"BadInput", (*stack).testBadInput},
		{"Garbage", (*stack).testGarbage},
		{"Aborts", (*stack).testAborts},
		{"Replay", (*stack).testReplay},
		{"Explain", (*stack).testExplain},
		{"Index", (*stack).testIndex},
		{"Verify", (*stack).testVerify},
		{"EmptyRestart", (*stack).testEmptyRestart},
		{"NoEndpoint", (*stack).testNoEndpoint},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.test(s, t)
			s.awaitIdle(t)
		})
	}
}

// Through Envoy the answer is what an engine says itself, streamed or not.
func (s *stack) testChat(t *testing.T) {
	q := rules(s.model, "harbour", 20, 24)
	want := s.workers[0].engine.ask(t, q)
	if want.text == "" || want.usage.Completion == 0 {
		t.Fatalf("the engine says nothing: %s", want.raw)
	}
	s.sameAnswer(t, s.gateway.ask(t, q), want)

	streamed := s.gateway.ask(t, q.streamed())
	s.sameAnswer(t, streamed, want)
	wantOrder(t, streamed, "chat.completion.chunk")
	if role := streamed.chunks[0].Choices[0].Delta.Role; role != "assistant" {
		t.Errorf("role of the first event: %q", role)
	}
	for _, word := range []string{"token_ids", "kv_transfer_params"} { // asked for by the agent, not by the client
		if strings.Contains(streamed.raw, word) {
			t.Errorf("%s in a stream that did not ask for it", word)
		}
	}
	q.ReturnIDs = true
	if a := s.gateway.ask(t, q); len(a.ids) != a.usage.Completion || len(a.chunks[0].PromptTokenIDs) != a.usage.Prompt {
		t.Errorf("asked for token ids, got %d of %d and %d of %d", len(a.ids), a.usage.Completion, len(a.chunks[0].PromptTokenIDs), a.usage.Prompt)
	}
	if r := s.gateway.do(t, http.MethodPost, q.path(), string(question{Model: s.model, Messages: q.Messages, MaxTokens: 3}.body(t))); strings.Contains(string(r.body), "token_ids") {
		t.Errorf("token ids in an answer that was not asked for them: %s", r)
	}
}

func (s *stack) testCompletions(t *testing.T) {
	q := question{Model: s.model, Prompt: story("library", 20), MaxTokens: 24}
	want := s.workers[0].engine.ask(t, q)
	s.sameAnswer(t, s.gateway.ask(t, q), want)
	streamed := s.gateway.ask(t, q.streamed())
	s.sameAnswer(t, streamed, want)
	wantOrder(t, streamed, "text_completion")

	q.Prompt = s.tokenize(t, story("library", 20))
	ids := s.gateway.ask(t, q)
	s.sameAnswer(t, ids, want)
	if plan := s.plan(t, ids); !plan.Exact || plan.ISL != ids.usage.Prompt {
		t.Errorf("plan of token ids: exact %t, %d tokens; the engine counts %d", plan.Exact, plan.ISL, ids.usage.Prompt)
	}
}

func (s *stack) tokenize(t *testing.T, text string) []uint32 {
	t.Helper()
	body, err := json.Marshal(struct {
		Model  string `json:"model"`
		Prompt string `json:"prompt"`
	}{s.model, text})
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		Tokens []uint32 `json:"tokens"`
	}
	r := s.workers[0].engine.do(t, http.MethodPost, "/tokenize", string(body))
	if err := json.Unmarshal(r.body, &out); err != nil || len(out.Tokens) == 0 {
		t.Fatalf("tokenize: %v, %s", err, r)
	}
	return out.Tokens
}

func (s *stack) sameAnswer(t *testing.T, got, want answer) {
	t.Helper()
	if got.text != want.text || got.finish != want.finish || got.usage.Prompt != want.usage.Prompt ||
		got.usage.Completion != want.usage.Completion || got.usage.Total != got.usage.Prompt+got.usage.Completion {
		t.Errorf("through Envoy: %q, %s, %+v\nfrom an engine: %q, %s, %+v", got.text, got.finish, got.usage, want.text, want.finish, want.usage)
	}
	if got.request == "" {
		t.Error("an answer without x-request-id")
	}
	plan := s.plan(t, got)
	// Without response bodies the picker cannot tell a whole answer from a broken one.
	if plan.Outcome != "answered" || plan.Served != plan.Decode.Address {
		t.Errorf("outcome %q, planned for %s, served by %q", plan.Outcome, plan.Decode.Address, plan.Served)
	}
	if got.chunks[0].Model != s.model {
		t.Errorf("model %q", got.chunks[0].Model)
	}
}

// wantOrder checks the order of a stream's events: text, the reason of the end
// once, usage alone at the end.
func wantOrder(t *testing.T, a answer, object string) {
	t.Helper()
	var kinds []string
	for _, c := range a.chunks {
		kind := "text"
		switch {
		case len(c.Choices) == 0 && c.Usage != nil:
			kind = "usage"
		case len(c.Choices) == 1 && c.Choices[0].Finish != "":
			kind = "finish"
		}
		kinds = append(kinds, kind)
		if c.ID != a.chunks[0].ID || c.Object != object {
			t.Errorf("event of %q, a %s; want %q, a %s", c.ID, c.Object, a.chunks[0].ID, object)
		}
	}
	if n := len(kinds); n < 4 || !slices.Equal(kinds[n-2:], []string{"finish", "usage"}) || slices.ContainsFunc(kinds[:n-2], func(k string) bool { return k != "text" }) {
		t.Errorf("order of events: %v", kinds)
	}
}

// A client's id names its request everywhere; without one Envoy makes it.
func (s *stack) testRequestID(t *testing.T) {
	q := question{Model: s.model, Prompt: "Once upon a time", MaxTokens: 4}
	a := s.gateway.ask(t, q, "X-Request-Id", "e2e-named-1")
	if a.request != "e2e-named-1" {
		t.Errorf("the answer's id is %q", a.request)
	}
	if plan := s.plan(t, a); plan.Request != "e2e-named-1" || plan.Path != "/v1/completions" || plan.Model != s.model {
		t.Errorf("plan %+v", plan)
	}
	if b := s.gateway.ask(t, q); b.request == a.request || len(b.request) != 36 {
		t.Errorf("the answer's id is %q", b.request)
	}
}

// Case C09: requests without a body are answered as the engine itself does.
func (s *stack) testWithoutBody(t *testing.T) {
	for line := range strings.Lines(read(t, filepath.Join(cases, "C09-requests.jsonl"))) {
		var in struct {
			Method  string            `json:"method"`
			Path    string            `json:"path"`
			Headers map[string]string `json:"headers"`
			Ends    bool              `json:"end_of_stream_in_headers"`
		}
		if err := json.Unmarshal([]byte(line), &in); err != nil {
			t.Fatal(err)
		}
		var header []string
		for name, value := range in.Headers {
			if name != "content-length" {
				header = append(header, name, value)
			}
		}
		var got, want response
		if in.Ends {
			got = s.gateway.do(t, in.Method, in.Path, "", header...)
			want = s.workers[0].engine.do(t, in.Method, in.Path, "", header...)
		} else {
			got, want = s.gateway.emptyChunked(t, in.Path), s.workers[0].engine.emptyChunked(t, in.Path)
		}
		if got.status != want.status {
			t.Errorf("%s %s: %s\nthe engine says %s", in.Method, in.Path, got, want)
		}
		if got.header.Get("X-Request-Id") == "" {
			t.Errorf("%s %s: no x-request-id", in.Method, in.Path)
		}
	}
	list, direct := s.gateway.do(t, http.MethodGet, "/v1/models", ""), s.workers[0].engine.do(t, http.MethodGet, "/v1/models", "")
	var a, b struct {
		Object string
		Data   []struct{ ID, Object, Root string }
	}
	if json.Unmarshal(list.body, &a) != nil || json.Unmarshal(direct.body, &b) != nil || !reflect.DeepEqual(a, b) || len(a.Data) != 1 {
		t.Errorf("models through Envoy %s\nfrom an engine %s", list, direct)
	}
}

// emptyChunked posts a body that ends without a byte, in chunked encoding, which
// Go's client never does.
func (c client) emptyChunked(t *testing.T, path string) response {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: e2e\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("POST %s with an empty chunked body: %v", path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{resp.StatusCode, resp.Header, body}
}

// The official client gets right answers and its own kinds of errors.
func (s *stack) testPython(t *testing.T) {
	p := s.run(t, "client", nil, found.python, "client.py", s.gateway.url+"/v1", s.model, story("market", 60))
	if err := p.wait(t, requestTimeout); err != nil {
		t.Fatalf("%v\n%s", err, read(t, p.log))
	}
	type line struct {
		Name, Text, Finish, Error, Param string
		Status, Prompt, Completion       int
		Cached                           int
		Models                           []string
	}
	got := map[string]line{}
	lines := json.NewDecoder(strings.NewReader(read(t, p.log)))
	for lines.More() {
		var l line
		if err := lines.Decode(&l); err != nil {
			t.Fatalf("%v in:\n%s", err, read(t, p.log))
		}
		got[l.Name] = l
	}
	q := question{Model: s.model, MaxTokens: 20, Messages: []message{{"system", story("market", 60)}, {"user", "Who opens the gate?"}}}
	want := s.workers[0].engine.ask(t, q)
	for _, name := range []string{"chat", "chat stream", "chat async"} {
		l := got[name]
		if l.Text != want.text || l.Finish != want.finish || l.Prompt != want.usage.Prompt || l.Completion != want.usage.Completion {
			t.Errorf("%s: %+v, want %q, %s, %+v", name, l, want.text, want.finish, want.usage)
		}
	}
	if l := got["chat again"]; l.Cached < l.Prompt/2 {
		t.Errorf("%d of %d tokens cached when the same was asked again", l.Cached, l.Prompt)
	}
	want = s.workers[0].engine.ask(t, question{Model: s.model, MaxTokens: 20, Prompt: story("market", 60)})
	for _, name := range []string{"completion", "completion stream"} {
		if l := got[name]; l.Text != want.text || l.Finish != want.finish {
			t.Errorf("%s: %+v, want %q, %s", name, l, want.text, want.finish)
		}
	}
	if l := got["models"]; !slices.Equal(l.Models, []string{s.model}) {
		t.Errorf("models: %v", l.Models)
	}
	for name, want := range map[string]line{
		"unknown model": {Error: "NotFoundError", Status: http.StatusNotFound, Param: "model"},
		"bad body":      {Error: "BadRequestError", Status: http.StatusBadRequest, Param: "messages"},
		"bad value":     {Error: "BadRequestError", Status: http.StatusBadRequest},
	} {
		if l := got[name]; l.Error != want.Error || l.Status != want.Status || want.Param != "" && !strings.HasPrefix(l.Param, want.Param) {
			t.Errorf("%s: %+v, want %+v", name, l, want)
		}
	}
	if len(got) != 10 {
		t.Errorf("%d results, want 10:\n%s", len(got), read(t, p.log))
	}
}

// blank is n bytes of a body that is no JSON.
func blank(n int) string { return string(bytes.Repeat([]byte{' '}, n)) }
