package openai

import (
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// API is one of the engines' HTTP interfaces.
type API uint8

const (
	// APINone is every path that carries no prompt we read.
	APINone API = iota
	// APIChat is POST /v1/chat/completions.
	APIChat
	// APICompletions is POST /v1/completions.
	APICompletions
)

// String is the API's name in logs and metrics.
func (a API) String() string {
	switch a {
	case APIChat:
		return "chat"
	case APICompletions:
		return "completions"
	default:
		return "none"
	}
}

// APIOf names the API of a request line. path has no query.
func APIOf(method, path string) API {
	if method != "POST" {
		return APINone
	}
	switch path {
	case "/v1/chat/completions":
		return APIChat
	case "/v1/completions":
		return APICompletions
	default:
		return APINone
	}
}

// Request is what a body asks for. Its slices are parts of Body or made for
// it; neither may change while the request is in use. A Request is safe for
// concurrent reading.
type Request struct {
	// API is the interface the body was sent to.
	API API
	// Body is the body as the client sent it.
	Body []byte
	// Model is the model's name; empty if the client named none.
	Model string
	// Stream says that the answer is wanted as server-sent events.
	Stream bool
	// IncludeUsage is stream_options.include_usage.
	IncludeUsage bool
	// ReturnTokenIDs says that the client itself wants token ids in the answer.
	ReturnTokenIDs bool
	// IgnoreEOS says that the answer runs to MaxTokens.
	IgnoreEOS bool
	// N is the number of choices per prompt, at least 1.
	N int
	// MaxTokens bounds the answer: max_completion_tokens, else max_tokens; 0 if
	// the client gave neither.
	MaxTokens int
	// MinTokens is the answer's least length in tokens; 0 if not given.
	MinTokens int
	// CacheSalt separates the client's cache from others'; empty for none.
	CacheSalt string
	// SamplingSeed is the seed of random sampling; nil if not given or not an
	// integer of 64 bits.
	SamplingSeed *int64
	// TokenPrompts are the prompts of a completions request that carries token
	// ids, one per prompt; nil if it carries text.
	TokenPrompts [][]uint32
	// TextPrompts is the number of prompts given as text: 1 for chat.
	TextPrompts int
	// Messages is the number of messages of a chat request.
	Messages int

	messages, tools, prompt []byte // raw values; nil if absent
	seedParts               []seedPart
}

// seedPart is a member that changes the rendered prompt without being its text.
type seedPart struct {
	name  string
	value []byte
}

// Parse reads a body. It fails with an *Error of status 400 if the body is not
// JSON, if a member that routing needs has the wrong type, or if there is
// nothing to answer. Of repeated members the last one counts, as it does for
// the engines; unknown members are ignored. With APINone the body is not
// looked at.
func Parse(api API, body []byte) (*Request, error) {
	r := &Request{API: api, Body: body, N: 1}
	if api == APINone {
		return r, nil
	}
	if err := validate(body); err != nil {
		return nil, notJSON(err)
	}
	if !isObject(trim(body)) {
		return nil, BadRequest("invalid_type", "", "The request body must be a JSON object.")
	}
	if err := r.readMembers(); err != nil {
		return nil, err
	}
	if err := r.readPrompt(); err != nil {
		return nil, err
	}
	return r, nil
}

// notJSON turns the decoder's complaint into an error for the client. The
// decoder's path to the fault is left out: it can be as long as the body.
func notJSON(err error) *Error {
	if errors.Is(err, io.EOF) {
		return BadRequest("invalid_json", "", "The request body is empty.")
	}
	if se, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return BadRequest("invalid_json", "", fmt.Sprintf("The request body is not valid JSON: at byte %d: %s.", se.ByteOffset, clip(se.Err.Error())))
	}
	return BadRequest("invalid_json", "", "The request body is not valid JSON: "+clip(err.Error())+".")
}

// readPrompt checks the prompt part, whichever the API has.
func (r *Request) readPrompt() error {
	if r.API == APIChat {
		return r.readMessages()
	}
	return r.readPrompts()
}

func (r *Request) readMessages() error {
	switch {
	case r.messages == nil || isNull(r.messages):
		return missing("messages")
	case !isArray(r.messages):
		return wrongType("messages", "a list of objects")
	}
	for m := range elements(r.messages) {
		if !isObject(m) {
			return wrongType(fmt.Sprintf("messages[%d]", r.Messages), "an object")
		}
		r.Messages++
	}
	if r.Messages == 0 {
		return BadRequest("invalid_value", "messages", "messages must not be empty.")
	}
	r.TextPrompts = 1
	return nil
}

// readPrompts reads the four forms of a completions prompt: a string, a list
// of strings, a list of token ids, a list of lists of token ids.
func (r *Request) readPrompts() error {
	switch {
	case r.prompt == nil || isNull(r.prompt):
		return missing("prompt")
	case isString(r.prompt):
		r.TextPrompts = 1
		return nil
	case !isArray(r.prompt):
		return wrongType("prompt", "a string, a list of strings, or a list of token ids")
	}
	for e := range elements(r.prompt) {
		switch e[0] {
		case '"':
			return r.readTexts()
		case '[':
			return r.readTokenLists()
		default:
			ids, err := tokenIDs("prompt", r.prompt)
			r.TokenPrompts = [][]uint32{ids}
			return err
		}
	}
	return BadRequest("invalid_value", "prompt", "prompt must not be empty.")
}

// maxPrompts bounds the prompts of one request. Each takes memory of its own
// here, so that a body of empty prompts would take fifty times its size; engines
// take far more for each.
const maxPrompts = 1 << 14

func tooManyPrompts() error {
	return BadRequest("invalid_value", "prompt", fmt.Sprintf("prompt must not have more than %d elements.", maxPrompts))
}

func (r *Request) readTexts() error {
	for e := range elements(r.prompt) {
		if r.TextPrompts == maxPrompts {
			return tooManyPrompts()
		}
		if !isString(e) {
			return wrongType(fmt.Sprintf("prompt[%d]", r.TextPrompts), "a string like the ones before it")
		}
		r.TextPrompts++
	}
	return nil
}

func (r *Request) readTokenLists() error {
	for e := range elements(r.prompt) {
		if len(r.TokenPrompts) == maxPrompts {
			return tooManyPrompts()
		}
		param := fmt.Sprintf("prompt[%d]", len(r.TokenPrompts))
		if !isArray(e) {
			return wrongType(param, "a list of token ids like the ones before it")
		}
		ids, err := tokenIDs(param, e)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return BadRequest("invalid_value", param, param+" must not be empty.")
		}
		r.TokenPrompts = append(r.TokenPrompts, ids)
	}
	return nil
}

// Member is the raw value of a top-level member, of several the last; nil if
// there is none. It searches the body.
func (r *Request) Member(name string) []byte {
	if r.API == APINone {
		return nil
	}
	var v []byte
	for m := range members(r.Body) {
		if string(m.name(r.Body)) == name {
			v = m.raw(r.Body)
		}
	}
	return v
}
