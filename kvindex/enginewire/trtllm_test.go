package enginewire

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// showPolled decodes an answer of TensorRT-LLM. "fresh" begins with a new
// decoder, "block-size=N" with one that was told.
func showPolled(t *testing.T, d *datadriven.TestData, trt *TRT) string {
	if d.HasArg("fresh") {
		*trt = TRT{}
	}
	if d.HasArg("block-size") {
		d.ScanArgs(t, "block-size", &trt.BlockSize)
	}
	list, err := trt.Decode([]byte(d.Input))
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	var out strings.Builder
	for _, p := range list {
		fmt.Fprintf(&out, "%d:", p.Seq)
		if p.Batch.Rank != nil {
			fmt.Fprintf(&out, " rank=%d", *p.Batch.Rank)
		}
		fmt.Fprintln(&out)
		for _, e := range p.Batch.Events {
			fmt.Fprintf(&out, "  %s %s group=%d", e.Kind, e.Tier, e.Group)
			if e.Kind != Cleared {
				fmt.Fprintf(&out, " %s window=%d %s", e.GroupKind, e.Window, e.Hashes)
			}
			if e.Parent != nil {
				fmt.Fprintf(&out, " after %s", *e.Parent)
			}
			if e.BlockSize > 0 {
				fmt.Fprintf(&out, " size=%d tokens=%v", e.BlockSize, e.Tokens)
			}
			if e.Salt != "" {
				fmt.Fprintf(&out, " salt=%s", e.Salt)
			}
			if e.Extra != nil {
				fmt.Fprintf(&out, " extra=%q", e.Extra)
			}
			fmt.Fprintln(&out)
		}
		for _, s := range p.Batch.Skipped {
			fmt.Fprintf(&out, "  skipped %s: %s %s\n", s.Kind, s.Reason, s.Detail)
		}
		for _, err := range p.Batch.Bad {
			fmt.Fprintf(&out, "  bad: %v\n", err)
		}
	}
	return out.String()
}

func FuzzTRT(f *testing.F) {
	f.Add([]byte(`[{"event_id":0,"data":{"type":"created","num_blocks_per_cache_level":[8,2]},"window_size":16}]`), 0)
	f.Add([]byte(`[{"event_id":1,"window_size":16,"data":{"type":"stored","parent_hash":null,"blocks":[
		{"type":"stored_block","block_hash":7,"tokens":[{"type":"unique_token","token_id":1,"token_extra_id":2}],"cache_level":0,"mm_keys":[{"hash":"aa","start_offset":3}]},
		{"block_hash":"0xab","tokens":[{"token_id":"ab"}],"cache_level":1}]}}]`), 1)
	f.Add([]byte(`[{"event_id":2,"data":{"type":"removed","block_hashes":[7,-8,"ab"]}},{"event_id":3,"data":{"type":"updated","block_hash":7,"cache_level":{"old_value":0,"new_value":1}}}]`), 4)
	f.Fuzz(func(t *testing.T, payload []byte, blockSize int) {
		trt := TRT{BlockSize: blockSize}
		list, err := trt.Decode(payload)
		if err != nil {
			return
		}
		for _, p := range list {
			for _, e := range p.Batch.Events {
				if e.Kind == Stored && len(e.Tokens) != e.BlockSize*len(e.Hashes) && len(e.Tokens) > 0 {
					t.Fatalf("%d tokens for %d blocks of %d", len(e.Tokens), len(e.Hashes), e.BlockSize)
				}
				if e.Extra != nil && len(e.Extra) != len(e.Hashes) {
					t.Fatalf("%d entries of extra keys for %d blocks", len(e.Extra), len(e.Hashes))
				}
			}
		}
	})
}
