package workers

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/listing"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// content reads the agent's listing of what its engine holds.
func (r *running) content() *listing.Listing {
	r.t.Helper()
	resp, err := http.Get("http://" + r.admin.String() + "/agent/content")
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	l, err := listing.Read(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

func (r *running) prefixes(n int) []Prefix {
	r.t.Helper()
	resp, err := http.Get(fmt.Sprintf("http://%s/agent/prefixes?n=%d", r.admin, n))
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var out []Prefix
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// firstLife are the batches of a script before its engine restarts.
func firstLife(t *testing.T, name string) []batch {
	t.Helper()
	var out []batch
	for _, st := range lines[step](t, name)[1:] {
		if st.Do == "restart" {
			break
		}
		if st.Do == "publish" && st.From == "w1" {
			out = append(out, batch{st.Seq, unhex(t, st.Hex)})
		}
	}
	return out
}

// TestTruthByReplay: an engine without a list of its content is known by all its
// events, or not at all.
func TestTruthByReplay(t *testing.T) {
	e, p := newFakeEngine(t), newPublisherSocket(t, true)
	batches := firstLife(t, "C11-restart.map.jsonl")
	p.router.set(batches, nil)
	log := memlog.New(memlog.Options{})
	w := newWatch(t, log)
	owner := kvindex.Owner{Worker: "w1"}
	a := startAgent(t, e.URL, log, func(c *Config) {
		c.WorkerID, c.KVEvents, c.KVReplay, c.Admin = "w1", []string{p.events}, []string{p.replay}, "127.0.0.1:0"
	})
	said := ""
	w.await("the engine's blocks", func(rs []kvindex.Record) bool {
		if h := lastOf(rs, kvindex.KindHello); h != nil {
			said = h.Hello.Admin
		}
		return len(w.index.Blocks(owner)) == 20
	})
	if said != a.admin.String() {
		t.Errorf("Hello says %q, the pages are at %s", said, a.admin)
	}

	l := a.content()
	want := listing.Source{Worker: "w1", Kind: listing.Replay, Next: uint64(len(batches))}
	if len(l.Sources) != 1 || l.Sources[0] != want || !slices.Equal(l.Of(owner), w.index.Blocks(owner)) {
		t.Errorf("%+v, %d blocks; want %+v and the index's", l.Sources, len(l.Of(owner)), want)
	}
	got := a.prefixes(5)
	if len(got) != 5 {
		t.Fatalf("%d prefixes, want 5", len(got))
	}
	for _, x := range got {
		root := kvindex.Namespace{Model: x.Model, LoRA: x.LoRA, Salt: x.Salt, BlockSize: x.BlockSize}.Root()
		chain := kvindex.AppendChain(nil, root, x.Tokens, x.BlockSize)
		m := w.index.Overlap(chain, nil)
		if len(m) != 1 || int(m[0].Depth[kvindex.Device]) != len(chain) {
			t.Errorf("prefix of %d blocks: %+v", len(chain), m)
		}
	}

	p.router.set(batches[2:], nil) // the ring has forgotten the first two
	l = a.content()
	if s := l.Sources[0]; s.Kind != listing.Unknown || !strings.Contains(s.Problem, "begins at batch 2") || len(l.Owners) != 0 {
		t.Errorf("%+v, %d owners", s, len(l.Owners))
	}
	e.CloseClientConnections()
	e.Listener.Close()
	if l = a.content(); l.Sources[0].Kind != listing.Gone || len(l.Owners) != 0 {
		t.Errorf("the engine is gone: %+v", l)
	}
}

// TestTruthByList: an engine that lists its content is believed, whatever its
// events said.
func TestTruthByList(t *testing.T) {
	e := newFakeEngine(t)
	e.answers(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/sim/content" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		// b follows a; d's parent is not there; c begins a prompt of an adapter.
		io.WriteString(w, `{"life":3,"next_seq":12,"block_size":2,"blocks":[
			{"hash":"b","parent":"a","ids":[3,4]},{"hash":"a","ids":[1,2]},
			{"hash":"c","ids":[1,2],"lora":"ad","salt":"s"},{"hash":"d","parent":"gone","ids":[9,9]}]}`)
	})
	a := startAgent(t, e.URL, memlog.New(memlog.Options{}), func(c *Config) { c.WorkerID, c.Admin = "w1", "127.0.0.1:0" })
	if err := a.prober.await(t.Context()); err != nil {
		t.Fatal(err)
	}
	base := kvindex.Namespace{Model: "base", BlockSize: 2}.Root()
	adapter := kvindex.Namespace{Model: "base", LoRA: "ad", Salt: "s", BlockSize: 2}.Root()
	want := append(kvindex.AppendChain(nil, base, []uint32{1, 2, 3, 4}, 2), adapter.Next([]uint32{1, 2}, nil))
	slices.Sort(want)
	l := a.content()
	source := listing.Source{Worker: "w1", Kind: listing.Dump, Life: "3", Next: 12, Unnamed: 1}
	if len(l.Sources) != 1 || l.Sources[0] != source || !slices.Equal(l.Of(kvindex.Owner{Worker: "w1"}), want) {
		t.Errorf("%+v\nwant %+v and %v", l, source, want)
	}
	if got := a.prefixes(100); len(got) != 3 {
		t.Errorf("%d prefixes, want 3: %+v", len(got), got)
	}
}
