package simserver

import (
	"context"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvlane/kvlane/workers/engine/sim"
)

// answerID is the id of the answer: the client's request id behind vLLM's
// prefix for the endpoint.
func (j *job) answerID() string {
	if j.chat {
		return "chatcmpl-" + j.id
	}
	return "cmpl-" + j.id
}

// answer is the unary answer of either endpoint, its members in vLLM's order
// and its nulls where vLLM has them.
type answer struct {
	ID          string          `json:"id"`
	Object      string          `json:"object"`
	Created     int64           `json:"created"`
	Model       string          `json:"model"`
	Choices     []any           `json:"choices"`
	ServiceTier *string         `json:"service_tier"`
	Fingerprint *string         `json:"system_fingerprint"`
	Usage       usage           `json:"usage"`
	PromptIDs   *jsontext.Value `json:"prompt_token_ids,omitzero"` // chat only; null without return_token_ids
	Transfer    *transferAnswer `json:"kv_transfer_params"`
}

type chatChoice struct {
	Index      int         `json:"index"`
	Message    chatMessage `json:"message"`
	LogProbs   *string     `json:"logprobs"`
	Finish     string      `json:"finish_reason"`
	StopReason *string     `json:"stop_reason"`
	TokenIDs   idList      `json:"token_ids"`
}

type chatMessage struct {
	Role         string  `json:"role"`
	Content      string  `json:"content"`
	Refusal      *string `json:"refusal"`
	Annotations  *string `json:"annotations"`
	Audio        *string `json:"audio"`
	FunctionCall *string `json:"function_call"`
	Reasoning    *string `json:"reasoning"`
}

type textChoice struct {
	Index          int     `json:"index"`
	Text           string  `json:"text"`
	LogProbs       *string `json:"logprobs"`
	Finish         string  `json:"finish_reason"`
	StopReason     *string `json:"stop_reason"`
	TokenIDs       idList  `json:"token_ids"`
	PromptLogProbs *string `json:"prompt_logprobs"`
	PromptIDs      idList  `json:"prompt_token_ids"`
}

// idList is a list of token ids, null where it was not asked for.
type idList []uint32

// MarshalJSON writes the list without reflection.
func (l idList) MarshalJSON() ([]byte, error) {
	if l == nil {
		return []byte("null"), nil
	}
	return appendIDs(make([]byte, 0, 6*len(l)+2), l), nil
}

// unary waits for all choices and answers once.
func (run *run) unary(ctx context.Context, w http.ResponseWriter) error {
	var items []item
	var err error
	for run.open > 0 {
		if items, err = run.take(ctx, items); err != nil {
			return err
		}
	}
	j := run.job
	a := answer{ID: j.answerID(), Object: "text_completion", Created: j.created, Model: j.model, Usage: run.usage()}
	if j.chat {
		a.Object = "chat.completion"
		ids := jsontext.Value("null")
		if j.ReturnTokenIDs {
			ids = appendIDs(nil, j.prompts[0])
		}
		a.PromptIDs = &ids
	}
	for i := range run.choices {
		a.Choices = append(a.Choices, run.choice(i))
	}
	if c := &run.choices[0]; run.holds != nil && c.stopString == "" && c.finish != sim.Aborted {
		a.Transfer = run.s.handOff(run.requests[0].ID, run.holds[0])
	}
	return writeJSON(w, http.StatusOK, a)
}

// choice is choice i as the endpoint writes it.
func (run *run) choice(i int) any {
	j, c := run.job, &run.choices[i]
	var stopReason *string
	if c.stopString != "" {
		stopReason = &c.stopString
	}
	var ids, promptIDs idList
	if j.ReturnTokenIDs {
		ids, promptIDs = c.tokens, j.prompts[i/j.n]
	}
	if j.chat {
		return chatChoice{
			Index: i, Message: chatMessage{Role: "assistant", Content: string(c.text)},
			Finish: string(c.finish), StopReason: stopReason, TokenIDs: ids,
		}
	}
	return textChoice{
		Index: i, Text: string(c.text), Finish: string(c.finish), StopReason: stopReason, TokenIDs: ids, PromptIDs: promptIDs,
	}
}
