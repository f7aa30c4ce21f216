package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// requestTimeout bounds one request of a test.
const requestTimeout = 60 * time.Second

// client sends plain HTTP to one server.
type client struct {
	url  string
	http *http.Client
}

func newClient(t *testing.T, url string) client {
	t.Helper()
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return client{url, &http.Client{Transport: transport, Timeout: requestTimeout}}
}

// response is an answer read to its end.
type response struct {
	status int
	header http.Header
	body   []byte
}

func (r response) String() string { return fmt.Sprintf("status %d: %.500s", r.status, r.body) }

// send sends a request; header is name, value, name, value...
func (c client) send(ctx context.Context, method, path string, body io.Reader, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		return nil, err
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header[header[i]] = append(req.Header[header[i]], header[i+1]) // as it is spelled
	}
	return c.http.Do(req)
}

func (c client) do(t *testing.T, method, path, body string, header ...string) response {
	t.Helper()
	resp, err := c.send(t.Context(), method, path, strings.NewReader(body), header...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	r := response{status: resp.StatusCode, header: resp.Header}
	if r.body, err = io.ReadAll(resp.Body); err != nil {
		t.Fatalf("%s %s: read the answer: %v", method, path, err)
	}
	return r
}

// apiError is OpenAI's error body.
type apiError struct {
	Error *struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    any     `json:"code"` // OpenAI has a word, vLLM the status
	} `json:"error"`
}

// wantError checks a refusal's status and the shape of its body.
func (r response) wantError(t *testing.T, status int) {
	t.Helper()
	if r.status != status {
		t.Errorf("want status %d, got %s", status, r)
		return
	}
	var e apiError
	if err := json.Unmarshal(r.body, &e); err != nil || e.Error == nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Errorf("want an OpenAI error body, got %s (%v)", r, err)
	}
	if ct := r.header.Get("Content-Type"); !strings.HasPrefix(ct, "application/json") {
		t.Errorf("content type of an error: %q", ct)
	}
}

func (c client) models(t *testing.T) []string {
	t.Helper()
	r := c.do(t, http.MethodGet, "/v1/models", "")
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(r.body, &list); err != nil || len(list.Data) == 0 {
		t.Fatalf("list of models: %v, %s", err, r)
	}
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	return names
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// question is a request for text: chat with Messages, completions with Text or
// IDs.
type question struct {
	Model         string         `json:"model"`
	Messages      []message      `json:"messages,omitempty"`
	Prompt        any            `json:"prompt,omitempty"` // string or []uint32
	MaxTokens     int            `json:"max_tokens,omitempty"`
	Temperature   *float64       `json:"temperature,omitempty"`
	Stream        bool           `json:"stream,omitempty"`
	StreamOptions *streamOptions `json:"stream_options,omitempty"`
	IgnoreEOS     bool           `json:"ignore_eos,omitempty"`
	ReturnIDs     bool           `json:"return_token_ids,omitempty"`
}

func (q question) path() string {
	if q.Messages != nil {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

func (q question) body(t *testing.T) []byte {
	t.Helper()
	b, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (q question) streamed() question {
	q.Stream, q.StreamOptions = true, &streamOptions{IncludeUsage: true}
	return q
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// chunk is one JSON document of an answer, whole or an event of a stream.
type chunk struct {
	apiError
	ID      string `json:"id"`
	Object  string `json:"object"`
	Model   string `json:"model"`
	Choices []struct {
		Index   int    `json:"index"`
		Text    string `json:"text"`
		Message struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"message"`
		Delta struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"delta"`
		Finish   string   `json:"finish_reason"`
		TokenIDs []uint32 `json:"token_ids"`
	} `json:"choices"`
	Usage          *usage   `json:"usage"`
	PromptTokenIDs []uint32 `json:"prompt_token_ids"`
}

// answer is the text of the first choice with what belongs to it.
type answer struct {
	request string // its id
	text    string
	finish  string
	usage   usage
	ids     []uint32
	chunks  []chunk // of a stream, in order
	raw     string
}

// ask sends a question and wants an answer.
func (c client) ask(t *testing.T, q question, header ...string) answer {
	t.Helper()
	a, err := c.try(t.Context(), q, header...)
	if err != nil {
		t.Fatalf("%s%s: %v", c.url, q.path(), err)
	}
	return a
}

func (c client) try(ctx context.Context, q question, header ...string) (answer, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return answer{}, err
	}
	resp, err := c.send(ctx, http.MethodPost, q.path(), bytes.NewReader(body), header...)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	a := answer{request: resp.Header.Get("X-Request-Id")}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body) // only for the message
		return a, fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	if q.Stream {
		if ct := resp.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
			return a, fmt.Errorf("content type of a stream: %q", ct)
		}
		err = a.readStream(resp.Body)
		return a, err
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return a, err
	}
	a.raw = string(text)
	err = a.add(text)
	return a, err
}

// readStream reads events to [DONE] and wants nothing behind it.
func (a *answer) readStream(r io.Reader) error {
	lines := bufio.NewReader(r)
	done := false
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			if errors.Is(err, io.EOF) && done && line == "" {
				return nil
			}
			return fmt.Errorf("stream cut after %d events (done %t): %w", len(a.chunks), done, err)
		}
		a.raw += line
		data, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "data: ")
		switch {
		case strings.TrimSpace(line) == "":
		case !ok || done:
			return fmt.Errorf("unexpected line %q", line)
		case data == "[DONE]":
			done = true
		default:
			if err := a.add([]byte(data)); err != nil {
				return err
			}
		}
	}
}

