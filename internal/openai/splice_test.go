package openai

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"testing"
)

// TestAlias is cases C02 and C04: nothing but the model's value changes.
func TestAlias(t *testing.T) {
	base := Edit{Name: "model", Value: []byte(`"base"`)}
	for _, name := range []string{"C02-bigint", "C02-spelling"} {
		r := mustParse(t, APICompletions, string(caseFile(t, name+".json")))
		if got, want := r.Splice(base), caseFile(t, name+".want-alias.json"); !bytes.Equal(got, want) {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
		if got := r.Splice(); !bytes.Equal(got, caseFile(t, name+".json")) {
			t.Errorf("%s: changed without an edit", name)
		}
	}
	body := caseFile(t, "C04-unknown-fields.json")
	r := mustParse(t, APIChat, string(body))
	want := bytes.Replace(body, []byte(`"alias"`), []byte(`"base"`), 1)
	if got := r.Splice(base); !bytes.Equal(got, want) {
		t.Errorf("C04: got %s, want %s", got, want)
	}
	want = bytes.Replace(body, []byte(`_tokens": 8}`), []byte(`_tokens": 8, "return_token_ids": true}`), 1)
	if got := r.Splice(Edit{Name: "return_token_ids", Value: []byte("true")}); !bytes.Equal(got, want) {
		t.Errorf("C04: got %s, want %s", got, want)
	}
}

// decode reads JSON into a naive form, numbers as they are spelt.
func decode(t testing.TB, b []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("decode %s: %v", clip(string(b)), err)
	}
	return v
}

// TestPrefill is case C22: what the prefill leg is sent.
func TestPrefill(t *testing.T) {
	clients := append([][]byte{caseFile(t, "C22-client.json")}, caseLines(t, "C22-more-clients.jsonl")...)
	for _, client := range clients {
		api := APIChat
		if bytes.Contains(client, []byte(`"prompt"`)) {
			api = APICompletions
		}
		r := mustParse(t, api, string(client))
		got, sent := decode(t, r.Splice(r.PrefillEdits(nil)...)), decode(t, client)
		for _, rule := range caseLines(t, "C22-want-prefill.jsonl") {
			checkRule(t, decode(t, rule), sent, got)
		}
		for _, f := range []string{"stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "kv_transfer_params"} {
			delete(got, f)
			delete(sent, f)
		}
		if !reflect.DeepEqual(got, sent) {
			t.Errorf("%s: other members changed: %v", client, got)
		}
	}
}

// checkRule checks one line of C22-want-prefill.jsonl.
func checkRule(t *testing.T, rule, sent, got map[string]any) {
	t.Helper()
	name, _ := rule["field"].(string)
	var value any
	var there bool
	switch name {
	case "kv_transfer_params.do_remote_decode", "kv_transfer_params.do_remote_prefill":
		params, _ := got["kv_transfer_params"].(map[string]any)
		value, there = params[name[len("kv_transfer_params."):]]
	default:
		value, there = got[name]
	}
	want, ok := rule["want"].([]any)
	if !ok || name == "seed" {
		if !reflect.DeepEqual(value, sent[name]) {
			t.Errorf("%s: got %v, want it as sent: %v", name, value, sent[name])
		}
		return
	}
	if !there {
		value = "absent"
	}
	if !slices.ContainsFunc(want, func(w any) bool { return reflect.DeepEqual(w, value) }) {
		t.Errorf("%s: got %v, want one of %v", name, value, want)
	}
}

// TestDecode is case C22: the decode leg is sent the client's bytes and the
// prefill answer's transfer data, with its unknown members.
func TestDecode(t *testing.T) {
	a, err := ParseAnswer(caseFile(t, "C22-prefill-answer.json"))
	if err != nil {
		t.Fatal(err)
	}
	r := mustParse(t, APIChat, string(caseFile(t, "C22-client.json")))
	if got, want := r.Splice(r.DecodeEdits(a.KVTransferParams)...), caseFile(t, "C22-want-decode.json"); !bytes.Equal(got, want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestSpliceOfAnUnreadBody(t *testing.T) {
	r := mustParse(t, APINone, "not JSON")
	if got := r.Splice(Edit{Name: "model", Value: []byte("1")}); string(got) != "not JSON" {
		t.Errorf("got %q", got)
	}
}
