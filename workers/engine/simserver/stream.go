package simserver

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvlane/kvlane/workers/engine/sim"
)

// streamer writes a run as server-sent events: one write and one flush for
// what is there, one chunk for each choice in it. What all chunks of an answer
// share is encoded once.
type streamer struct {
	run   *run
	w     http.ResponseWriter
	rc    *http.ResponseController
	head  []byte // from "data: " to the choice's index
	buf   []byte
	begun bool // the chunks with the role are out
	dirty []int
}

func (run *run) stream(ctx context.Context, w http.ResponseWriter) error {
	st := &streamer{run: run, w: w, rc: http.NewResponseController(w), head: run.job.chunkHead()}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	if !st.flush() {
		return nil
	}
	var items []item
	var err error
	for run.open > 0 {
		if items, err = run.take(ctx, items); err != nil {
			break
		}
		st.buf = st.buf[:0]
		st.chunks(items)
		if run.open == 0 {
			st.finish()
		}
		if !st.send() {
			return nil
		}
	}
	if err != nil && ctx.Err() == nil {
		st.fail(err)
	}
	return nil
}

// send reports whether the client is still there.
func (st *streamer) send() bool {
	if len(st.buf) == 0 {
		return true
	}
	if _, err := st.w.Write(st.buf); err != nil {
		return false
	}
	return st.flush()
}

func (st *streamer) flush() bool { return st.rc.Flush() == nil }

// fail ends the stream with an error event, as vLLM does once it has begun.
func (st *streamer) fail(err error) {
	body, encodeErr := json.Marshal(asAPIError(err).body())
	if encodeErr != nil {
		return
	}
	st.buf = append(st.buf[:0], "data: "...)
	st.buf = append(st.buf, body...)
	st.buf = append(st.buf, "\n\ndata: [DONE]\n\n"...)
	st.send()
}

// chunkHead is the part of a chunk before the choice's own members.
func (j *job) chunkHead() []byte {
	object := "text_completion"
	if j.chat {
		object = "chat.completion.chunk"
	}
	b := append([]byte(nil), `data: {"id":`...)
	b = appendQuoted(b, j.answerID())
	b = append(b, `,"object":"`+object+`","created":`...)
	b = strconv.AppendInt(b, j.created, 10)
	b = append(b, `,"model":`...)
	b = appendQuoted(b, j.model)
	return append(b, `,"choices":[`...)
}

// chunks appends what the items brought: the chunks with the role before the
// first, then one chunk for each choice that has something new.
func (st *streamer) chunks(items []item) {
	j := st.run.job
	if j.chat && !st.begun {
		st.begun = true
		for i := range st.run.choices {
			st.roleChunk(i)
		}
	}
	st.dirty = st.dirty[:0]
	for _, it := range items {
		c := &st.run.choices[it.choice]
		if c.sentTokens < 0 || len(st.dirty) > 0 && st.dirty[len(st.dirty)-1] == it.choice {
			continue
		}
		st.dirty = append(st.dirty, it.choice)
	}
	for _, i := range st.dirty {
		c := &st.run.choices[i]
		if c.sentTokens < 0 || c.sentTokens == len(c.tokens) {
			continue
		}
		st.tokenChunk(i, c)
	}
}

// begin appends the common part of a chunk to what is written already.
func (st *streamer) begin() []byte {
	st.buf = append(st.buf, st.head...)
	return st.buf
}

// roleChunk opens a choice of a chat.
func (st *streamer) roleChunk(i int) {
	j := st.run.job
	b := st.begin()
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(i), 10)
	b = append(b, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
	b = st.appendUsage(b, i, 0)
	b = append(b, `,"prompt_token_ids":`...)
	if j.ReturnTokenIDs {
		b = appendIDs(b, j.prompts[0])
	} else {
		b = append(b, "null"...)
	}
	b = append(b, "}\n\n"...)
	st.buf = b
}

// tokenChunk writes what is new of a choice.
func (st *streamer) tokenChunk(i int, c *output) {
	j := st.run.job
	text := c.fresh()
	b := st.begin()
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(i), 10)
	if j.chat {
		b = append(b, `,"delta":{"content":`...)
		b = append(appendQuotedBytes(b, text), '}')
	} else {
		b = append(b, `,"text":`...)
		b = appendQuotedBytes(b, text)
	}
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	if c.finish == sim.Running {
		b = append(b, "null"...)
	} else {
		b = append(append(append(b, '"'), c.finish...), '"')
	}
	if c.finish != sim.Running || !j.chat {
		b = append(b, `,"stop_reason":`...)
		if c.stopString == "" {
			b = append(b, "null"...)
		} else {
			b = appendQuoted(b, c.stopString)
		}
	}
	b = st.appendIDs(b, i, c)
	b = append(b, "}]"...)
	b = st.appendUsage(b, i, len(c.tokens))
	b = append(b, "}\n\n"...)
	st.buf = b

	c.sentText += len(text)
	c.sentTokens = len(c.tokens)
	if c.finish != sim.Running {
		c.sentTokens = -1
	}
}

// appendIDs adds the token ids: null where nobody asked, and in completions
// the prompt's with a choice's first chunk.
func (st *streamer) appendIDs(b []byte, i int, c *output) []byte {
	j := st.run.job
	if !j.chat {
		b = append(b, `,"prompt_token_ids":`...)
		if j.ReturnTokenIDs && c.sentTokens == 0 {
			b = appendIDs(b, j.prompts[i/j.n])
		} else {
			b = append(b, "null"...)
		}
	}
	b = append(b, `,"token_ids":`...)
	if !j.ReturnTokenIDs {
		return append(b, "null"...)
	}
	return appendIDs(b, c.tokens[c.sentTokens:])
}

// appendUsage adds running counts where they were asked for.
func (st *streamer) appendUsage(b []byte, i, completion int) []byte {
	j := st.run.job
	if j.StreamOptions == nil || !j.StreamOptions.ContinuousUsage || !j.StreamOptions.IncludeUsage {
		return b
	}
	prompt := len(j.prompts[i/j.n])
	return append(appendCounts(append(b, `,"usage":{`...), prompt, completion), '}')
}

func appendCounts(b []byte, prompt, completion int) []byte {
	b = append(b, `"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt+completion), 10)
	b = append(b, `,"completion_tokens":`...)
	return strconv.AppendInt(b, int64(completion), 10)
}

func appendUsageValue(b []byte, u usage) []byte {
	b = appendCounts(append(b, '{'), u.PromptTokens, u.CompletionTokens)
	b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(u.Details.CachedTokens), 10)
	return append(b, "}}"...)
}

// finish ends the stream: usage where it was asked for, then the end mark.
func (st *streamer) finish() {
	j := st.run.job
	if j.StreamOptions != nil && j.StreamOptions.IncludeUsage {
		b := st.begin()
		b = append(b, `],"usage":`...)
		b = appendUsageValue(b, st.run.usage())
		b = append(b, "}\n\n"...)
		st.buf = b
	}
	st.buf = append(st.buf, "data: [DONE]\n\n"...)
}

func appendIDs(b []byte, ids []uint32) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return append(b, ']')
}

// appendQuoted appends s as a JSON string; what is not UTF-8 becomes U+FFFD.
func appendQuoted(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s) // reports only those replacements
	return b
}

// appendQuotedBytes is appendQuoted, fast for plain letters.
func appendQuotedBytes(b, text []byte) []byte {
	for _, c := range text {
		if c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			return appendQuoted(b, string(text))
		}
	}
	return append(append(append(b, '"'), text...), '"')
}
