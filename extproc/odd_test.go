package extproc

import (
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// A worker whose engine has not said its block size yet is picked by load, whatever
// the prompt is.
func TestNoBlockSize(t *testing.T) {
	pool := picker.NewPool(picker.DefaultConfig(), timing.Known())
	now := time.Unix(1_700_000_000, 0)
	pool.Apply(&kvindex.Record{
		Owner: kvindex.Owner{Worker: "w"}, Epoch: 1, Term: 1, Kind: kvindex.KindHello,
		Hello: &kvindex.Hello{Address: "192.0.2.1:8000", Ready: true, Model: "m", Served: []string{"m"}, LeaseMs: 5000},
	}, now)
	r := NewRouter(kvindex.NewIndex(), kvindex.NewPrefixMap(1<<20), pool, "secret")
	for i, body := range []string{
		`{"model":"m","prompt":[1,2,3,4,5]}`, `{"model":"m","prompt":[[1,2,3],[4,5]]}`, `{"model":"m","prompt":"text"}`,
	} {
		d, refusal := r.Route(now, Ask{ID: string(rune('a' + i)), Method: "POST", Path: "/v1/completions", Body: []byte(body)})
		if refusal != nil || d.Plan.Decode.Worker != "w" {
			t.Errorf("%s: %+v, %+v", body, d, refusal)
		}
	}
}
