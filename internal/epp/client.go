package epp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Client reads a picker's admin page.
type Client struct {
	base string
	http *http.Client
}

// NewClient reads the page at host:port. It does no I/O.
func NewClient(address string) *Client {
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

func (c *Client) do(ctx context.Context, method, path string, body []byte, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("build request: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask the picker: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // read only
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000)) // only for the message
		return fmt.Errorf("ask the picker: status %d: %s", resp.StatusCode, bytes.TrimSpace(text))
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("read the picker's answer: %w", err)
	}
	return nil
}
