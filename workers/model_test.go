package workers

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/kvindex"
)

// TestCacheModel: without KV events, the log says what the engine ought to hold by
// the requests that passed, corrected by the cached tokens that it reports.
func TestCacheModel(t *testing.T) {
	e, a, w := attach(t, func(c *Config) { c.WorkerID = "w1" })
	w.await("a Hello without events", func(rs []kvindex.Record) bool {
		h := lastOf(rs, kvindex.KindHello)
		return h != nil && h.Hello.NoEvents
	})
	ids := func(first, n int) []uint32 {
		var list []uint32
		for i := range n {
			list = append(list, uint32(first+i))
		}
		return list
	}
	prompt, output := ids(1, 40), ids(100, 9) // blocks of 16: 2 of the prompt, 3 with the answer
	answer := func(cached int) {
		e.answersJSON(http.StatusOK, fmt.Sprintf(`{"choices":[{"index":0,"text":"x","finish_reason":"stop","token_ids":%s}],
			"usage":{"prompt_tokens":40,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":%d}}}`, list(output), cached))
	}
	root := kvindex.Namespace{Model: "base", BlockSize: 16}.Root()
	chain := kvindex.AppendChain(nil, root, slices.Concat(prompt, output[:8]), 16)
	holds := func(want ...kvindex.BlockHash) {
		t.Helper()
		slices.Sort(want)
		w.await(fmt.Sprintf("%d blocks", len(want)), func([]kvindex.Record) bool {
			return slices.Equal(w.index.Blocks(kvindex.Owner{Worker: "w1"}), want)
		})
	}
	body := fmt.Sprintf(`{"model":"base","prompt":%s}`, list(prompt))
	answer(0)
	post(t, a.url+"/v1/completions", body)
	a.idle()
	holds(chain...)

	// Other prompts come, then the engine says that it has let go of the first one.
	for i := range 3 {
		other := ids(1000*(i+1), 40)
		post(t, a.url+"/v1/completions", fmt.Sprintf(`{"model":"base","prompt":%s}`, list(other)))
	}
	answer(0)
	post(t, a.url+"/v1/completions", body)
	a.idle()
	w.await("less than everything", func([]kvindex.Record) bool {
		return len(w.index.Blocks(kvindex.Owner{Worker: "w1"})) < 4*3
	})

	// A new process has nothing.
	e.mu.Lock()
	e.started = float64(time.Now().Unix() + 100) // after the agent noticed the one before
	e.mu.Unlock()
	holds()
	post(t, a.url+"/v1/completions", body)
	a.idle()
	holds(chain...)
}

func list(ids []uint32) string {
	out := "["
	for i, id := range ids {
		if i > 0 {
			out += ","
		}
		out += fmt.Sprint(id)
	}
	return out + "]"
}
