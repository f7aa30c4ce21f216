package simserver

import (
	"net/http"

	"github.com/go-json-experiment/json/jsontext"
)

// tokenizeRequest is the body of /tokenize: a prompt, or messages as in a chat.
type tokenizeRequest struct {
	chatPrompt
	Model      string  `json:"model"`
	Prompt     *string `json:"prompt"`
	ReturnStrs bool    `json:"return_token_strs"`
}

type tokenizeAnswer struct {
	Count       int       `json:"count"`
	MaxModelLen int       `json:"max_model_len"`
	Tokens      []uint32  `json:"tokens"`
	Strs        *[]string `json:"token_strs"`
}

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) error {
	var in tokenizeRequest
	if err := s.decode(w, r, &in); err != nil {
		return err
	}
	if _, _, err := s.models.resolve(in.Model); err != nil {
		return err
	}
	var ids []uint32
	if in.Prompt != nil {
		ids = s.tok.Encode(*in.Prompt)
	} else {
		text, err := in.render()
		if err != nil {
			return err
		}
		ids = s.tok.EncodeSpecial(text)
	}
	out := tokenizeAnswer{Count: len(ids), MaxModelLen: s.cfg.MaxModelLen, Tokens: ids}
	if in.ReturnStrs {
		strs := make([]string, len(ids))
		for i, id := range ids {
			strs[i] = s.tok.Text(id)
		}
		out.Strs = &strs
	}
	return writeJSON(w, http.StatusOK, out)
}

type detokenizeRequest struct {
	Model  string   `json:"model"`
	Tokens []uint32 `json:"tokens"`
}

type detokenizeAnswer struct {
	Prompt string `json:"prompt"`
}

func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) error {
	var in detokenizeRequest
	if err := s.decode(w, r, &in); err != nil {
		return err
	}
	if _, _, err := s.models.resolve(in.Model); err != nil {
		return err
	}
	if err := s.checkIDs([][]uint32{in.Tokens}); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, detokenizeAnswer{s.tok.Decode(in.Tokens)})
}

// renderAnswer is vLLM's GenerateRequest, as far as a client of the render
// endpoints reads it: the token ids and what would be generated.
type renderAnswer struct {
	RequestID string         `json:"request_id"`
	TokenIDs  []uint32       `json:"token_ids"`
	Features  jsontext.Value `json:"features"`
	Sampling  renderSampling `json:"sampling_params"`
	Model     string         `json:"model"`
	Stream    bool           `json:"stream"`
	CacheSalt *string        `json:"cache_salt"`
	Priority  int            `json:"priority"`
}

type renderSampling struct {
	N         int  `json:"n"`
	MaxTokens int  `json:"max_tokens"`
	MinTokens int  `json:"min_tokens"`
	IgnoreEOS bool `json:"ignore_eos"`
}

func (j *job) rendered(ids []uint32) renderAnswer {
	return renderAnswer{
		RequestID: j.answerID(), TokenIDs: ids, Features: jsontext.Value("null"), Model: j.model, Stream: j.Stream, CacheSalt: j.CacheSalt,
		Sampling: renderSampling{N: j.n, MaxTokens: j.max, MinTokens: j.MinTokens, IgnoreEOS: j.IgnoreEOS},
	}
}

func (s *Server) renderChat(w http.ResponseWriter, r *http.Request) error {
	j, err := s.chatJob(w, r)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, j.rendered(j.prompts[0]))
}

func (s *Server) renderCompletion(w http.ResponseWriter, r *http.Request) error {
	j, err := s.completionJob(w, r)
	if err != nil {
		return err
	}
	out := make([]renderAnswer, len(j.prompts))
	for i, p := range j.prompts {
		out[i] = j.rendered(p)
	}
	return writeJSON(w, http.StatusOK, out)
}