func (a *answer) add(text []byte) error {
	var c chunk
	if err := json.Unmarshal(text, &c); err != nil {
		return fmt.Errorf("%w in %.300s", err, text)
	}
	if c.Error != nil {
		return fmt.Errorf("error in an answer: %s", text)
	}
	a.chunks = append(a.chunks, c)
	for _, choice := range c.Choices {
		if choice.Index != 0 {
			continue
		}
		a.text += choice.Text + choice.Message.Content + choice.Delta.Content
		a.ids = append(a.ids, choice.TokenIDs...)
		if choice.Finish != "" {
			a.finish = choice.Finish
		}
	}
	if c.Usage != nil {
		a.usage = *c.Usage
	}
	return nil
}

// metric is the sum of a metric's samples whose labels contain all the given
// texts; 0 if there is none.
func metric(t *testing.T, page, name string, labels ...string) float64 {
	t.Helper()
	c := newClient(t, page)
	r := c.do(t, http.MethodGet, "/metrics", "")
	if r.status != http.StatusOK {
		t.Fatalf("%s/metrics: %s", page, r)
	}
	sum := 0.0
next:
	for line := range strings.Lines(string(r.body)) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(rest, l) {
				continue next
			}
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			t.Fatalf("sample %q: %v", line, err)
		}
		sum += v
	}
	return sum
}

// story is plain text of about 11 tokens a sentence, the same for a name each
// time and different from the first words on for different names.
func story(name string, sentences int) string {
	people := []string{"the keeper", "the first mate", "the clerk", "the warden", "the porter"}
	acts := []string{"checks", "counts", "cleans", "locks", "paints", "opens", "signs for"}
	things := []string{"pump", "shelf", "gate", "lamp", "ladder", "ledger", "boat", "window", "bell", "door", "table"}
	times := []string{"before dawn", "at noon", "when the tide turns", "in the evening", "at midnight", "after lunch"}
	var b strings.Builder
	fmt.Fprintf(&b, "These are the rules of the %s. ", name)
	for i := range sentences {
		fmt.Fprintf(&b, "In the %s %s %s the %s %s. ", name, people[i%len(people)], acts[i*3%len(acts)], things[i*5%len(things)], times[i*7%len(times)])
	}
	return b.String()
}

// rules is a chat about a story.
func rules(model, name string, sentences, maxTokens int) question {
	return question{Model: model, MaxTokens: maxTokens, Messages: []message{
		{"system", story(name, sentences)}, {"user", "Who has to be in the " + name + " first?"},
	}}
}
