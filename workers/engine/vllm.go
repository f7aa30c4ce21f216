package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
)

// maxPage bounds what is read of a models or metrics page, bytes. vLLM's
// metrics page is below 100 KB with one engine; 4 MiB leaves room for many.
const maxPage = 4 << 20

// Client asks one engine. It is safe for concurrent use.
type Client struct {
	base  *url.URL
	http  *http.Client
	moved atomic.Bool // the metrics page was found in the other place
}

// NewClient returns a client of the engine at base, for example
// "http://127.0.0.1:8200". A base without a scheme is taken as http. transport
// may be shared with other users of the same engine. It does no I/O.
func NewClient(base string, transport http.RoundTripper) (*Client, error) {
	u, err := ParseBase(base)
	if err != nil {
		return nil, err
	}
	return &Client{base: u, http: &http.Client{Transport: transport}}, nil
}

// ParseBase reads an engine's base URL: http or https, a host and port, no path.
func ParseBase(base string) (*url.URL, error) {
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("engine URL %q: %w", base, err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, fmt.Errorf("engine URL %q: want http://HOST:PORT", base)
	}
	u.Path = ""
	return u, nil
}

// Models is what an engine serves.
type Models struct {
	// Base is the first name that is not an adapter: the name that separates this
	// model's blocks from those of others.
	Base string
	// Served are all names that are not adapters, Base first.
	Served []string
	// Adapters are the LoRA adapters loaded now.
	Adapters []string
}

// ErrNoModel says that the engine's model list has no base model (yet).
var ErrNoModel = errors.New("the engine lists no model")

// Models reads /v1/models.
func (c *Client) Models(ctx context.Context) (Models, error) {
	body, err := c.get(ctx, "/v1/models")
	if err != nil {
		return Models{}, err
	}
	m, err := ParseModels(body)
	if err != nil {
		return Models{}, fmt.Errorf("GET /v1/models: %w", err)
	}
	return m, nil
}

// ParseModels reads the body of /v1/models. An entry with a parent is an adapter.
func ParseModels(body []byte) (Models, error) {
	var list struct {
		Data []struct {
			ID     string  `json:"id"`
			Parent *string `json:"parent"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return Models{}, err
	}
	var m Models
	for _, e := range list.Data {
		switch {
		case e.ID == "":
		case e.Parent != nil && *e.Parent != "":
			m.Adapters = append(m.Adapters, e.ID)
		default:
			m.Served = append(m.Served, e.ID)
		}
	}
	if len(m.Served) == 0 {
		return Models{}, ErrNoModel
	}
	m.Base = m.Served[0]
	return m, nil
}

// Health reads /health: nil means that the engine takes requests.
func (c *Client) Health(ctx context.Context) error {
	_, err := c.get(ctx, "/health")
	return err
}

// metricsPage is where most engines have their figures, otherPage where TensorRT-LLM
// has them; in the first place it has a list in JSON.
const metricsPage, otherPage = "/metrics", "/prometheus/metrics"

// Metrics reads the engine's metrics page, from the place where there was one last
// time. A page without the numbers of requests is asked for in the other place too.
func (c *Client) Metrics(ctx context.Context) (Metrics, error) {
	at, other := metricsPage, otherPage
	if c.moved.Load() {
		at, other = other, at
	}
	m, err := c.metrics(ctx, at)
	if (err != nil && !errors.Is(err, errStatus)) || m.Loaded() {
		return m, err
	}
	if o, oerr := c.metrics(ctx, other); oerr == nil && o.Loaded() {
		c.moved.Store(other == otherPage)
		return o, nil
	}
	return m, err
}

func (c *Client) metrics(ctx context.Context, path string) (Metrics, error) {
	body, err := c.get(ctx, path)
	if err != nil {
		return UnknownMetrics(), err
	}
	return ParseMetrics(body), nil
}

// errStatus is an answer that is not 200.
var errStatus = errors.New("status")

func (c *Client) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.JoinPath(path).String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %w %d", path, errStatus, resp.StatusCode)
	}
	if len(body) > maxPage {
		return nil, fmt.Errorf("GET %s: page over %d bytes", path, maxPage)
	}
	return body, nil
}
