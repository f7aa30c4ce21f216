package extproc

import (
	"strconv"

	"github.com/kvlane/kvlane/internal/openai"
)

// EnginePriority is which engine's scheduler is told a request's priority.
type EnginePriority string

// The engines whose request bodies have a member for it.
const (
	EnginePriorityNone   EnginePriority = "none"
	EnginePriorityVLLM   EnginePriority = "vllm"   // lower is sooner
	EnginePrioritySGLang EnginePriority = "sglang" // higher is sooner
)

// memberPriority is the body's member, in both engines. Without it they take 0.
const memberPriority = "priority"

// turned is a priority of ours as the engine counts it, or the reverse.
func (e EnginePriority) turned(priority int) int {
	if e == EnginePriorityVLLM {
		return -priority
	}
	return priority
}

// priorityOf is the priority of a request: what its headers say, else what its body
// tells the engine, within the bounds for clients.
func (c *clients) priorityOf(r *openai.Request, h Hints) int {
	if h.Prioritized || c.engine == EnginePriorityNone || !c.trusted {
		return h.Priority
	}
	n, _ := c.member(r)
	return n
}

// member is what a body tells the engine, as ours; false if there is nothing, or
// nothing that an engine would take.
func (c *clients) member(r *openai.Request) (int, bool) {
	n, err := strconv.ParseInt(string(r.Member(memberPriority)), 10, 32)
	if err != nil {
		return 0, false
	}
	return c.within(c.engine.turned(int(n))), true
}

// edits are the changes that a body needs so that it tells its engine the priority.
// r may be made of nothing but a body that was parsed before.
func (c *clients) edits(r *openai.Request, priority int, prioritized bool) []openai.Edit {
	if c.engine == EnginePriorityNone {
		return nil
	}
	have, want := string(r.Member(memberPriority)), strconv.Itoa(c.engine.turned(priority))
	if _, ok := c.member(r); have != "" && !ok && !prioritized {
		return nil // the engine says what it thinks of that
	}
	if have == want || have == "" && priority == 0 {
		return nil
	}
	return []openai.Edit{{Name: memberPriority, Value: []byte(want)}}
}
