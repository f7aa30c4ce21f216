package epp

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/listing"
)

// TestIndexPages asks the pages about an index through the client that reads them.
func TestIndexPages(t *testing.T) {
	index := kvindex.NewIndex()
	for _, w := range []kvindex.WorkerID{"10.0.0.1:8000", "[2001:db8::10]:8000"} {
		for i, r := range []kvindex.Record{
			{Kind: kvindex.KindCleared}, {Kind: kvindex.KindStored, Stored: &kvindex.Stored{Hashes: []kvindex.BlockHash{1, 2, 3}}},
			{Kind: kvindex.KindRemoved, Removed: &kvindex.Removed{Hashes: []kvindex.BlockHash{3}}},
		} {
			r.Owner, r.Epoch, r.Term, r.Seq = kvindex.Owner{Worker: w, Rank: 1}, 7, 8, uint64(i+1)
			if err := index.Apply(&r); err != nil {
				t.Fatal(err)
			}
		}
	}
	page := &indexPage{
		index: index, prefixes: kvindex.NewPrefixMap(1 << 20),
		workers: func() []WorkerView { return []WorkerView{{Worker: "10.0.0.1:8000", Admin: "10.0.0.1:8100"}} },
		log:     func() LogView { return LogView{Kind: "redis", Error: "away", Dropped: 3} },
	}
	mux := http.NewServeMux()
	page.register(mux)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c := NewClient(server.URL + "/")

	v, err := c.Index(t.Context())
	want := OwnerView{Worker: "10.0.0.1:8000", Rank: 1, Tier: "device", Blocks: 2, Epoch: 7, Term: 8, Seq: 3}
	if err != nil || len(v.Owners) != 2 || v.Owners[0] != want || len(v.Workers) != 1 || v.Workers[0].Admin != "10.0.0.1:8100" ||
		v.Index.Blocks != 2 || v.Index.Memberships != 4 || v.Index.Bytes == 0 || v.Log.Error != "away" || v.Log.Dropped != 3 {
		t.Errorf("%v, %+v", err, v)
	}
	for worker, owners := range map[kvindex.WorkerID]int{"": 2, "[2001:db8::10]:8000": 1, "nobody": 0} {
		body, err := c.Dump(t.Context(), worker)
		if err != nil {
			t.Fatal(err)
		}
		l, err := listing.Read(body)
		_ = body.Close() // read
		if err != nil || len(l.Owners) != owners {
			t.Fatalf("dump of %q: %v, %+v", worker, err, l)
		}
		for _, o := range l.Owners {
			if o.Epoch != 7 || o.Seq != 3 || !slices.Equal(o.Hashes, []kvindex.BlockHash{1, 2}) {
				t.Errorf("dump of %q: %+v", worker, o)
			}
		}
	}
	o, err := c.Overlap(t.Context(), []kvindex.BlockHash{1, 2, 3})
	if err != nil || len(o) != 2 || o[0].Rank != 1 || o[0].Depth[kvindex.Device] != 2 {
		t.Errorf("overlap: %v, %+v", err, o)
	}
	resp, err := http.Post(server.URL+"/index/overlap", "application/json", strings.NewReader(`{"chain":["no hash"]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a chain that is none: status %d", resp.StatusCode)
	}
}
