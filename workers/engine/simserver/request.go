package simserver

import (
	"fmt"
	"math"
	"net/http"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/workers/engine/sim"
)

// maxChoices bounds n, as vLLM's VLLM_MAX_N_SEQUENCES does by default.
const maxChoices = 16384

// completionMaxTokens is the legacy endpoint's default max_tokens.
const completionMaxTokens = 16

// sampling are the members that both endpoints share.
type sampling struct {
	Model            string          `json:"model"`
	MaxTokens        *int            `json:"max_tokens"`
	MinTokens        int             `json:"min_tokens"`
	N                *int            `json:"n"`
	Seed             *int64          `json:"seed"`
	Temperature      *float64        `json:"temperature"`
	TopP             *float64        `json:"top_p"`
	TopK             *int            `json:"top_k"`
	MinP             *float64        `json:"min_p"`
	PresencePenalty  *float64        `json:"presence_penalty"`
	FrequencyPenalty *float64        `json:"frequency_penalty"`
	Stop             stopList        `json:"stop"`
	IncludeStop      bool            `json:"include_stop_str_in_output"`
	IgnoreEOS        bool            `json:"ignore_eos"`
	Stream           bool            `json:"stream"`
	StreamOptions    *streamOptions  `json:"stream_options"`
	ReturnTokenIDs   bool            `json:"return_token_ids"`
	CacheSalt        *string         `json:"cache_salt"`
	Echo             bool            `json:"echo"`
	UseBeamSearch    bool            `json:"use_beam_search"`
	Transfer         *transferParams `json:"kv_transfer_params"`
}

type streamOptions struct {
	IncludeUsage    bool `json:"include_usage"`
	ContinuousUsage bool `json:"continuous_usage_stats"`
}

// stopList is one string or a list of them.
type stopList []string

// UnmarshalJSON reads either form.
func (l *stopList) UnmarshalJSON(b []byte) error {
	var list []string
	var err error
	if jsontext.Value(b).Kind() == '"' {
		list = make([]string, 1)
		err = json.Unmarshal(b, &list[0])
	} else {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		return badRequest("stop", "stop: want a string or a list of strings.")
	}
	if slices.Contains(list, "") {
		return badRequest("stop", "stop cannot contain an empty string.")
	}
	*l = list
	return nil
}

// job is a request that was found good.
type job struct {
	sampling
	id      string // of the answer
	created int64
	chat    bool
	model   string
	lora    string
	prompts [][]uint32
	n       int // choices for each prompt
	max     int // tokens for each choice
	salt    string
}

// choices is the number of sequences.
func (j *job) choices() int { return len(j.prompts) * j.n }

