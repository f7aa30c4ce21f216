package openai

import "slices"

// Edit changes one top-level member of a body.
type Edit struct {
	// Name is the member's name, unescaped.
	Name string
	// Value is the member's new raw JSON value; nil removes the member.
	Value []byte
}

// noPrefill is what vLLM's NIXL connector is told when a prompt's KV is to be
// fetched by another worker. The nulls are the keys its connector reads.
const noPrefill = `{"do_remote_decode": true, "do_remote_prefill": false, ` +
	`"remote_engine_id": null, "remote_block_ids": null, "remote_host": null, "remote_port": null}`

// Splice is the body with these members changed: a value is replaced where it
// stands (in every repetition, so that it does not matter which one a reader
// takes), a member that is not there is added behind the last one, a removed
// one goes with its comma. Every other byte is the client's. Of several edits
// of one member the last counts. The result shares no memory with Body unless
// there is nothing to change; Body is returned as it is for APINone.
func (r *Request) Splice(edits ...Edit) []byte {
	if r.API == APINone || len(edits) == 0 {
		return r.Body
	}
	return spliceObject(r.Body, edits)
}

func spliceObject(obj []byte, edits []Edit) []byte {
	size := len(obj)
	for _, e := range edits {
		size += len(e.Name) + len(e.Value) + len(`, "": `)
	}
	out := make([]byte, 0, size)
	found := make([]bool, len(edits))
	open := skipSpace(obj, 0) + 1
	last := open // end of the last member in obj
	kept := -1   // end of the last member written to out
	for m := range members(obj) {
		if last == open {
			out = append(out, obj[:m.start]...)
		}
		last = m.end
		e := findEdit(edits, m.name(obj))
		if e >= 0 {
			found[e] = true
			if edits[e].Value == nil {
				continue
			}
		}
		if kept >= 0 {
			out = append(out, separator(obj, kept)...)
		}
		if kept = m.end; e < 0 {
			out = append(out, obj[m.start:m.end]...)
			continue
		}
		out = append(append(out, obj[m.start:m.value]...), edits[e].Value...)
	}
	if last == open { // an empty object
		out = append(out, obj[:open]...)
	}
	out = insert(out, edits, found, kept >= 0)
	return append(out, obj[last:]...)
}

// findEdit is the index of the last edit of a member, or -1.
func findEdit(edits []Edit, name []byte) int {
	for i, e := range slices.Backward(edits) {
		if e.Name == string(name) {
			return i
		}
	}
	return -1
}

// separator is the comma behind the member that ends at i, with its space.
func separator(obj []byte, i int) []byte {
	comma := skipSpace(obj, i)
	return obj[i:skipSpace(obj, comma+1)]
}

// insert adds the members that the object did not have.
func insert(out []byte, edits []Edit, found []bool, comma bool) []byte {
	for i, e := range edits {
		if found[i] || e.Value == nil || findEdit(edits, []byte(e.Name)) != i {
			continue
		}
		if comma {
			out = append(out, ", "...)
		}
		out = append(appendQuoted(out, e.Name), ": "...)
		out = append(out, e.Value...)
		comma = true
	}
	return out
}

// PrefillEdits make of the client's request one that fills the cache and
// answers one token at once: no stream, one token by either name of the limit,
// no minimum above it. kvParams is the raw kv_transfer_params for the engine;
// nil asks vLLM to keep the blocks for another worker.
func (r *Request) PrefillEdits(kvParams []byte) []Edit {
	if kvParams == nil {
		kvParams = []byte(noPrefill)
	}
	one := []byte("1")
	edits := []Edit{
		{Name: "max_tokens", Value: one},
		{Name: "max_completion_tokens", Value: one},
		{Name: "min_tokens"},
		{Name: "stream_options"},
		{Name: "kv_transfer_params", Value: kvParams},
	}
	if r.Member("stream") != nil {
		edits = append(edits, Edit{Name: "stream", Value: []byte("false")})
	}
	return edits
}

// DecodeEdits add to the client's request where the prompt's KV lies: kvParams
// as the prefill answer gave it.
func (r *Request) DecodeEdits(kvParams []byte) []Edit {
	return []Edit{{Name: "kv_transfer_params", Value: kvParams}}
}
