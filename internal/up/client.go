package up

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// client speaks to the gateway as any OpenAI client would.
type client struct{ url string }

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// answer is a finished answer.
type answer struct {
	id             string // the request's
	text           string
	prompt, cached int           // tokens
	first          time.Duration // to the first piece of text
}

type chatRequest struct {
	Model         string        `json:"model"`
	Messages      []message     `json:"messages"`
	MaxTokens     int           `json:"max_tokens"`
	Stream        bool          `json:"stream"`
	StreamOptions streamOptions `json:"stream_options"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type chatChunk struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens        int `json:"prompt_tokens"`
		PromptTokensDetails struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

// chat streams an answer of at most 48 tokens.
func (c client) chat(ctx context.Context, model string, messages []message) (answer, error) {
	body, err := json.Marshal(chatRequest{model, messages, 48, true, streamOptions{true}})
	if err != nil {
		return answer{}, fmt.Errorf("encode: %w", err)
	}
	sent := time.Now()
	resp, err := c.do(ctx, http.MethodPost, "/v1/chat/completions", body)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }() // read only
	a := answer{id: resp.Header.Get("X-Request-Id")}
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return a, fmt.Errorf("answer cut before [DONE]: %w", err)
		}
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		switch {
		case !ok:
			continue
		case data == "[DONE]":
			return a, nil
		}
		if err := a.add(data, sent); err != nil {
			return a, err
		}
	}
}

func (a *answer) add(data string, sent time.Time) error {
	var chunk chatChunk
	if err := json.Unmarshal([]byte(data), &chunk); err != nil {
		return fmt.Errorf("event is not JSON: %w", err)
	}
	for _, choice := range chunk.Choices {
		if choice.Delta.Content != "" && a.first == 0 {
			a.first = time.Since(sent)
		}
		a.text += choice.Delta.Content
	}
	if u := chunk.Usage; u != nil {
		a.prompt, a.cached = u.PromptTokens, u.PromptTokensDetails.CachedTokens
	}
	return nil
}

// firstModel is the first model that the gateway lists.
func (c client) firstModel(ctx context.Context) (string, error) {
	resp, err := c.do(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }() // read only
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return "", fmt.Errorf("read /v1/models: %w", err)
	}
	if len(list.Data) == 0 {
		return "", errors.New("the gateway lists no model")
	}
	return list.Data[0].ID, nil
}

// do sends a request; any status but 200 is an error with the answer's text.
func (c client) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("build request: %w", err)
	}
	req.Header.Set("content-type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()               // read only
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000)) // only for the message
	return nil, fmt.Errorf("%s %s: status %d: %s", method, path, resp.StatusCode, bytes.TrimSpace(text))
}
