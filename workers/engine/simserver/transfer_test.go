package simserver

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

const story = `"prompt":"Once upon a time there was an engine that did not have to compute its prompts by itself, since another did it.","ignore_eos":true,"return_token_ids":true`

// prefillLeg runs the first leg and returns kv_transfer_params for the second.
func prefillLeg(t *testing.T, p *Server, more string) string {
	t.Helper()
	a := parse(t, post(t, p, "/v1/completions", `{`+story+`,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,`+
		`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`+more+`}`))
	if string(a.Transfer) == "null" || len(a.Transfer) == 0 {
		t.Fatal("the prefill leg has no kv_transfer_params")
	}
	return string(a.Transfer)
}

func decodeBody(params string) string {
	return `{` + story + `,"max_tokens":9,"kv_transfer_params":` + params + `}`
}

func metricValue(t *testing.T, s *Server, name string) string {
	t.Helper()
	_, body := call(t, s, http.MethodGet, "/metrics", "")
	for line := range strings.SplitSeq(body, "\n") {
		if rest, ok := strings.CutPrefix(line, name+"{"); ok {
			_, v, _ := strings.Cut(rest, "} ")
			return v
		}
	}
	t.Fatalf("no metric %s", name)
	return ""
}

// TestPair checks that a prefill and a decode engine together give the text of
// a single one, that the KV moves, and that the prefill engine lets go of it.
func TestPair(t *testing.T) {
	p, d, one := start(t, nil), start(t, nil), start(t, nil)
	want := parse(t, post(t, one, "/v1/completions", `{`+story+`,"max_tokens":9}`)).Choices[0]

	params := prefillLeg(t, p, "")
	if st := stats(t, p); st.HeldRequests != 1 || st.UsedBlocks == 0 {
		t.Fatalf("after the prefill leg: %+v", st)
	}
	a := parse(t, post(t, d, "/v1/completions", decodeBody(params)))
	if got := a.Choices[0]; got.Text != want.Text || len(got.TokenIDs) != 9 {
		t.Errorf("decode: %q, want %q", got.Text, want.Text)
	}
	if a.Usage.Details.Cached == 0 {
		t.Errorf("usage %+v: nothing came from the prefill engine", a.Usage)
	}
	if st := stats(t, d); st.TransferredTokens == 0 {
		t.Errorf("decode engine: %+v", st)
	}
	if v := metricValue(t, d, "vllm:nixl_num_failed_transfers_total"); v != "0" {
		t.Errorf("%s failed transfers", v)
	}
	idle(t, p)
	idle(t, d)

	// A second pull of the same KV fails, and the prompt is computed here.
	again := parse(t, post(t, d, "/v1/completions", strings.Replace(decodeBody(params), `"max_tokens"`, `"cache_salt":"s","max_tokens"`, 1)))
	if again.Choices[0].Text != want.Text {
		t.Errorf("recomputed: %q, want %q", again.Choices[0].Text, want.Text)
	}
	if again.Usage.Details.Cached != 0 {
		t.Errorf("recomputed with %d cached tokens", again.Usage.Details.Cached)
	}
	if v := metricValue(t, d, "vllm:nixl_num_failed_transfers_total"); v != "1" {
		t.Errorf("%s failed transfers, want 1", v)
	}
}

// TestPairFaults checks the other ways in which a pull fails.
func TestPairFaults(t *testing.T) {
	p := start(t, nil)
	for _, c := range []struct {
		name   string
		change func(params string) string
		more   string
		want   string
	}{
		{"another prompt", func(s string) string { return s }, `,"cache_salt":"other"`, "another prompt's"},
		{"another engine", func(s string) string { return strings.Replace(s, p.engineID, "0123", 1) }, "", "not 0123"},
		{"nobody there", func(s string) string {
			_, port, _ := strings.Cut(p.Addr(), ":")
			return strings.Replace(s, `"remote_port":`+port, `"remote_port":1`, 1)
		}, "", "refused"},
		{"a member is missing", func(s string) string { return strings.Replace(s, "remote_host", "host", 1) }, "", "are needed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			params := prefillLeg(t, p, "")
			for policy, wantStatus := range map[Policy]int{Recompute: http.StatusOK, Fail: http.StatusInternalServerError} {
				d := start(t, func(cfg *Config) { cfg.LoadFailure = policy })
				body := strings.Replace(decodeBody(c.change(params)), `,"max_tokens"`, c.more+`,"max_tokens"`, 1)
				status, answer := call(t, d, http.MethodPost, "/v1/completions", body)
				if status != wantStatus {
					t.Errorf("%s: status %d, want %d: %s", policy, status, wantStatus, answer)
				}
				if policy == Fail && !strings.Contains(answer, c.want) {
					t.Errorf("%s: answer %s, want %q in it", policy, answer, c.want)
				}
				if v := metricValue(t, d, "vllm:nixl_num_failed_transfers_total"); v != "1" {
					t.Errorf("%s: %s failed transfers, want 1", policy, v)
				}
				idle(t, d)
			}
		})
	}
}

// TestHoldExpires checks that KV that nobody pulls is let go.
func TestHoldExpires(t *testing.T) {
	p := start(t, func(c *Config) { c.HoldTimeout = time.Millisecond })
	prefillLeg(t, p, "")
	until(t, "the hold is over", func() bool { return stats(t, p).HeldRequests == 0 })
	idle(t, p)
	if v := metricValue(t, p, "vllm:nixl_num_kv_expired_reqs_total"); v != "1" {
		t.Errorf("%s expired, want 1", v)
	}
}

// TestHandOffShape checks the members that sidecars and agents pass on.
func TestHandOffShape(t *testing.T) {
	p := start(t, nil)
	_, port, _ := strings.Cut(p.Addr(), ":")
	got := prefillLeg(t, p, "")
	prefix := `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"` + p.engineID +
		`","remote_request_id":"sim-0-1","remote_host":"127.0.0.1","remote_port":` + port + `,"tp_size":2,"dcp_size":1,"pp_size":1,"remote_num_tokens":`
	var tokens int
	rest, ok := strings.CutPrefix(got, prefix)
	if _, err := fmt.Sscanf(rest, "%d", &tokens); !ok || err != nil || tokens <= 16 || tokens > 32 {
		t.Errorf("%s\nwant %s and 17 to 32", got, prefix)
	}
	if !strings.HasSuffix(rest, `,"remote_blocks_expiry_time":null,"transfer_mode":"pull"}`) {
		t.Errorf("ends with %s", rest)
	}
}
