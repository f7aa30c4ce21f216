package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/kvlane/kvlane/kvindex/listing"
)

// get reads a page with status 200.
func (v *verifier) get(ctx context.Context, url string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("build request: %w", err)
	}
	resp, err := v.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500)) // only for the message
		_ = resp.Body.Close()
		return nil, fmt.Errorf("ask the agent: status %d: %s", resp.StatusCode, bytes.TrimSpace(text))
	}
	return resp.Body, nil
}

// held is what an agent's engine says it holds.
func (v *verifier) held(ctx context.Context, admin string) (*listing.Listing, error) {
	body, err := v.get(ctx, "http://"+admin+"/agent/content")
	if err != nil {
		return nil, err
	}
	defer body.Close()
	l, err := listing.Read(body)
	if err != nil {
		return nil, fmt.Errorf("read what the engine holds: %w", err)
	}
	return l, nil
}

// prefix is one of an agent's /agent/prefixes.
type prefix struct {
	Model     string   `json:"model"`
	LoRA      string   `json:"lora"`
	Salt      string   `json:"salt"`
	BlockSize int      `json:"block_size"`
	Tokens    []uint32 `json:"tokens"`
}

func (v *verifier) prefixes(ctx context.Context, admin string, n int) ([]prefix, error) {
	body, err := v.get(ctx, fmt.Sprintf("http://%s/agent/prefixes?n=%d", admin, n))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var out []prefix
	if err := json.NewDecoder(body).Decode(&out); err != nil {
		return nil, fmt.Errorf("read known prefixes: %w", err)
	}
	return out, nil
}
