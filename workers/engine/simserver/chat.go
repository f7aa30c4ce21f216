package simserver

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// chatRequest is the body of /v1/chat/completions.
type chatRequest struct {
	sampling
	chatPrompt
	MaxCompletionTokens *int   `json:"max_completion_tokens"`
	LogProbs            bool   `json:"logprobs"`
	ToolChoice          choice `json:"tool_choice"`
}

// chatPrompt are the members that the template reads.
type chatPrompt struct {
	Messages        []message        `json:"messages"`
	Tools           []jsontext.Value `json:"tools"`
	AddGeneration   *bool            `json:"add_generation_prompt"`
	ContinueMessage bool             `json:"continue_final_message"`
}

type message struct {
	Role      string      `json:"role"`
	Content   messageText `json:"content"`
	ToolCalls []toolCall  `json:"tool_calls"`
}

type toolCall struct {
	Function struct {
		Name      string         `json:"name"`
		Arguments jsontext.Value `json:"arguments"`
	} `json:"function"`
}

// choice is tool_choice: a word or an object. Only "none" matters here, it
// leaves the tools out of the prompt.
type choice string

// UnmarshalJSON reads either form.
func (c *choice) UnmarshalJSON(b []byte) error {
	switch jsontext.Value(b).Kind() {
	case '"':
		return json.Unmarshal(b, (*string)(c))
	case '{':
		*c = "function"
		return nil
	case 'n':
		return nil
	default:
		return badRequest("tool_choice", "tool_choice: want a string or an object.")
	}
}

// messageText is a message's content: text, parts joined by a line break as vLLM
// joins them, or nothing.
type messageText string

type part struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// UnmarshalJSON reads every form and refuses parts that are not text.
func (c *messageText) UnmarshalJSON(b []byte) error {
	switch jsontext.Value(b).Kind() {
	case 'n':
		return nil
	case '"':
		return json.Unmarshal(b, (*string)(c))
	default:
	}
	var parts []part
	if err := json.Unmarshal(b, &parts); err != nil {
		return badRequest("messages", "content: want a string or a list of parts.")
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		switch p.Type {
		case "text", "input_text":
			texts[i] = p.Text
		default:
			return badRequest("messages", "At most 0 %s(s) may be provided in one prompt.", strings.TrimSuffix(p.Type, "_url"))
		}
	}
	*c = messageText(strings.Join(texts, "\n"))
	return nil
}

func (s *Server) chatJob(w http.ResponseWriter, r *http.Request) (*job, error) {
	var in chatRequest
	if err := s.decode(w, r, &in); err != nil {
		return nil, err
	}
	if in.LogProbs {
		return nil, badRequest("logprobs", "Log probabilities are not simulated.")
	}
	if in.MaxCompletionTokens != nil {
		in.MaxTokens = in.MaxCompletionTokens
	}
	if in.ToolChoice == "none" {
		in.Tools = nil
	}
	text, err := in.render()
	if err != nil {
		return nil, err
	}
	j, err := s.newJob(r, &in.sampling, [][]uint32{s.tok.EncodeSpecial(text)}, 0)
	if err != nil {
		return nil, err
	}
	j.chat = true
	return j, nil
}

// render writes the messages in the ChatML layout of the Qwen models. The
// next turn's text begins with this turn's text and reply.
func (p *chatPrompt) render() (string, error) {
	if len(p.Messages) == 0 {
		return "", badRequest("messages", "messages: want at least one message.")
	}
	generation := p.AddGeneration == nil && !p.ContinueMessage || p.AddGeneration != nil && *p.AddGeneration
	if generation && p.ContinueMessage {
		return "", badRequest("continue_final_message", "Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
	}
	var b strings.Builder
	messages := p.Messages
	if err := p.renderTools(&b, &messages); err != nil {
		return "", err
	}
	for i := range messages {
		if err := messages[i].render(&b); err != nil {
			return "", err
		}
		if i < len(messages)-1 || !p.ContinueMessage {
			b.WriteString("<|im_end|>\n")
		}
	}
	if generation {
		b.WriteString("<|im_start|>assistant\n")
	}
	return b.String(), nil
}

// renderTools writes the system message with the tools in it, where there are
// any, and takes the client's own system message off the list.
func (p *chatPrompt) renderTools(b *strings.Builder, messages *[]message) error {
	if len(p.Tools) == 0 {
		return nil
	}
	b.WriteString("<|im_start|>system\n")
	if m := (*messages)[0]; m.Role == "system" {
		b.WriteString(string(m.Content) + "\n\n")
		*messages = (*messages)[1:]
	}
	b.WriteString("# Tools\n\nYou may call one or more functions to assist with the user query.\n\n" +
		"You are provided with function signatures within <tools></tools> XML tags:\n<tools>")
	for _, tool := range p.Tools {
		if tool.Kind() != '{' {
			return badRequest("tools", "tools: want a list of objects.")
		}
		if err := tool.Compact(); err != nil {
			return badRequest("tools", "tools: %v.", err)
		}
		b.WriteString("\n" + string(tool))
	}
	b.WriteString("\n</tools>\n\nFor each function call, return a json object with function name and arguments within " +
		"<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n")
	return nil
}

// render writes one message without its end.
func (m *message) render(b *strings.Builder) error {
	switch m.Role {
	case "system", "developer", "user":
		fmt.Fprintf(b, "<|im_start|>%s\n%s", m.Role, m.Content)
	case "tool":
		fmt.Fprintf(b, "<|im_start|>user\n<tool_response>\n%s\n</tool_response>", m.Content)
	case "assistant":
		fmt.Fprintf(b, "<|im_start|>assistant\n%s", m.Content)
		for _, call := range m.ToolCalls {
			args := call.Function.Arguments
			if args.Kind() == '"' {
				var text string
				if err := json.Unmarshal(args, &text); err != nil {
					return badRequest("messages", "tool_calls: %v.", err)
				}
				args = jsontext.Value(text)
			}
			fmt.Fprintf(b, "\n<tool_call>\n{\"name\": %q, \"arguments\": %s}\n</tool_call>", call.Function.Name, args)
		}
	default:
		return badRequest("messages", "role: want system, developer, user, assistant or tool, got %.40q.", m.Role)
	}
	return nil
}
