package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"slices"
	"testing"

	"github.com/go-zeromq/zmq4"
	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/enginewire"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// testIndex: after load from many clients at once, what the log says of each
// worker is what its engine holds, block for block, and the picker's own index
// has as many.
func (s *stack) testIndex(t *testing.T) {
	s.load(t, 40, 60)
	s.sameContent(t)
}

// load asks n questions of about 11 tokens a sentence, eight at once. Each
// question is asked again with another end by the one after it.
func (s *stack) load(t *testing.T, n, sentences int) {
	t.Helper()
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(8)
	for i := range n {
		q := rules(s.model, fmt.Sprintf("yard %d", i/2), sentences+i%2, 20)
		g.Go(func() error {
			_, err := s.gateway.try(ctx, q.streamed())
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// sameContent compares the log's view of every worker with its engine's cache.
func (s *stack) sameContent(t *testing.T) {
	t.Helper()
	replica, err := memlog.Dial(s.log)
	if err != nil {
		t.Fatal(err)
	}
	defer replica.Close()
	waitFor(t, "index and engines to agree", patience, func() error {
		index := kvindex.NewIndex()
		records, err := replica.Snapshot(t.Context(), "")
		if err != nil {
			return err
		}
		for i := range records {
			if err := index.Apply(&records[i]); err != nil {
				return err
			}
		}
		total := 0
		for i := range s.workers {
			w := &s.workers[i]
			want := w.blocks(t, s.model)
			got := index.Blocks(kvindex.Owner{Worker: w.id})
			if !slices.Equal(got, want) {
				return fmt.Errorf("worker %s: the log says %d blocks, the engine holds %d", w.id, len(got), len(want))
			}
			total += len(want)
		}
		if total == 0 {
			t.Fatal("the engines hold nothing")
		}
		if own := metric(t, s.page, "kvlane_index_memberships"); own != float64(total) {
			return fmt.Errorf("the picker's index has %g blocks, the engines %d", own, total)
		}
		return nil
	})
}

// blocks are the engine's cached blocks under our names, sorted. The names come
// from the token ids in the engine's own events since its start, without the
// agent.
func (w *worker) blocks(t *testing.T, model string) []kvindex.BlockHash {
	t.Helper()
	names := w.names(t, model)
	var content struct {
		NextSeq      uint64 `json:"next_seq"`
		CachedBlocks int    `json:"cached_blocks"`
		Blocks       []struct{ Hash string }
	}
	r := w.engine.do(t, http.MethodGet, "/sim/content", "")
	if err := json.Unmarshal(r.body, &content); err != nil {
		t.Fatalf("content: %v, %s", err, r)
	}
	if content.CachedBlocks != len(content.Blocks) {
		t.Errorf("the engine of %s counts %d blocks and lists %d", w.id, content.CachedBlocks, len(content.Blocks))
	}
	out := make([]kvindex.BlockHash, 0, len(content.Blocks))
	for _, b := range content.Blocks {
		h, ok := names[b.Hash]
		if !ok {
			t.Fatalf("the engine of %s holds %s, which none of its %d batches of events stored", w.id, b.Hash, content.NextSeq)
		}
		out = append(out, h)
	}
	slices.Sort(out)
	return out
}

// names replays the engine's events and computes the name of every block.
func (w *worker) names(t *testing.T, model string) map[string]kvindex.BlockHash {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s := zmq4.NewDealer(ctx, zmq4.WithTimeout(patience), zmq4.WithLogger(log.New(io.Discard, "", 0)))
	defer s.Close()
	if err := s.Dial(w.replay); err != nil {
		t.Fatal(err)
	}
	if err := s.SendMulti(zmq4.NewMsgFrom(enginewire.ReplayRequest(0)...)); err != nil {
		t.Fatal(err)
	}
	names := map[string]kvindex.BlockHash{}
	for {
		m, err := s.Recv()
		if err != nil {
			t.Fatalf("replay of %s: %v", w.id, err)
		}
		msg, err := enginewire.ParseReplay(m.Frames)
		if err != nil {
			t.Fatalf("replay of %s: %v", w.id, err)
		}
		if msg.End {
			return names
		}
		batch, err := enginewire.Decode(msg.Payload)
		if err != nil || len(batch.Bad) > 0 {
			t.Fatalf("batch %d of %s: %v, %v", msg.Seq, w.id, err, batch.Bad)
		}
		for _, e := range batch.Events {
			if e.Kind == enginewire.Stored {
				nameBlocks(t, names, e, model)
			}
		}
	}
}

func nameBlocks(t *testing.T, names map[string]kvindex.BlockHash, e enginewire.Event, model string) {
	t.Helper()
	h := kvindex.Namespace{Model: model, LoRA: e.LoRA, Salt: e.Salt, BlockSize: e.BlockSize}.Root()
	if e.Parent != nil {
		var ok bool
		if h, ok = names[e.Parent.String()]; !ok {
			t.Fatalf("an event names an unknown parent %s", e.Parent)
		}
	}
	for i, engineName := range e.Hashes {
		h = h.Next(e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize], nil)
		names[engineName.String()] = h
	}
}
