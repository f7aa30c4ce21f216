package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// maxContent bounds what is read of a listed cache, bytes: a block of 16 tokens
// takes about 200.
const maxContent = 1 << 30

// ErrNoContent says that the engine does not list its cache. vLLM does not, the
// simulated engine does.
var ErrNoContent = errors.New("the engine does not list its content")

// Content is an engine's prefix cache as it lists it itself.
type Content struct {
	// Life counts the restarts of the engine's memory, NextSeq is the number that
	// its next batch of events will have.
	Life    int    `json:"life"`
	NextSeq uint64 `json:"next_seq"`
	// BlockSize is in tokens.
	BlockSize int            `json:"block_size"`
	Blocks    []ContentBlock `json:"blocks"`
}

// ContentBlock is one cached block under the engine's own names.
type ContentBlock struct {
	Hash string `json:"hash"`
	// Parent is empty at a prompt's start.
	Parent string   `json:"parent"`
	IDs    []uint32 `json:"ids"` // tokens
	LoRA   string   `json:"lora"`
	Salt   string   `json:"salt"`
}

// Content reads the engine's cache, or [ErrNoContent].
func (c *Client) Content(ctx context.Context) (*Content, error) {
	const path = "/sim/content"
	u := c.base.JoinPath(path)
	u.RawQuery = "ids=1"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return nil, ErrNoContent
	default:
		return nil, fmt.Errorf("GET %s: status %d", path, resp.StatusCode)
	}
	content := new(Content)
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxContent)).Decode(content); err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	return content, nil
}
