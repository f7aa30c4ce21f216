package openai

// Message is a chat message as far as a plain chat template renders it.
type Message struct {
	// Role and Name are the members of these names; empty if absent.
	Role, Name string
	// Text is the content: the string, or its text parts one after the other.
	Text string
	// Media is the number of parts that are not text.
	Media int
}

// Texts are the text prompts of a completions request, nil for chat and for
// token ids.
func (r *Request) Texts() []string {
	switch {
	case r.API != APICompletions || r.TextPrompts == 0:
		return nil
	case isString(r.prompt):
		return []string{string(unquote(r.prompt))}
	}
	texts := make([]string, 0, r.TextPrompts)
	for e := range elements(r.prompt) {
		texts = append(texts, string(unquote(e)))
	}
	return texts
}

// Chat are the messages of a chat request, nil for completions.
func (r *Request) Chat() []Message {
	if r.API != APIChat {
		return nil
	}
	ms := make([]Message, 0, r.Messages)
	for obj := range elements(r.messages) {
		ms = append(ms, readMessage(obj))
	}
	return ms
}

// Tools is the raw tools member of a chat request; nil if there is none.
func (r *Request) Tools() []byte {
	if r.tools == nil || isEmpty(r.tools) {
		return nil
	}
	return r.tools
}

func readMessage(obj []byte) Message {
	var m Message
	var content []byte
	for f := range members(obj) {
		v := f.raw(obj)
		switch string(f.name(obj)) {
		case "role":
			m.Role = textOr(v)
		case "name":
			m.Name = textOr(v)
		case "content":
			content = v
		}
	}
	switch {
	case isString(content):
		m.Text = string(unquote(content))
	case isArray(content):
		m.readParts(content)
	}
	return m
}

func (m *Message) readParts(content []byte) {
	var b []byte
	for p := range elements(content) {
		t, ok := partText(p)
		if !ok {
			m.Media++
		}
		b = append(b, t...)
	}
	m.Text = string(b)
}

// partText is the text of a part, or false if it is none.
func partText(p []byte) ([]byte, bool) {
	if isString(p) {
		return unquote(p), true
	}
	if !isObject(p) {
		return nil, false
	}
	var text []byte
	isText := false
	for f := range members(p) {
		switch v := f.raw(p); string(f.name(p)) {
		case "type":
			kind := textOr(v)
			isText = kind == kindText || kind == kindInputText || kind == kindOutputText
		case "text":
			if text = nil; isString(v) {
				text = unquote(v)
			}
		}
	}
	if !isText {
		return nil, false
	}
	return text, true
}

// textOr is the text of a string; empty for anything else.
func textOr(v []byte) string {
	if !isString(v) {
		return ""
	}
	return string(unquote(v))
}
