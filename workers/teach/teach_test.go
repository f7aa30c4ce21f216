package teach_test

import (
	"slices"
	"testing"

	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/workers/teach"
)

// A long prompt of which the last part fills no chunk.
const body = `{"model":"m","messages":[{"role":"user","content":"one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"}]}`

func pupil(t *testing.T, body string) *teach.Pupil {
	t.Helper()
	req, err := openai.Parse(openai.APIChat, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if !teach.Wants(req) {
		t.Fatal("a text teaches nothing")
	}
	return teach.New(req, "secret", kvindex.Namespace{Model: "m", BlockSize: 4})
}

func ids(from, to uint32) []uint32 {
	var list []uint32
	for i := from; i < to; i++ {
		list = append(list, i)
	}
	return list
}

// TestReply: prompt and answer are a lesson only where the client's text stands
// for exactly the generated ids.
func TestReply(t *testing.T) {
	plain := openai.Choice{Text: "yes", TokenIDs: []uint32{7, 8}, Finish: "stop", Plain: true}
	with := func(change func(*openai.Choice)) openai.Choice {
		c := plain
		change(&c)
		return c
	}
	for _, test := range []struct {
		name, body string
		choices    []openai.Choice
		want       bool
	}{
		{"plain", body, []openai.Choice{plain}, true},
		{"cut off", body, []openai.Choice{with(func(c *openai.Choice) { c.Finish = "length" })}, true},
		{"aborted", body, []openai.Choice{with(func(c *openai.Choice) { c.Finish = "abort" })}, false},
		{"reasoning", body, []openai.Choice{with(func(c *openai.Choice) { c.Plain = false })}, false},
		{"no ids", body, []openai.Choice{with(func(c *openai.Choice) { c.TokenIDs = nil })}, false},
		{"two choices", body, []openai.Choice{plain, plain}, false},
		{"stop string", `{"stop":["x"],` + body[1:], []openai.Choice{plain}, false},
		{"no stop string", `{"stop":[],` + body[1:], []openai.Choice{plain}, true},
		{"n of 2", `{"n":2,` + body[1:], []openai.Choice{plain}, false},
	} {
		p := pupil(t, test.body)
		a := &openai.Answer{Choices: test.choices}
		if got := p.Prompts(a); got != nil {
			t.Errorf("%s: %d lessons without ids", test.name, len(got))
		}
		a.PromptTokenIDs = ids(100, 130)
		prompts := p.Prompts(a)
		if len(prompts) != 1 || prompts[0].Tokens != 30 || len(prompts[0].Blocks) != 7 || teach.Empty(prompts[0]) {
			t.Fatalf("%s: lessons of the prompt %+v", test.name, prompts)
		}
		d := p.Reply(a)
		if (d != nil) != test.want {
			t.Errorf("%s: lesson of the reply %+v, want one: %t", test.name, d, test.want)
		}
		if d != nil && (d.Tokens != 32 || len(d.Blocks) != 8 || !slices.Equal(d.Blocks[:7], prompts[0].Blocks)) {
			t.Errorf("%s: %+v does not continue %+v", test.name, d, prompts[0])
		}
	}
}

func TestKnown(t *testing.T) {
	p := pupil(t, body)
	d := p.Prompts(&openai.Answer{PromptTokenIDs: ids(100, 130)})[0]
	m := kvindex.NewPrefixMap(1 << 20)
	if teach.Known(m, d) {
		t.Error("known before it was learned")
	}
	m.Learn(d)
	if !teach.Known(m, d) {
		t.Error("not known after it was learned")
	}
	other := p.Prompts(&openai.Answer{PromptTokenIDs: ids(200, 230)})[0]
	if teach.Known(m, other) {
		t.Error("the same text with other tokens is known")
	}
}
