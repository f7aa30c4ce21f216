package openai

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

func TestAPIOf(t *testing.T) {
	for _, c := range []struct {
		method, path string
		want         API
	}{
		{"POST", "/v1/chat/completions", APIChat},
		{"POST", "/v1/completions", APICompletions},
		{"GET", "/v1/completions", APINone},
		{"POST", "/v1/chat/completions/render", APINone},
		{"POST", "/tokenize", APINone},
		{"", "", APINone},
	} {
		if got := APIOf(c.method, c.path); got != c.want {
			t.Errorf("%s %s: got %v, want %v", c.method, c.path, got, c.want)
		}
	}
}

// TestScripts runs testdata/parse.txt, stream.txt and splice.txt: bodies in,
// what was read, the canonical streams, or the edited body out.
func TestScripts(t *testing.T) {
	for _, file := range []string{"parse.txt", "stream.txt", "splice.txt"} {
		datadriven.RunTest(t, "testdata/"+file, func(t *testing.T, d *datadriven.TestData) string {
			api := APIChat
			if d.HasArg("completions") {
				api = APICompletions
			}
			r, err := Parse(api, []byte(d.Input))
			if err != nil {
				return showError(t, err)
			}
			switch d.Cmd {
			case "parse":
				return showRequest(r)
			case "stream":
				return showStreams(r)
			case "splice":
				return string(r.Splice(scriptEdits(d)...))
			case "prefill":
				return string(r.Splice(r.PrefillEdits(nil)...))
			default:
				d.Fatalf(t, "unknown command")
				return ""
			}
		})
	}
}

// scriptEdits are the arguments "set=(name,value)" and "del=name" in order.
func scriptEdits(d *datadriven.TestData) []Edit {
	var edits []Edit
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "set":
			edits = append(edits, Edit{Name: a.Vals[0], Value: []byte(a.Vals[1])})
		case "del":
			edits = append(edits, Edit{Name: a.Vals[0]})
		}
	}
	return edits
}

func showError(t *testing.T, err error) string {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("not an *Error: %v", err)
	}
	return fmt.Sprintf("%s\n%s", e, ErrorBody(e))
}

func showStreams(r *Request) string {
	var sb strings.Builder
	for i, s := range streams(r) {
		if i > 0 {
			sb.WriteString("--\n")
		}
		if r.API == APIChat {
			sb.WriteString(readable(s))
			continue
		}
		fmt.Fprintf(&sb, "%q\n", s)
	}
	return sb.String()
}

func showRequest(r *Request) string {
	var sb strings.Builder
	fmt.Fprintf(&sb, "model=%q n=%d max=%d min=%d", r.Model, r.N, r.MaxTokens, r.MinTokens)
	for _, f := range []struct {
		name string
		on   bool
	}{{"stream", r.Stream}, {"usage", r.IncludeUsage}, {"ids", r.ReturnTokenIDs}, {"ignore_eos", r.IgnoreEOS}} {
		if f.on {
			sb.WriteString(" " + f.name)
		}
	}
	if r.CacheSalt != "" {
		fmt.Fprintf(&sb, " salt=%q", r.CacheSalt)
	}
	if r.SamplingSeed != nil {
		fmt.Fprintf(&sb, " seed=%d", *r.SamplingSeed)
	}
	fmt.Fprintf(&sb, "\ntexts=%d messages=%d tokens=%v", r.TextPrompts, r.Messages, r.TokenPrompts)
	for _, m := range r.Chat() {
		fmt.Fprintf(&sb, "\n%s %q name=%q media=%d", m.Role, m.Text, m.Name, m.Media)
	}
	for _, s := range r.Texts() {
		fmt.Fprintf(&sb, "\n%q", s)
	}
	return sb.String()
}

// TestListPrompts is case C01: valid lists are read one by one, others are
// refused with the element at fault.
func TestListPrompts(t *testing.T) {
	lines := caseLines(t, "C01-bodies.jsonl")
	want := []struct {
		texts int
		param string
	}{{1, ""}, {2, ""}, {2, ""}, {0, "prompt"}, {1, ""}, {2, ""}, {0, "prompt[1]"}, {0, "prompt[1]"}, {300, ""}}
	if len(lines) != len(want) {
		t.Fatalf("got %d lines, want %d", len(lines), len(want))
	}
	for i, l := range lines {
		r, err := Parse(APICompletions, l)
		if e, ok := errors.AsType[*Error](err); ok {
			if want[i].param != e.Param || e.Status != 400 {
				t.Errorf("line %d: got %d on %q, want 400 on %q", i+1, e.Status, e.Param, want[i].param)
			}
			continue
		}
		if got := len(r.Hashers(1)); got != want[i].texts {
			t.Errorf("line %d: got %d prompts, want %d", i+1, got, want[i].texts)
		}
	}
	// The prompts of lines 2 and 3 are the same two in another order.
	a, b := streams(mustParse(t, APICompletions, string(lines[1]))), streams(mustParse(t, APICompletions, string(lines[2])))
	if a[0] != b[1] || a[1] != b[0] {
		t.Errorf("prompts depend on their place: %q and %q", a, b)
	}
}

func TestDeepBody(t *testing.T) {
	for _, depth := range []int{1_000, 100_000} {
		body := `{"prompt":"x","deep":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}`
		_, err := Parse(APICompletions, []byte(body))
		if e, ok := errors.AsType[*Error](err); ok != (depth > 10_000) || ok && (e.Status != 400 || len(e.Message) > 300) {
			t.Errorf("depth %d: got %v", depth, err)
		}
	}
}

func TestMember(t *testing.T) {
	r := mustParse(t, APICompletions, `{"prompt":"x","k":1,"\u006b": [ 2 ]}`)
	if got := string(r.Member("k")); got != "[ 2 ]" {
		t.Errorf("got %q", got)
	}
	if r.Member("absent") != nil {
		t.Error("got a member that is not there")
	}
}

// TestManyPrompts: the number of prompts is bounded, and so is their memory.
func TestManyPrompts(t *testing.T) {
	for _, prompt := range []string{`""`, `[1]`} {
		for _, n := range []int{maxPrompts, maxPrompts + 1} {
			_, err := Parse(APICompletions, []byte(`{"prompt":[`+strings.Repeat(prompt+",", n-1)+prompt+`]}`))
			if (err == nil) != (n == maxPrompts) {
				t.Errorf("%d prompts %s: %v", n, prompt, err)
			}
		}
	}
}
