package openai

import "slices"

// maxChoices bounds the choices kept of one answer, against an engine that
// counts without end.
const maxChoices = 4096

// Answer is what an engine answered.
type Answer struct {
	// PromptTokenIDs are the ids of the prompt, if the engine gave them.
	PromptTokenIDs []uint32
	// Choices are the answers in the order of their first appearance.
	Choices []Choice
	// Usage is the engine's own count; nil if it gave none.
	Usage *Usage
	// KVTransferParams is the raw JSON object of that name; nil if there is none.
	KVTransferParams []byte
	// Error is the raw JSON of an error member; nil if there is none.
	Error []byte
	// Started says that the first token has been seen.
	Started bool
	// Done says that the engine ended its answer: the last event of a stream
	// (a cut stream has none), or a whole body.
	Done bool
	// Skipped counts events that were not JSON objects, and choices over the
	// bound.
	Skipped int
	// Overflowed says that an event was too long to be looked at: from there on
	// the stream was passed on unread.
	Overflowed bool
}

// Choice is one of the answers to a prompt.
type Choice struct {
	// Index is the engine's number for it.
	Index int
	// Text is the content of the message, or the text of a completion.
	Text string
	// TokenIDs are the generated ids, if the engine gave them.
	TokenIDs []uint32
	// PromptTokenIDs are the ids of this choice's prompt: completions give them
	// here, chat gives them in the answer.
	PromptTokenIDs []uint32
	// Finish is the finish_reason; empty while there is none.
	Finish string
	// Plain says that there was no reasoning, tool call or refusal, so that
	// Text stands for all of TokenIDs.
	Plain bool

	text []byte
}

// Usage is an answer's usage member, in tokens.
type Usage struct {
	// Prompt and Completion are the tokens read and generated.
	Prompt, Completion int
	// Cached is the part of Prompt that was in the engine's cache; -1 if the
	// engine does not say.
	Cached int
}

// ParseAnswer reads the whole answer to a request that did not stream.
func ParseAnswer(body []byte) (*Answer, error) {
	if err := validate(body); err != nil {
		return nil, BadGateway("The engine's answer is not valid JSON.")
	}
	if !isObject(trim(body)) {
		return nil, BadGateway("The engine's answer is not a JSON object.")
	}
	a := &Answer{Done: true}
	a.absorb(body, true)
	a.settle()
	return a, nil
}

// absorb reads one valid JSON object of an answer. Texts and ids are kept only
// if collect is set.
func (a *Answer) absorb(obj []byte, collect bool) {
	for m := range members(obj) {
		v := m.raw(obj)
		if isNull(v) {
			continue
		}
		switch string(m.name(obj)) {
		case "choices":
			if isArray(v) {
				a.absorbChoices(v, collect)
			}
		case "usage":
			if isObject(v) {
				a.Usage = readUsage(v)
			}
		case "prompt_token_ids":
			if collect {
				a.PromptTokenIDs, _ = appendIDs(a.PromptTokenIDs[:0], v)
			}
		case "kv_transfer_params":
			a.KVTransferParams = slices.Clone(v)
		case "error":
			a.Error = slices.Clone(v)
		}
	}
}

func (a *Answer) absorbChoices(arr []byte, collect bool) {
	for e := range elements(arr) {
		if !isObject(e) {
			a.Skipped++
			continue
		}
		c := a.choice(choiceIndex(e))
		if c == nil {
			a.Skipped++
			continue
		}
		if c.absorb(e, collect) {
			a.Started = true
		}
	}
}

func choiceIndex(obj []byte) int {
	i := 0
	for m := range members(obj) {
		if string(m.name(obj)) == "index" {
			i = count(m.raw(obj))
		}
	}
	return i
}

// choice finds or adds a choice; nil if there are too many.
func (a *Answer) choice(index int) *Choice {
	if index < len(a.Choices) && a.Choices[index].Index == index {
		return &a.Choices[index]
	}
	for i := range a.Choices {
		if a.Choices[i].Index == index {
			return &a.Choices[i]
		}
	}
	if len(a.Choices) == maxChoices {
		return nil
	}
	a.Choices = append(a.Choices, Choice{Index: index, Plain: true})
	return &a.Choices[len(a.Choices)-1]
}

// absorb reads one object of the choices list. It says whether the object
// shows that a token was generated.
func (c *Choice) absorb(obj []byte, collect bool) bool {
	token := false
	for m := range members(obj) {
		v := m.raw(obj)
		if isNull(v) {
			continue
		}
		switch string(m.name(obj)) {
		case "message", "delta":
			if isObject(v) {
				token = c.absorbMessage(v, collect) || token
			}
		case "text":
			token = c.addText(v, collect) || token
		case "token_ids":
			token = isArray(v) && !isEmpty(v) || token
			if collect {
				var ok bool
				c.TokenIDs, ok = appendIDs(c.TokenIDs, v)
				c.Plain = c.Plain && ok
			}
		case "prompt_token_ids":
			if collect {
				c.PromptTokenIDs, _ = appendIDs(c.PromptTokenIDs[:0], v)
			}
		case "finish_reason":
			if isString(v) {
				c.Finish = string(unquote(v))
				token = true
			}
		}
	}
	return token
}

