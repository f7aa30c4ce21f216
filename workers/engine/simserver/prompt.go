package simserver

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvlane/kvlane/workers/engine/bpe"
)

// ChatTokens is the prompt that the engine makes of the body of a chat request:
// its template, then its tokenizer. It fails where the engine would answer 400.
func ChatTokens(tok *bpe.Tokenizer, body []byte) ([]uint32, error) {
	var in chatPrompt
	if err := json.Unmarshal(body, &in, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return nil, fmt.Errorf("read chat request: %w", err)
	}
	text, err := in.render()
	if err != nil {
		return nil, fmt.Errorf("render chat request: %w", err)
	}
	return tok.EncodeSpecial(text), nil
}
