package workers

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// drain is a fake TensorRT-LLM's page of events: each is handed out once.
type drain struct {
	*httptest.Server
	mu     sync.Mutex
	events []json.RawMessage
	broken bool
}

func newDrain(t *testing.T) *drain {
	d := &drain{}
	d.Server = httptest.NewServer(http.HandlerFunc(d.serve))
	t.Cleanup(d.Close)
	return d
}

func (d *drain) serve(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.Method != http.MethodPost || d.broken {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	if d.events == nil {
		d.events = []json.RawMessage{}
	}
	_ = json.NewEncoder(w).Encode(d.events)
	d.events = nil
}

// add queues events; they are handed out in one answer or in several.
func (d *drain) add(events ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range events {
		d.events = append(d.events, json.RawMessage(e))
	}
}

// created and storedAs are events of an engine with blocks of two tokens.
func created(id int) string {
	return fmt.Sprintf(`{"event_id":%d,"window_size":64,"data":{"type":"created","num_blocks_per_cache_level":[8,8]}}`, id)
}

func storedAs(id int, parent string, hash uint64, a, b int) string {
	return fmt.Sprintf(`{"event_id":%d,"window_size":64,"data":{"type":"stored","parent_hash":%s,"blocks":[
		{"block_hash":%d,"tokens":[{"token_id":%d},{"token_id":%d}],"cache_level":0}]}}`, id, parent, hash, a, b)
}

// TestPoll follows an engine that is asked for its events: what it holds, in which
// tier, what a hole in the numbers costs, and a restart at the same address.
func TestPoll(t *testing.T) {
	e, d := newFakeEngine(t), newDrain(t)
	l := memlog.New(memlog.Options{})
	w := newWatch(t, l)
	d.add(created(0), storedAs(1, "null", 7, 1, 2), storedAs(2, "7", 8, 3, 4),
		`{"event_id":3,"window_size":64,"data":{"type":"stored","parent_hash":8,"blocks":[{"block_hash":9,"tokens":[{"token_id":5}],"cache_level":0}]}}`)
	a := startAgent(t, e.URL, l, func(c *Config) {
		c.WorkerID, c.KVEvents, c.BlockSize = "w1", []string{d.URL + "/kv_cache_events"}, 2
	})
	w.awaitReady("w1", true)

	root := kvindex.Namespace{Model: "base", BlockSize: 2}.Root()
	chain := kvindex.AppendChain(nil, root, []uint32{1, 2, 3, 4}, 2)
	holds := func(tier kvindex.Tier, want ...kvindex.BlockHash) {
		t.Helper()
		slices.Sort(want)
		w.await(fmt.Sprintf("%s to hold %d blocks", tier, len(want)), func([]kvindex.Record) bool {
			return slices.Equal(w.index.Blocks(kvindex.Owner{Worker: "w1", Tier: tier}), want)
		})
	}
	holds(kvindex.Device, chain...)
	if n := a.metric("kv_events_total", "skipped"); n != 1 {
		t.Errorf("%v events were skipped, want the partial block", n)
	}

	d.add(`{"event_id":4,"window_size":64,"data":{"type":"updated","block_hash":8,"cache_level":{"old_value":0,"new_value":1}}}`)
	holds(kvindex.Device, chain[0])
	holds(kvindex.Host, chain[1])
	d.add(`{"event_id":5,"window_size":64,"data":{"type":"removed","block_hashes":[8]}}`)
	holds(kvindex.Host)

	d.add(storedAs(9, "null", 10, 5, 6)) // 6 to 8 are lost
	other := kvindex.AppendChain(nil, root, []uint32{5, 6}, 2)
	holds(kvindex.Device, other...)
	if a.metric("kv_gaps_total") != 1 || a.metric("kv_doubts_total") != 1 {
		t.Errorf("%v gaps, %v doubts, want one each", a.metric("kv_gaps_total"), a.metric("kv_doubts_total"))
	}

	before := kvindex.OwnerState{}
	for _, o := range w.index.Owners() {
		if o.Owner.Tier == kvindex.Device {
			before = o
		}
	}
	d.add(created(0), storedAs(1, "null", 7, 1, 2))
	holds(kvindex.Device, chain[0])
	for _, o := range w.index.Owners() {
		if o.Owner.Tier == kvindex.Device && o.Epoch <= before.Epoch {
			t.Errorf("epoch %d after a restart, want above %d", o.Epoch, before.Epoch)
		}
	}
}

// TestPollOutlastsFaults: an engine that answers with an error is asked again.
func TestPollOutlastsFaults(t *testing.T) {
	e, d := newFakeEngine(t), newDrain(t)
	l := memlog.New(memlog.Options{})
	w := newWatch(t, l)
	d.broken = true
	startAgent(t, e.URL, l, func(c *Config) {
		c.WorkerID, c.KVEvents, c.BlockSize = "w1", []string{d.URL}, 2
	})
	w.awaitReady("w1", true) // after a while, without its events
	d.mu.Lock()
	d.broken = false
	d.mu.Unlock()
	d.add(created(0), storedAs(1, "null", 7, 1, 2))
	w.await("a block", func([]kvindex.Record) bool {
		return len(w.index.Blocks(kvindex.Owner{Worker: "w1"})) == 1
	})
}
