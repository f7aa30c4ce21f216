package workers

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/kvindex"
)

// byteEngine renders and tokenizes: one id per byte, roles in angle brackets.
func byteEngine(reply, finish string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var b struct {
			Messages []struct{ Role, Content string }
			Prompt   any
			Stream   bool
		}
		if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var prompt strings.Builder
		for _, m := range b.Messages {
			fmt.Fprintf(&prompt, "<%s>%s</>", m.Role, m.Content)
		}
		if b.Messages != nil {
			prompt.WriteString("<assistant>")
		}
		if s, ok := b.Prompt.(string); ok {
			prompt.WriteString(s)
		}
		in, out := ids(prompt.String()), ids(reply+"</>")
		if !b.Stream {
			fmt.Fprintf(w, `{"prompt_token_ids":%s,"choices":[{"index":0,"message":{"content":%q},"token_ids":%s,"finish_reason":%q}]}`, in, reply, out, finish)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: {\"prompt_token_ids\":%s,\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n", in)
		for i := range reply {
			fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"token_ids\":[%d]}]}\n\n", reply[i:i+1], reply[i])
		}
		fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"token_ids\":%s,\"finish_reason\":%q}]}\n\ndata: [DONE]\n\n", ids("</>"), finish)
	}
}

func ids(text string) string {
	list := make([]int, len(text))
	for i := range len(text) {
		list[i] = int(text[i])
	}
	b, _ := json.Marshal(list)
	return string(b)
}

func tokensOf(text string) []uint32 {
	out := make([]uint32, len(text))
	for i := range len(text) {
		out[i] = uint32(text[i])
	}
	return out
}

// known is the chain of blocks that the log's readers know for a body.
func (w *watch) known(secret, lora, body string) []kvindex.BlockHash {
	req, err := openai.Parse(openai.APIChat, []byte(body))
	if err != nil {
		w.t.Fatal(err)
	}
	h := req.Hashers(req.Seed(secret, "base", lora))[0]
	return w.texts.Lookup(h.Chunks(), nil).Blocks
}

func lastHello(rs []kvindex.Record) *kvindex.Hello { return lastOf(rs, kvindex.KindHello).Hello }

// TestLearning: after a turn, readers know the blocks of the next turn's prompt
// up to the reply's end, streamed or not, and hear nothing twice.
func TestLearning(t *testing.T) {
	e, a, w := attach(t, func(c *Config) { c.Secret = "s3" })
	system := strings.Repeat("You are a patient teacher of grammar. ", 8)
	question := strings.Repeat("Why is this sentence right? ", 4)
	reply := strings.Repeat("Because the verb agrees with its noun. ", 6)
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%v", stream), func(t *testing.T) {
			e.answers(byteEngine(reply, "stop"))
			q := fmt.Sprintf("%v %s", stream, question)
			head := fmt.Sprintf(`{"model":"base","messages":[{"role":"system","content":%q},{"role":"user","content":%q}`, system, q)
			first := head + fmt.Sprintf(`],"stream":%v}`, stream)
			next := head + fmt.Sprintf(`,{"role":"assistant","content":%q},{"role":"user","content":"and this?"}]}`, reply)
			if code, _, body := post(t, a.url+"/v1/chat/completions", first); code != 200 || strings.Contains(body, "token_ids") {
				t.Fatalf("status %d: %s", code, body)
			}
			rendered := "<system>" + system + "</><user>" + q + "</><assistant>" + reply + "</>"
			chain := kvindex.AppendChain(nil, kvindex.Namespace{Model: "base", BlockSize: 16}.Root(), tokensOf(rendered), 16)
			// One chunk of 64 bytes may be rounded away at the end.
			least := len(chain) - 64/16 - 2
			w.await("the reply to be known", func([]kvindex.Record) bool {
				got := w.known("s3", "", next)
				return len(got) >= least && len(got) <= len(chain) && slices.Equal(got, chain[:len(got)])
			})
			count := func(rs []kvindex.Record) (n int) {
				for i := range rs {
					if rs[i].Kind == kvindex.KindLearned {
						n++
					}
				}
				return n
			}
			before := a.metric("learned_total")
			post(t, a.url+"/v1/chat/completions", first)
			if got := a.metric("learned_total"); got != before {
				t.Errorf("the same turn again published %v lessons", got-before)
			}
			w.await("all lessons", func(rs []kvindex.Record) bool { return count(rs) == int(before) })
			// A picker that knows as much is not told again, one that has forgotten is:
			// prompt and reply.
			for _, c := range []struct{ known, lessons int }{{len(rendered) / 2, 0}, {0, 2}} {
				before := a.metric("learned_total")
				post(t, a.url+"/v1/chat/completions", first, HeaderKnownTokens, strconv.Itoa(c.known))
				// The writer counts them; it may do so a moment after the answer.
				w.await("the lessons", func(rs []kvindex.Record) bool { return count(rs) >= int(before)+c.lessons })
				if got := a.metric("learned_total") - before; got != float64(c.lessons) {
					t.Errorf("a picker that knew %d tokens of the prompt was told %v lessons, want %d", c.known, got, c.lessons)
				}
			}
		})
	}
	if got := w.known("another", "", fmt.Sprintf(`{"messages":[{"role":"system","content":%q}]}`, system)); len(got) != 0 {
		t.Error("found without the secret")
	}
}

