package extproc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/kvlane/kvlane/picker"
)

// rewriting is a world whose model "alias" is served as "base".
func rewriting(t *testing.T, rules ...picker.Rewrite) *world {
	w := newWorld(t, Default(), picker.DefaultConfig())
	rewrites, err := picker.NewRewrites(rules)
	if err != nil {
		t.Fatal(err)
	}
	w.server.router.UseRewrites(rewrites, NewRewriteMetrics(w.registry, &rewrites))
	w.worker("w1", hello("192.0.2.10:8000"))
	return w
}

func alias(targets ...string) picker.Rewrite {
	rule := picker.Rewrite{Model: "alias"}
	for _, model := range targets {
		rule.Targets = append(rule.Targets, picker.RewriteTarget{Model: model, Weight: 1})
	}
	return rule
}

func inMode(in *extprocv3.ProcessingRequest, m filterv3.ProcessingMode_BodySendMode) *extprocv3.ProcessingRequest {
	in.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: m, ResponseBodyMode: filterv3.ProcessingMode_NONE}
	return in
}

// sentOn is what a gateway sends on: the body, and the headers that the answers set.
type sentOn struct {
	body    []byte
	changed bool // by a mutation
	headers map[string]string
	refused int
}

func (s *sentOn) take(out responses) {
	if s.headers == nil {
		s.headers = map[string]string{}
	}
	for _, a := range out {
		s.refused = max(s.refused, int(a.GetImmediateResponse().GetStatus().GetCode()))
		for _, c := range []*extprocv3.CommonResponse{a.GetRequestHeaders().GetResponse(), a.GetRequestBody().GetResponse()} {
			for _, h := range c.GetHeaderMutation().GetSetHeaders() {
				s.headers[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
			}
			if m := c.GetBodyMutation(); m != nil {
				s.changed = true
				s.body = append(append(s.body, m.GetStreamedResponse().GetBody()...), m.GetBody()...)
			}
		}
	}
}

// Cases C02 and C04 with an alias: in every mode in which the body is read, only the
// model's value changes and the length is the new one's.
func TestRewriteKeepsBytes(t *testing.T) {
	files := map[string]string{"C02-bigint.json": "/v1/completions", "C02-spelling.json": "/v1/completions", "C04-unknown-fields.json": "/v1/chat/completions"}
	for file, path := range files {
		for _, m := range []filterv3.ProcessingMode_BodySendMode{
			filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, filterv3.ProcessingMode_BUFFERED, filterv3.ProcessingMode_BUFFERED_PARTIAL,
		} {
			t.Run(fmt.Sprint(file, m), func(t *testing.T) {
				body := readCase(t, file)
				want := bytes.Replace(body, []byte(`"alias"`), []byte(`"base"`), 1)
				if golden := strings.TrimSuffix(file, ".json") + ".want-alias.json"; file[:3] == "C02" {
					want = readCase(t, golden)
				}
				w := rewriting(t, alias("base"))
				st, got := w.stream("a"), sentOn{}
				got.take(w.send(st, inMode(requestHeadersMessage(false, ":method", "POST", ":path", path, "x-request-id", "r1",
					"content-length", strconv.Itoa(len(body)), HeaderModelRewrite, "spoofed"), m)))
				if m == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
					got.take(w.send(st, requestBodyMessage(body[:10], false)))
					body = body[10:]
				}
				got.take(w.send(st, requestBodyMessage(body, true)))
				if !bytes.Equal(got.body, want) {
					t.Errorf("sent on\n%q\nwant\n%q", got.body, want)
				}
				if n := got.headers["content-length"]; n != strconv.Itoa(len(want)) {
					t.Errorf("content-length %q of %d bytes", n, len(want))
				}
				if got.headers[HeaderModelRewrite] != "base" || got.headers[HeaderDestination] != "192.0.2.10:8000" {
					t.Errorf("headers %v", got.headers)
				}
				if e, _ := w.server.Plans().Get("r1"); e.Decision.Model != "alias" || e.Decision.Rewrite != "base" {
					t.Errorf("plan %+v", e.Decision)
				}
				if n := w.metrics()["model_rewrites_total{alias,base}"]; n != 1 {
					t.Errorf("counted %v times", n)
				}
				st.end(w.now)
			})
		}
	}
}