func (c *Choice) absorbMessage(obj []byte, collect bool) bool {
	token := false
	for m := range members(obj) {
		v := m.raw(obj)
		switch string(m.name(obj)) {
		case "content":
			token = c.addText(v, collect) || token
		case "reasoning", "reasoning_content", "tool_calls", "function_call", "refusal":
			if !isEmpty(v) && string(v) != `""` {
				c.Plain = false
				token = true
			}
		}
	}
	return token
}

// addText keeps a piece of text and says whether there was any. Content that
// is not a string is not the text of the ids.
func (c *Choice) addText(v []byte, collect bool) bool {
	if !isString(v) {
		if !isEmpty(v) {
			c.Plain = false
		}
		return false
	}
	if collect {
		c.text = append(c.text, unquote(v)...)
	}
	return len(v) > len(`""`)
}

// settle makes the collected texts visible.
func (a *Answer) settle() {
	for i := range a.Choices {
		c := &a.Choices[i]
		if len(c.text) != len(c.Text) {
			c.Text = string(c.text)
		}
	}
}

func readUsage(obj []byte) *Usage {
	u := &Usage{Cached: -1}
	for m := range members(obj) {
		v := m.raw(obj)
		switch string(m.name(obj)) {
		case "prompt_tokens":
			u.Prompt = count(v)
		case "completion_tokens":
			u.Completion = count(v)
		case "prompt_tokens_details":
			if isObject(v) {
				u.Cached = cachedTokens(v)
			}
		}
	}
	return u
}

func cachedTokens(obj []byte) int {
	n := -1
	for m := range members(obj) {
		if v := m.raw(obj); string(m.name(obj)) == "cached_tokens" && !isNull(v) {
			n = count(v)
		}
	}
	return n
}

// count is a number that can only be zero or more; anything else is 0.
func count(v []byte) int {
	i, ok := whole(v)
	if !ok || i < 0 {
		return 0
	}
	return int(i)
}

// appendIDs appends a list of token ids. It appends none and says false if the
// list holds anything else.
func appendIDs(dst []uint32, arr []byte) ([]uint32, bool) {
	if !isArray(arr) {
		return dst, false
	}
	out := dst
	for e := range elements(arr) {
		id, ok := tokenID(e)
		if !ok {
			return dst, false
		}
		out = append(out, id)
	}
	return out, true
}

// StripTokenIDs is the body of an answer without the token ids that the client
// did not ask for; every other byte is the engine's. A body that is not a JSON
// object, or has no ids, is returned as it is.
func StripTokenIDs(body []byte) []byte {
	if !isValid(body) || !isObject(trim(body)) {
		return body
	}
	cuts := tokenIDCuts(body)
	if len(cuts) == 0 {
		return body
	}
	return without(make([]byte, 0, len(body)), body, cuts)
}

// span is a range of bytes, without its end.
type span struct{ start, end int }

// without appends b without the cuts, which are in order and apart.
func without(dst, b []byte, cuts []span) []byte {
	at := 0
	for _, c := range cuts {
		dst = append(dst, b[at:c.start]...)
		at = c.end
	}
	return append(dst, b[at:]...)
}

// tokenIDCuts are the places of token ids in an answer: at the top and in each
// choice, with their commas.
func tokenIDCuts(obj []byte) []span {
	cuts := idMembers(nil, obj, 0)
	for m := range members(obj) {
		if v := m.raw(obj); string(m.name(obj)) != "choices" || !isArray(v) {
			continue
		}
		for start, end := range elementSpans(m.raw(obj)) {
			if e := m.raw(obj)[start:end]; isObject(e) {
				cuts = idMembers(cuts, e, m.value+start)
			}
		}
	}
	slices.SortFunc(cuts, func(a, b span) int { return a.start - b.start })
	return cuts
}

// idMembers appends the members of one object that hold token ids; null is
// what an engine writes when it was not asked for them, and stays. base is
// added to the offsets. A member goes with the comma behind it, or, at the end
// of the object, with the one before it.
func idMembers(cuts []span, obj []byte, base int) []span {
	open, kept := -1, -1 // start of the cut being made; end of the last member kept
	end := 0
	for m := range members(obj) {
		name := m.name(obj)
		drop := (string(name) == "token_ids" || string(name) == "prompt_token_ids") && !isNull(m.raw(obj))
		switch {
		case drop && open < 0:
			open = m.start
		case !drop && open >= 0:
			cuts = append(cuts, span{base + open, base + m.start})
			open = -1
		}
		if end = m.end; !drop {
			kept = m.end
		}
	}
	if open < 0 {
		return cuts
	}
	if kept >= 0 {
		open = kept
	}
	return append(cuts, span{base + open, base + end})
}