// newJob checks the shared members. fallback is max_tokens where none is
// given; 0 for what the model's length leaves.
func (s *Server) newJob(r *http.Request, in *sampling, prompts [][]uint32, fallback int) (*job, error) {
	j := &job{sampling: *in, prompts: prompts, n: 1, created: s.now().Unix()}
	var err error
	if j.model, j.lora, err = s.models.resolve(in.Model); err != nil {
		return nil, err
	}
	if in.N != nil {
		j.n = *in.N
	}
	if in.CacheSalt != nil {
		if j.salt = *in.CacheSalt; j.salt == "" {
			return nil, badRequest("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
		}
	}
	if err := in.check(j.n); err != nil {
		return nil, err
	}
	if err := s.checkLengths(j, fallback); err != nil {
		return nil, err
	}
	j.id = r.Header.Get("X-Request-Id")
	if j.id == "" {
		j.id = s.newID()
	}
	return j, nil
}

// check refuses what vLLM's SamplingParams refuses, and what is not simulated.
func (in *sampling) check(n int) error {
	inside := func(name string, v *float64, low, high float64, want string) error {
		if v != nil && !(*v >= low && *v <= high) {
			return badRequest(name, "%s must be %s, got %v.", name, want, *v)
		}
		return nil
	}
	for _, err := range []error{
		inside("presence_penalty", in.PresencePenalty, -2, 2, "in [-2, 2]"),
		inside("frequency_penalty", in.FrequencyPenalty, -2, 2, "in [-2, 2]"),
		inside("temperature", in.Temperature, 0, math.MaxFloat64, "non-negative"),
		inside("min_p", in.MinP, 0, 1, "in [0, 1]"),
		inside("top_p", in.TopP, math.SmallestNonzeroFloat64, 1, "in (0, 1]"),
	} {
		if err != nil {
			return err
		}
	}
	switch {
	case n < 1:
		return badRequest("n", "n must be at least 1, got %d.", n)
	case n > maxChoices:
		return badRequest("n", "n must be at most %d, got %d.", maxChoices, n)
	case n > 1 && in.greedy():
		return badRequest("n", "n must be 1 when using greedy sampling, got %d.", n)
	case in.TopK != nil && *in.TopK < -1:
		return badRequest("top_k", "top_k must be 0 (disable), or at least 1, got %d.", *in.TopK)
	case in.MinTokens < 0:
		return badRequest("min_tokens", "min_tokens must be greater than or equal to 0, got %d.", in.MinTokens)
	case in.StreamOptions != nil && !in.Stream:
		return badRequest("stream_options", "Stream options can only be defined when `stream=True`.")
	case in.UseBeamSearch:
		return badRequest("use_beam_search", "Beam search is not simulated.")
	case in.Echo:
		return badRequest("echo", "Echoing the prompt is not simulated.")
	}
	return nil
}

func (in *sampling) greedy() bool { return in.Temperature != nil && *in.Temperature == 0 }

// checkLengths sets the number of tokens to generate.
func (s *Server) checkLengths(j *job, fallback int) error {
	longest := 0
	for _, p := range j.prompts {
		longest = max(longest, len(p))
		if len(p) == 0 {
			return badRequest("prompt", "The prompt is empty.")
		}
	}
	limit := s.cfg.MaxModelLen
	if longest >= limit {
		return badRequest("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains %d input tokens, "+
			"which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.", limit, longest)
	}
	j.max = limit - longest
	if fallback > 0 {
		j.max = min(j.max, fallback)
	}
	if j.MaxTokens != nil {
		j.max = *j.MaxTokens
	}
	switch {
	case j.max < 1:
		return badRequest("max_tokens", "max_tokens must be at least 1, got %d.", j.max)
	case j.max > limit-longest:
		return badRequest("max_tokens", "This model's maximum context length is %d tokens. However, you requested %d output tokens and your prompt "+
			"contains %d input tokens, for a total of %d tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
			limit, j.max, longest, longest+j.max)
	case j.MinTokens > j.max:
		return badRequest("min_tokens", "min_tokens must be less than or equal to max_tokens=%d, got %d.", j.max, j.MinTokens)
	}
	return nil
}

// sequences are the core's requests of a job, prompt by prompt.
func (j *job) sequences() []sim.Request {
	out := make([]sim.Request, 0, j.choices())
	for _, p := range j.prompts {
		for i := range j.n {
			out = append(out, sim.Request{
				Prompt: p, MaxTokens: j.max, MinTokens: j.MinTokens, IgnoreEOS: j.IgnoreEOS,
				LoRA: j.lora, Salt: j.salt, Seed: j.seed(i),
			})
		}
	}
	return out
}

// seed makes choices differ, requests with different seeds, and adapters from
// their base. The base model's first choice of a request without a seed is the
// plain continuation (0), and so is every greedy one.
func (j *job) seed(choice int) uint64 {
	var seed uint64
	if j.lora != "" {
		seed = xxh3.HashString(j.lora)
	}
	if j.greedy() || j.Seed == nil {
		return seed + uint64(choice)
	}
	return seed + uint64(*j.Seed)<<16 + uint64(choice) + 1
}

// completionRequest is the body of /v1/completions.
type completionRequest struct {
	sampling
	Prompt   jsontext.Value `json:"prompt"`
	LogProbs *int           `json:"logprobs"`
}

func (s *Server) completionJob(w http.ResponseWriter, r *http.Request) (*job, error) {
	var in completionRequest
	if err := s.decode(w, r, &in); err != nil {
		return nil, err
	}
	if in.LogProbs != nil {
		return nil, badRequest("logprobs", "Log probabilities are not simulated.")
	}
	prompts, err := s.prompts(in.Prompt)
	if err != nil {
		return nil, err
	}
	return s.newJob(r, &in.sampling, prompts, completionMaxTokens)
}

// prompts reads the four forms of a prompt: text, texts, token ids, lists of
// token ids.
func (s *Server) prompts(raw jsontext.Value) ([][]uint32, error) {
	wrong := badRequest("prompt", "prompt: want a string, a list of strings, a list of token ids, or a list of lists of token ids.")
	switch raw.Kind() {
	case 0, 'n':
		return nil, badRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
	case '"':
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return nil, wrong
		}
		return [][]uint32{s.tok.Encode(text)}, nil
	case '[':
	default:
		return nil, wrong
	}
	var texts []string
	var ids []uint32
	var lists [][]uint32
	switch firstElement(raw) {
	case '"':
		if json.Unmarshal(raw, &texts) != nil {
			return nil, wrong
		}
		for _, t := range texts {
			lists = append(lists, s.tok.Encode(t))
		}
		return lists, nil
	case '0':
		if json.Unmarshal(raw, &ids) != nil {
			return nil, wrong
		}
		lists = [][]uint32{ids}
	case '[':
		if json.Unmarshal(raw, &lists) != nil {
			return nil, wrong
		}
	case ']':
		return nil, badRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
	default:
		return nil, wrong
	}
	return lists, s.checkIDs(lists)
}

// firstElement is the kind of the first element of an array, ']' if it is empty.
func firstElement(raw jsontext.Value) jsontext.Kind {
	for i := 1; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		case c == '-' || c >= '0' && c <= '9':
			return '0'
		default:
			return jsontext.Kind(c)
		}
	}
	return 0
}

func (s *Server) checkIDs(lists [][]uint32) error {
	size := uint32(s.tok.VocabSize())
	for _, ids := range lists {
		for _, id := range ids {
			if id >= size {
				return badRequest("prompt", "Token id %d is out of vocabulary.", id)
			}
		}
	}
	return nil
}

// newID is the unique part of an answer's id.
func (s *Server) newID() string {
	return fmt.Sprintf("%016x%08x", s.idBase, s.idCount.Add(1))
}