func readCase(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "test", "data", "cases", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Where the body is not there whole, nothing is changed: half a body with an alias
// gets a 503, everything else goes by load.
func TestRewriteWithoutBody(t *testing.T) {
	const path = "/v1/completions"
	body := []byte(`{"stop":["{\"model\":\"x\""], "model":"alias","prompt":"once upon a ti`)
	other := bytes.Replace(body, []byte("alias"), []byte("base"), 1)
	partial, streamed := filterv3.ProcessingMode_BUFFERED_PARTIAL, filterv3.ProcessingMode_STREAMED
	for _, c := range []struct {
		name     string
		mode     filterv3.ProcessingMode_BodySendMode
		encoding string
		body     []byte
		refused  int
		unread   float64
	}{
		{"half of an alias", partial, "", body, int(typev3.StatusCode_ServiceUnavailable), 0},
		{"half of another", partial, "", other, 0, 0},
		{"half without the model", partial, "", body[:20], 0, 0},
		{"streamed", streamed, "", body, 0, 1},
		{"compressed", filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, "gzip", body, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := rewriting(t, alias("base"))
			st, got := w.stream("a"), sentOn{}
			got.take(w.send(st, inMode(requestHeadersMessage(false, ":method", "POST", ":path", path, "content-encoding", c.encoding), c.mode)))
			got.take(w.send(st, requestBodyMessage(c.body, false)))
			if got.refused != c.refused {
				t.Errorf("refused with %d, want %d", got.refused, c.refused)
			}
			if got.changed && !bytes.Equal(got.body, c.body) || got.headers[HeaderModelRewrite] != "" {
				t.Errorf("changed: %+v", got)
			}
			if n := w.metrics()["faults_total{rewrite-unread}"]; n != c.unread {
				t.Errorf("%v counted as unread, want %v", n, c.unread)
			}
			st.end(w.now)
			if n := w.metrics()["open_bookings"]; n != 0 {
				t.Errorf("%v bookings are open", n)
			}
		})
	}
}

// A session stays with one variant, and what no worker serves is the operator's
// fault: 503.
func TestRewriteSessions(t *testing.T) {
	w := rewriting(t, alias("base", "canary", "c2", "c3"))
	h := hello("192.0.2.11:8000")
	h.Served = []string{"canary", "c2", "c3"}
	w.worker("w2", h)
	ask := func(name, id, session string) *sentOn {
		st, got := w.stream(name), &sentOn{}
		got.take(w.send(st, requestHeadersMessage(false, ":method", "POST", ":path", "/v1/completions", "x-request-id", id, HeaderSession, session)))
		got.take(w.send(st, requestBodyMessage([]byte(`{"model":"alias","prompt":"hi"}`), true)))
		return got
	}
	seen := map[string]bool{}
	for i := range 20 {
		session := fmt.Sprintf("s%d", i)
		first := ask(session+"a", fmt.Sprintf("r%da", i), session).headers[HeaderModelRewrite]
		if next := ask(session+"b", fmt.Sprintf("r%db", i), session).headers[HeaderModelRewrite]; next != first {
			t.Errorf("session %d went from %q to %q", i, first, next)
		}
		seen[first] = true
	}
	if len(seen) != 4 {
		t.Errorf("20 sessions used %v", seen)
	}
	w = rewriting(t, alias("nobody"))
	if got := ask("x", "x", ""); got.refused != int(typev3.StatusCode_ServiceUnavailable) {
		t.Errorf("a target that nobody serves: %d", got.refused)
	}
}
