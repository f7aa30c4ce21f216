package engine

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestContent(t *testing.T) {
	status, body := http.StatusOK, `{"life":2,"next_seq":7,"block_size":4,"blocks":[{"hash":"a"},{"hash":"b","parent":"a","ids":[1,2],"lora":"l","salt":"s"}]}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.String() != "/sim/content?ids=1" {
			t.Errorf("asked %s", r.URL)
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	defer s.Close()
	c, err := NewClient(s.URL, http.DefaultTransport)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Content(t.Context())
	if err != nil || got.Life != 2 || got.NextSeq != 7 || got.BlockSize != 4 || len(got.Blocks) != 2 || got.Blocks[1].Parent != "a" || len(got.Blocks[1].IDs) != 2 {
		t.Fatalf("%v, %+v", err, got)
	}
	status = http.StatusNotFound // as vLLM does
	if _, err := c.Content(t.Context()); !errors.Is(err, ErrNoContent) {
		t.Errorf("not found: %v", err)
	}
	status, body = http.StatusOK, `{"blocks":[`
	if _, err := c.Content(t.Context()); err == nil {
		t.Error("a cut answer: no error")
	}
}
