package replay

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
	"time"
)

// Client sends one trace's requests to a gateway.
type Client struct {
	HTTP *http.Client
	// URL is the gateway, such as http://127.0.0.1:8080, without a path.
	URL   string
	Model string
	// Policy is sent as x-kvlane-policy; empty for the picker's own.
	Policy string
	// Admin is the picker's admin address, asked where each request went; empty
	// leaves picks per worker out.
	Admin string
}

// Answer is one request as the client saw it. Times are wall-clock, from the
// scheduled arrival.
type Answer struct {
	Err          string // empty if the answer was complete
	Status       int
	First, Last  time.Duration
	PromptTokens int
	CachedTokens int
	OutputTokens int
	Worker       string // where the picker sent it; empty if unknown
	Reason       string // the picker's reason
	// PredictedMs and PredictedCached are the plan's time to first token, wall-clock,
	// and tokens that need no prefill; 0 and -1 if unknown.
	PredictedMs     float64
	PredictedCached int
}

type completionRequest struct {
	Model         string        `json:"model"`
	Prompt        string        `json:"prompt"`
	MaxTokens     int           `json:"max_tokens"`
	MinTokens     int           `json:"min_tokens"`
	IgnoreEOS     bool          `json:"ignore_eos"`
	Stream        bool          `json:"stream"`
	StreamOptions streamOptions `json:"stream_options"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type completionEvent struct {
	Choices []struct {
		Text string `json:"text"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens        int `json:"prompt_tokens"`
		CompletionTokens    int `json:"completion_tokens"`
		PromptTokensDetails *struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// body is the request of an entry with its prompt.
func (c *Client) body(e Entry, prompt string) ([]byte, error) {
	return json.Marshal(completionRequest{
		Model: c.Model, Prompt: prompt, MaxTokens: e.OSL, MinTokens: e.OSL, IgnoreEOS: true,
		Stream: true, StreamOptions: streamOptions{IncludeUsage: true},
	})
}

// Send posts one request and reads its answer to the end. scheduled is the
// arrival that latencies count from. Faults are in the Answer.
func (c *Client) Send(ctx context.Context, id string, body []byte, scheduled time.Time) Answer {
	a := Answer{PredictedCached: -1}
	if err := c.send(ctx, id, body, scheduled, &a); err != nil {
		a.Err = err.Error()
	}
	a.Last = time.Since(scheduled)
	if c.Admin != "" && a.Status != 0 {
		c.plan(ctx, id, &a)
	}
	return a
}

func (c *Client) send(ctx context.Context, id string, body []byte, scheduled time.Time, a *Answer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("build request: %w", err)
	}
	req.Header.Set("content-type", "application/json")
	req.Header.Set("x-request-id", id)
	if c.Policy != "" {
		req.Header.Set("x-kvlane-policy", c.Policy)
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // read only
	a.Status = resp.StatusCode
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300)) // the status is the error; this is its colour
		return fmt.Errorf("status %d: %s", resp.StatusCode, bytes.TrimSpace(text))
	}
	return readEvents(resp.Body, scheduled, a)
}

// readEvents reads server-sent events until [DONE].
func readEvents(r io.Reader, scheduled time.Time, a *Answer) error {
	lines := bufio.NewReaderSize(r, 4096)
	for {
		line, err := lines.ReadBytes('\n')
		data, ok := bytes.CutPrefix(bytes.TrimRight(line, "\r\n"), []byte("data: "))
		if ok && string(data) == "[DONE]" {
			if a.PromptTokens == 0 {
				return errors.New("the answer ended without usage")
			}
			return nil
		}
		if ok {
			if err := a.event(data, scheduled); err != nil {
				return err
			}
		}
		if err != nil {
			return fmt.Errorf("answer cut before [DONE]: %w", err)
		}
	}
}

func (a *Answer) event(data []byte, scheduled time.Time) error {
	if a.First == 0 && bytes.Contains(data, []byte(`"text":"`)) {
		a.First = time.Since(scheduled)
	}
	// Only the last events matter beyond the first token; parsing each of some
	// hundred chunks would measure this client.
	if !bytes.Contains(data, []byte(`"usage":{`)) && !bytes.Contains(data, []byte(`"error"`)) {
		return nil
	}
	var e completionEvent
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("event is not JSON: %w", err)
	}
	if len(e.Error) > 0 {
		return fmt.Errorf("error in the stream: %s", e.Error)
	}
	if e.Usage != nil {
		a.PromptTokens, a.OutputTokens = e.Usage.PromptTokens, e.Usage.CompletionTokens
		if d := e.Usage.PromptTokensDetails; d != nil {
			a.CachedTokens = d.CachedTokens
		}
	}
	return nil
}

// plan asks the picker where a request went and what it predicted; nothing when it
// does not know.
func (c *Client) plan(ctx context.Context, id string, a *Answer) {
	admin := strings.TrimSuffix(strings.TrimPrefix(c.Admin, "http://"), "/")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/plans/"+id, http.NoBody)
	if err != nil {
		return
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return
	}
	defer func() { _ = resp.Body.Close() }() // read only
	var plan struct {
		Decode struct {
			Worker string `json:"worker"`
		} `json:"decode"`
		Reason string  `json:"reason"`
		TTFTMs float64 `json:"ttftMs"`
		Cached int     `json:"cached"`
	}
	if resp.StatusCode != http.StatusOK || json.NewDecoder(resp.Body).Decode(&plan) != nil {
		return
	}
	a.Worker, a.Reason = plan.Decode.Worker, plan.Reason
	if a.Worker != "" {
		a.PredictedMs, a.PredictedCached = plan.TTFTMs, plan.Cached
	}
}

// FirstModel is the first model that the gateway serves.
func (c *Client) FirstModel(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/v1/models", http.NoBody)
	if err != nil {
		return "", fmt.Errorf("build request: %w", err)
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask %s for its models (is `kvlane up` running?): %w", c.URL, err)
	}
	defer func() { _ = resp.Body.Close() }() // read only
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if resp.StatusCode != http.StatusOK {
		return "", errors.New("GET /v1/models: status " + strconv.Itoa(resp.StatusCode))
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&list); err != nil || len(list.Data) == 0 {
		return "", errors.New("GET /v1/models: no model in the answer; name one with --model")
	}
	return list.Data[0].ID, nil
}
