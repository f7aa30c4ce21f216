package openai

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// maxSeedParts bounds the members collected for the seed; templates take a
// handful.
const maxSeedParts = 64

// readMembers takes the known top-level members out of the body.
func (r *Request) readMembers() error {
	var maxTokens, maxCompletionTokens int
	for m := range members(r.Body) {
		name, v := m.name(r.Body), m.raw(r.Body)
		var err error
		switch string(name) {
		case "model":
			r.Model, err = readString("model", v)
		case "cache_salt":
			r.CacheSalt, err = readString("cache_salt", v)
		case "stream":
			r.Stream, err = readBool("stream", v)
		case "stream_options":
			r.IncludeUsage, err = readIncludeUsage(v)
		case "return_token_ids":
			r.ReturnTokenIDs, err = readBool("return_token_ids", v)
		case "ignore_eos":
			r.IgnoreEOS, err = readBool("ignore_eos", v)
		case "n":
			r.N, err = readInt("n", v, 1)
		case "max_tokens":
			maxTokens, err = readInt("max_tokens", v, 0)
		case "max_completion_tokens":
			maxCompletionTokens, err = readInt("max_completion_tokens", v, 0)
		case "min_tokens":
			r.MinTokens, err = readInt("min_tokens", v, 0)
		case "seed":
			r.SamplingSeed, err = readSeed(v)
		case "messages":
			r.messages = v
		case "tools":
			r.tools = v
		case "prompt":
			r.prompt = v
		default:
			err = r.addSeedPart(name, v)
		}
		if err != nil {
			return err
		}
	}
	r.MaxTokens = maxCompletionTokens
	if r.MaxTokens == 0 {
		r.MaxTokens = maxTokens
	}
	return nil
}

// addSeedPart keeps a member that changes how the prompt is rendered.
func (r *Request) addSeedPart(name, v []byte) error {
	switch s := string(name); s {
	case "reasoning_effort", "documents", "tool_choice", "add_generation_prompt", "continue_final_message",
		"truncate_prompt_tokens", "add_special_tokens", "mm_processor_kwargs", "media_io_kwargs":
	default:
		if !strings.HasPrefix(s, "chat_template") {
			return nil
		}
	}
	for i := range r.seedParts {
		if r.seedParts[i].name == string(name) {
			r.seedParts[i].value = v
			return nil
		}
	}
	if len(r.seedParts) == maxSeedParts {
		return BadRequest("invalid_value", clip(string(name)), fmt.Sprintf("The body has more than %d template options.", maxSeedParts))
	}
	r.seedParts = append(r.seedParts, seedPart{name: string(name), value: v})
	return nil
}

func missing(param string) *Error {
	return BadRequest("missing_field", param, param+" is required.")
}

func wrongType(param, want string) *Error {
	return BadRequest("invalid_type", param, param+" must be "+want+".")
}

func readString(param string, v []byte) (string, error) {
	switch {
	case isNull(v):
		return "", nil
	case isString(v):
		return string(unquote(v)), nil
	}
	return "", wrongType(param, "a string")
}

func readBool(param string, v []byte) (bool, error) {
	switch v[0] {
	case 'n', 'f':
		return false, nil
	case 't':
		return true, nil
	}
	return false, wrongType(param, "true or false")
}

func readIncludeUsage(v []byte) (bool, error) {
	if isNull(v) {
		return false, nil
	}
	if !isObject(v) {
		return false, wrongType("stream_options", "an object")
	}
	var on bool
	for m := range members(v) {
		if string(m.name(v)) != "include_usage" {
			continue
		}
		var err error
		if on, err = readBool("stream_options.include_usage", m.raw(v)); err != nil {
			return false, err
		}
	}
	return on, nil
}

// readInt reads a number of at least least, which also stands for null. 4.0 and
// 4e0 are 4: engines take them.
func readInt(param string, v []byte, least int) (int, error) {
	if isNull(v) {
		return least, nil
	}
	i, ok := whole(v)
	if !ok {
		return 0, wrongType(param, "an integer")
	}
	if i < int64(least) || i > math.MaxInt32 {
		return 0, BadRequest("invalid_value", param, fmt.Sprintf("%s must be between %d and %d.", param, least, math.MaxInt32))
	}
	return int(i), nil
}

// readSeed is lenient: an engine may take integers that we cannot hold.
func readSeed(v []byte) (*int64, error) {
	if isNull(v) {
		return nil, nil //nolint:nilnil // no seed is no error
	}
	if c := v[0]; c != '-' && (c < '0' || c > '9') {
		return nil, wrongType("seed", "an integer")
	}
	i, ok := whole(v)
	if !ok {
		return nil, nil //nolint:nilnil // left to the engine
	}
	return &i, nil
}

// whole is the value of a JSON number that is an integer, however it is spelt.
func whole(v []byte) (int64, bool) {
	if i, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return i, true
	}
	if c := v[0]; c != '-' && (c < '0' || c > '9') {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(v), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

// tokenIDs reads a list of token ids.
func tokenIDs(param string, arr []byte) ([]uint32, error) {
	ids := []uint32{}
	for e := range elements(arr) {
		id, ok := tokenID(e)
		if !ok {
			return nil, wrongType(fmt.Sprintf("%s[%d]", param, len(ids)), "a token id (an integer from 0 to 4294967295)")
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// tokenID is strconv.ParseUint without a string for every token.
func tokenID(v []byte) (uint32, bool) {
	if len(v) > 10 {
		return 0, false
	}
	var n uint64
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return uint32(n), n <= math.MaxUint32
}