// TestLearningIsCareful: what teaches nothing about the next turn is not learned.
func TestLearningIsCareful(t *testing.T) {
	e, a, w := attach(t, nil)
	question := strings.Repeat("Why is the sky blue? ", 10)
	reply := strings.Repeat("Light scatters. ", 10)
	for _, c := range []struct {
		name, members, finish, model string
		reply                        bool
	}{
		{"plain", ``, "stop", "base", true},
		{"adapter", ``, "length", "ad", true},
		{"stop strings", `,"stop":["x"]`, "stop", "base", false},
		{"tool calls", ``, "tool_calls", "base", false},
		{"two choices", `,"n":2`, "stop", "base", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e.answers(byteEngine(reply, c.finish))
			head := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"%s %s"}`, c.model, c.name, question)
			if code, _, body := post(t, a.url+"/v1/chat/completions", head+"]"+c.members+"}"); code != 200 {
				t.Fatalf("%d %s", code, body)
			}
			lora := ""
			if c.model == "ad" {
				lora = "ad"
			}
			// What is published is in the log before the marker.
			marker := kvindex.ChunkHash(len(c.name))<<32 + 1
			a.publisher.put(t.Context(), update{records: []kvindex.Record{a.publisher.learnedRecord(&kvindex.Learned{
				Seed: 1, Chunks: []kvindex.ChunkHash{marker}, Bytes: 64, BlockSize: 16,
			})}})
			w.await("the marker", func(rs []kvindex.Record) bool {
				return has(rs, func(r *kvindex.Record) bool { return r.Kind == kvindex.KindLearned && r.Learned.Chunks[0] == marker })
			})
			prompt := len(w.known("", lora, head+"]}"))
			next := len(w.known("", lora, head+fmt.Sprintf(`,{"role":"assistant","content":%q}]}`, reply)))
			if prompt == 0 {
				t.Error("the prompt is unknown")
			}
			if (next > prompt+2) != c.reply {
				t.Errorf("%d blocks with the reply, %d without; want the reply learned: %v", next, prompt, c.reply)
			}
		})
	}
}

// TestHello: the worker introduces itself with what the engine says.
func TestHello(t *testing.T) {
	_, a, w := attach(t, func(c *Config) { c.Deployment, c.Role = "d", kvindex.RoleDecode })
	w.await("a load", func(rs []kvindex.Record) bool { return lastOf(rs, kvindex.KindLoad) != nil })
	w.await("a hello", func(rs []kvindex.Record) bool {
		h := lastHello(rs)
		return h.Ready && h.Model == "base" && slices.Equal(h.Served, []string{"base"}) && slices.Equal(h.Adapters, []string{"ad"}) &&
			h.BlockSize == 16 && h.KVBlocks == 1000 && h.LeaseMs == 5000 && h.Address == a.addr.String() && h.Deployment == "d" && h.Role == kvindex.RoleDecode
	})
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	w.await("not ready, then bye", func(rs []kvindex.Record) bool {
		return !lastHello(rs).Ready && rs[len(rs)-1].Kind == kvindex.KindBye
	})
}

// TestLessonTooLong: a lesson that no log would take is not published. It would be
// in every snapshot, and nothing of this worker would reach the log any more.
func TestLessonTooLong(t *testing.T) {
	_, a, _ := attach(t, nil)
	n := maxLesson/8 - 1
	for _, chunks := range []int{n + 2, n} {
		d := &kvindex.Learned{
			Chunks: make([]kvindex.ChunkHash, chunks), Bytes: uint32(chunks) * kvindex.ChunkSize,
			Tokens: 16, BlockSize: 16, Blocks: make([]kvindex.BlockHash, 1),
		}
		for i := range d.Chunks {
			d.Chunks[i] = kvindex.ChunkHash(i + 1)
		}
		a.proxy.learner.learn(t.Context(), d, false)
	}
	if got := a.metric("unlearned_total", "too_long"); got != 1 {
		t.Errorf("%v lessons were too long, want 1", got)
	}
	for waits := time.After(patience); a.metric("learned_total") != 1; {
		select {
		case <-waits:
			t.Fatal("the longest lesson that is allowed was not published")
		case <-time.After(time.Millisecond):
		}
	}
}
