package openai

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// naive reads the members of an object by jsontext alone.
func naive(t *testing.T, obj []byte) (names, values []string) {
	t.Helper()
	dec := jsontext.NewDecoder(bytes.NewReader(obj), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if _, err := dec.ReadToken(); err != nil {
		t.Fatalf("%q: %v", obj, err)
	}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			t.Fatalf("%q: %v", obj, err)
		}
		names = append(names, name.String())
		value, err := dec.ReadValue()
		if err != nil {
			t.Fatalf("%q: %v", obj, err)
		}
		values = append(values, string(value))
	}
	return names, values
}

// FuzzRequest: whatever is read can be hashed and edited. An edited body still
// parses, its other members are untouched, and undoing an edit undoes it.
func FuzzRequest(f *testing.F) {
	for _, name := range []string{"C01-bodies.jsonl", "C03-bodies.jsonl", "C22-more-clients.jsonl"} {
		for _, l := range caseLines(f, name) {
			f.Add(l)
		}
	}
	for _, name := range []string{"C02-bigint.json", "C02-spelling.json", "C04-unknown-fields.json", "C05-body.json"} {
		f.Add(caseFile(f, name))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, api := range []API{APIChat, APICompletions} {
			r, err := Parse(api, bytes.Clone(body))
			if err != nil {
				if e, ok := errors.AsType[*Error](err); !ok || e.Status != 400 || !isValid(ErrorBody(e)) {
					t.Fatalf("%q: got error %v", body, err)
				}
				continue
			}
			checkStreams(t, r)
			for _, edits := range [][]Edit{
				{{Name: "model", Value: []byte(`"b"`)}},
				{{Name: "stream"}, {Name: "new\"\n", Value: []byte("[1]")}},
				{{Name: "messages"}, {Name: "prompt"}},
				r.PrefillEdits(nil), r.DecodeEdits([]byte("{}")),
			} {
				checkSplice(t, r, edits)
			}
			if !bytes.Equal(r.Body, body) {
				t.Fatalf("the body changed: %q, was %q", r.Body, body)
			}
		}
	})
}

// checkStreams hashes the prompts, and compares the text of completions with
// jsontext's reading.
func checkStreams(t *testing.T, r *Request) {
	t.Helper()
	ss, hs := streams(r), r.Hashers(r.Seed("s", "b", "l"))
	if len(ss) != r.TextPrompts || len(hs) != r.TextPrompts || len(r.Chat()) != r.Messages {
		t.Fatalf("%q: %d streams, %d hashers, %d prompts", r.Body, len(ss), len(hs), r.TextPrompts)
	}
	if r.API != APICompletions || !isString(r.prompt) || !utf8.Valid(r.prompt) {
		return
	}
	if want, _ := jsontext.AppendUnquote(nil, r.prompt); string(want) != ss[0] || string(want) != r.Texts()[0] {
		t.Fatalf("%q: got the prompt %q, want %q", r.Body, ss[0], want)
	}
}

func checkSplice(t *testing.T, r *Request, edits []Edit) {
	t.Helper()
	out := r.Splice(edits...)
	if err := validate(out); err != nil {
		t.Fatalf("%q edited to %q: %v", r.Body, out, err)
	}
	var wantNames, wantValues []string
	found := map[string]bool{}
	names, values := naive(t, r.Body)
	for i, n := range names {
		e := findEdit(edits, []byte(n))
		found[n] = true
		switch {
		case e < 0:
			wantNames, wantValues = append(wantNames, n), append(wantValues, values[i])
		case edits[e].Value != nil:
			wantNames, wantValues = append(wantNames, n), append(wantValues, string(edits[e].Value))
		}
	}
	for _, e := range edits {
		if !found[e.Name] && e.Value != nil {
			wantNames, wantValues = append(wantNames, e.Name), append(wantValues, string(e.Value))
		}
	}
	gotNames, gotValues := naive(t, out)
	if !slices.Equal(gotNames, wantNames) || !slices.Equal(gotValues, wantValues) {
		t.Fatalf("%q edited to %q: got %q %q, want %q %q", r.Body, out, gotNames, gotValues, wantNames, wantValues)
	}
}

// FuzzAnswer: an answer without its token ids reads the same but for them.
func FuzzAnswer(f *testing.F) {
	f.Add(caseFile(f, "C10-plain.json"))
	f.Add(caseFile(f, "C22-prefill-answer.json"))
	f.Add([]byte(`{"token_ids":[1],"choices":[{"token_ids":[1],"text":"a","prompt_token_ids":[2]}],"prompt_token_ids":[3]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := ParseAnswer(body)
		stripped := StripTokenIDs(body)
		if err != nil {
			if !bytes.Equal(stripped, body) {
				t.Fatalf("%q is no answer and became %q", body, stripped)
			}
			return
		}
		b, err := ParseAnswer(stripped)
		if err != nil {
			t.Fatalf("%q became %q: %v", body, stripped, err)
		}
		if len(b.PromptTokenIDs) > 0 || len(b.Choices) != len(a.Choices) || b.Skipped != a.Skipped {
			t.Fatalf("%q became %q: got %+v, was %+v", body, stripped, b, a)
		}
		for i, c := range b.Choices {
			if len(c.TokenIDs) > 0 || len(c.PromptTokenIDs) > 0 || c.Text != a.Choices[i].Text {
				t.Fatalf("%q became %q: got %+v, was %+v", body, stripped, c, a.Choices[i])
			}
		}
		if again := StripTokenIDs(stripped); !bytes.Equal(again, stripped) {
			t.Fatalf("%q became %q, then %q", body, stripped, again)
		}
	})
}
