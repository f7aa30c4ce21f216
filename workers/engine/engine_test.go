package engine_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/kvlane/kvlane/workers/engine"
)

// TestMetrics reads metrics pages: what they say, and that anything else is
// unknown.
func TestMetrics(t *testing.T) {
	datadriven.RunTest(t, "testdata/metrics.txt", func(t *testing.T, d *datadriven.TestData) string {
		page := []byte(d.Input)
		if d.HasArg("file") {
			var name string
			d.ScanArgs(t, "file", &name)
			var err error
			if page, err = os.ReadFile(filepath.Join("../../test/data/cases", name)); err != nil {
				d.Fatalf(t, "%v", err)
			}
		}
		m := engine.ParseMetrics(page)
		out := fmt.Sprintf("running=%d waiting=%d usage=%v block_size=%d blocks=%d", m.Running, m.Waiting, m.KVUsage, m.BlockSize, m.KVBlocks)
		if !m.StartedAt.IsZero() {
			out += " started=" + m.StartedAt.UTC().Format(time.RFC3339Nano)
		}
		return out + "\n"
	})
}

func TestModels(t *testing.T) {
	m, err := engine.ParseModels([]byte(`{"data":[{"id":"m","root":"/x","parent":null},{"id":"alias"},{"id":"ad","parent":"m"},{"id":""}]}`))
	if err != nil || m.Base != "m" || fmt.Sprint(m.Served, m.Adapters) != "[m alias] [ad]" {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := engine.ParseModels([]byte(`{"data":[{"id":"ad","parent":"m"}]}`)); !errors.Is(err, engine.ErrNoModel) {
		t.Errorf("no base model: %v", err)
	}
	if _, err := engine.ParseModels([]byte(`<html>`)); err == nil {
		t.Error("HTML is no model list")
	}
}

func TestParseBase(t *testing.T) {
	for in, want := range map[string]string{
		"http://127.0.0.1:8200": "http://127.0.0.1:8200", "127.0.0.1:8200": "http://127.0.0.1:8200", "http://h:1/": "http://h:1",
		"ftp://x": "", "http://": "", "http://h/v1": "", "http://h?x": "", "http://h:b": "",
	} {
		u, err := engine.ParseBase(in)
		if (err == nil) != (want != "") || err == nil && u.String() != want {
			t.Errorf("%s: %v, %v, want %q", in, u, err, want)
		}
	}
}

// TestClient: statuses, and a page that does not end.
func TestClient(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
		case "/health":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/metrics":
			for range 600 {
				fmt.Fprint(w, strings.Repeat("# much\n", 1000))
			}
			fmt.Fprint(w, "vllm:num_requests_waiting 1\n")
		}
	}))
	defer s.Close()
	c, err := engine.NewClient(s.URL, http.DefaultTransport)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := c.Models(t.Context()); err != nil || m.Base != "m" {
		t.Errorf("%+v, %v", m, err)
	}
	if err := c.Health(t.Context()); err == nil || !strings.Contains(err.Error(), "GET /health: status 503") {
		t.Errorf("health: %v", err)
	}
	if m, err := c.Metrics(t.Context()); err == nil || m.Waiting != -1 {
		t.Errorf("a page over the limit: %+v, %v", m, err)
	}
}

func FuzzParseMetrics(f *testing.F) {
	for _, s := range []string{
		"vllm:num_requests_running{a=\"}\"} 2\n", "vllm:cache_config_info{block_size=\"16\",x=\"\\\"\"} 1", "a", "{", "}{ 1", "vllm:kv_cache_usage_perc NaN",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, page []byte) {
		m := engine.ParseMetrics(page)
		if m.Running < -1 || m.Waiting < -1 || m.KVBlocks < 0 || m.BlockSize < 0 || (m.KVUsage != -1 && (m.KVUsage < 0 || m.KVUsage > 1)) {
			t.Errorf("%+v", m)
		}
	})
}

func FuzzParseModels(f *testing.F) {
	f.Add([]byte(`{"data":[{"id":"m","parent":null}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if m, err := engine.ParseModels(body); err == nil && (m.Base == "" || m.Served[0] != m.Base) {
			t.Errorf("%+v", m)
		}
	})
}

// TestMetricsPlace: TensorRT-LLM has its figures in another place, and is not asked in
// the first one again.
func TestMetricsPlace(t *testing.T) {
	var asked []string
	list, page := "[]", "trtllm_num_requests_running 2\ntrtllm_num_requests_waiting 1\n"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		if r.URL.Path == "/prometheus/metrics" && page != "" {
			fmt.Fprint(w, page)
			return
		}
		if r.URL.Path == "/metrics" && list != "" {
			fmt.Fprint(w, list)
			return
		}
		http.NotFound(w, r)
	}))
	defer s.Close()
	c, err := engine.NewClient(s.URL, http.DefaultTransport)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(want int) {
		t.Helper()
		m, err := c.Metrics(t.Context())
		if err != nil || m.Running != want {
			t.Errorf("%+v, %v, want %d running", m, err, want)
		}
	}
	ask(2)
	ask(2)
	if want := "[/metrics /prometheus/metrics /prometheus/metrics]"; fmt.Sprint(asked) != want {
		t.Errorf("asked %v, want %s", asked, want)
	}
	page, list = "", "vllm:num_requests_running 5\nvllm:num_requests_waiting 0\n" // another engine there
	ask(5)
	list = "process_start_time_seconds 1\n"
	ask(-1)
	list = ""
	if m, err := c.Metrics(t.Context()); err == nil || m.Loaded() {
		t.Errorf("nothing in both places: %+v", m)
	}
}
