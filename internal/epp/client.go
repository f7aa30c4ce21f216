package epp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/listing"
)

// Client reads a picker's admin page.
type Client struct {
	base string
	http *http.Client
}

// NewClient reads the page at host:port; http:// before it may be there. It does
// no I/O.
func NewClient(address string) *Client {
	address = strings.TrimSuffix(strings.TrimPrefix(address, "http://"), "/")
	return &Client{base: "http://" + address, http: &http.Client{Timeout: 10 * time.Second}}
}

// Plan is where a request went and why.
func (c *Client) Plan(ctx context.Context, id string) (PlanView, error) {
	var v PlanView
	err := c.do(ctx, http.MethodGet, "/plans/"+url.PathEscape(id), nil, &v)
	return v, err
}

// Explain is where a request with this body would go now. path is the request's
// path; an empty policy is the picker's own.
func (c *Client) Explain(ctx context.Context, path, policy string, body []byte) (PlanView, error) {
	var v PlanView
	query := url.Values{"path": {path}}
	if policy != "" {
		query.Set("policy", policy)
	}
	err := c.do(ctx, http.MethodPost, "/explain?"+query.Encode(), body, &v)
	return v, err
}

// Endpoints is the pool as it is now.
func (c *Client) Endpoints(ctx context.Context) ([]EndpointView, error) {
	var v []EndpointView
	err := c.do(ctx, http.MethodGet, "/endpoints", nil, &v)
	return v, err
}

// Index is what the picker knows of its workers' caches, without the blocks.
func (c *Client) Index(ctx context.Context) (IndexView, error) {
	var v IndexView
	err := c.do(ctx, http.MethodGet, "/index/stats", nil, &v)
	return v, err
}

// Overlap is how many leading blocks of a chain each worker's rank holds, for
// those that hold the first.
func (c *Client) Overlap(ctx context.Context, chain []kvindex.BlockHash) ([]OverlapView, error) {
	body, err := json.Marshal(struct {
		Chain listing.Hashes `json:"chain"`
	}{chain})
	if err != nil {
		return nil, fmt.Errorf("write the chain: %w", err)
	}
	var v []OverlapView
	err = c.do(ctx, http.MethodPost, "/index/overlap", body, &v)
	return v, err
}

// Dump is the listing of a worker's blocks in the picker's index, of all
// workers if it is empty. The caller closes it.
func (c *Client) Dump(ctx context.Context, worker kvindex.WorkerID) (io.ReadCloser, error) {
	resp, err := c.send(ctx, http.MethodGet, "/index/dump?"+url.Values{"worker": {string(worker)}}.Encode(), nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

func (c *Client) do(ctx context.Context, method, path string, body []byte, into any) error {
	resp, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // read only
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("read the picker's answer: %w", err)
	}
	return nil
}

// send returns an answer with status 200, or an error.
func (c *Client) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("build request: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the picker: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000)) // only for the message
		_ = resp.Body.Close()
		return nil, fmt.Errorf("ask the picker: status %d: %s", resp.StatusCode, bytes.TrimSpace(text))
	}
	return resp, nil
}
