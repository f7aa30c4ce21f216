package openai

import (
	"testing"
)

func TestModelIn(t *testing.T) {
	for _, c := range []struct {
		beginning, want string
		ok              bool
	}{
		{`{"model":"m"`, "m", true},
		{` {"prompt":"\"model\":\"x\"", "model" : "m\u0041", "x":`, "mA", true},
		{`{"model":"m","model":"n","prompt":"a b`, "n", true},
		{`{"a":{"model":"x"},"b":["model","x"],"model":"m"}`, "m", true},
		{`{"model":"m`, "", false},
		{`{"model":null,"prompt"`, "", false},
		{`{"prompt":"a`, "", false},
		{`["model","m"]`, "", false},
		{``, "", false},
		{`{`, "", false},
		{`{"a":1 "model":"m"}`, "", false},
	} {
		if got, ok := ModelIn([]byte(c.beginning)); got != c.want || ok != c.ok {
			t.Errorf("%s: got %q %v, want %q %v", c.beginning, got, ok, c.want, c.ok)
		}
	}
}

// Of a whole body ModelIn says what Parse says, whatever is cut off it makes no panic.
func FuzzModelIn(f *testing.F) {
	f.Add([]byte(`{"model":"alias","prompt":"x"}`), 20)
	f.Add([]byte(`{"a":[{"model":"x"}],"model":"\ud83d\ude00","model":"n","prompt":"x"}`), 3)
	f.Fuzz(func(t *testing.T, body []byte, cut int) {
		if r, err := Parse(APICompletions, body); err == nil && r.Model != "" {
			if got, ok := ModelIn(body); !ok || got != r.Model {
				t.Fatalf("got %q %v, want %q", got, ok, r.Model)
			}
		}
		ModelIn(body[:min(max(cut, 0), len(body))])
	})
}
