package workers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/kvlane/kvlane/kvindex/enginewire"
)

const (
	// pollLeast and pollMost bound the pause between two questions: short while
	// events come, longer while the engine is quiet. A block is of use to the next
	// request at the earliest, so 20 ms are soon enough.
	pollLeast = 5 * time.Millisecond
	pollMost  = 20 * time.Millisecond
	// pollTimeout bounds one question. Some versions hold it back for 2 s while
	// there is nothing to tell.
	pollTimeout = 30 * time.Second
	// maxPollAnswer bounds one answer; about 64 bytes a token.
	maxPollAnswer = 64 << 20
	// trtBlockSize is TensorRT-LLM's tokens_per_block where nobody says another.
	trtBlockSize = 32
)

// errPollTooLong refuses an answer over the limit.
var errPollTooLong = errors.New("answer over the limit")

// polled reports whether an endpoint is one to ask, as TensorRT-LLM's is, not a
// socket to listen to.
func polled(endpoint string) bool {
	return strings.HasPrefix(endpoint, "http://") || strings.HasPrefix(endpoint, "https://")
}

// poll follows an engine that hands out its events when it is asked, each of them
// once. So nobody else may ask there, and what is lost cannot be had again: a hole
// in the numbers makes the rank's content doubtful.
func (f *feed) poll(ctx context.Context) error {
	p := &poller{feed: f, client: &http.Client{Timeout: pollTimeout}, trt: enginewire.TRT{BlockSize: f.worker.BlockSize}}
	if p.trt.BlockSize == 0 {
		p.trt.BlockSize = trtBlockSize
	}
	f.restarted = func() func() {
		p.next = nil
		return func() {}
	}
	pause := pollLeast
	for {
		n, err := p.ask(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it ended because it was told to
		case err != nil:
			f.metrics.FeedReconnects.Inc()
			f.log.Debug("kv events: no answer", "err", err)
			pause = dialRetry
		case n > 0:
			pause = pollLeast
		default:
			pause = min(pause+pause/2, pollMost)
		}
		if err == nil {
			f.ready()
		}
		if !f.pause(ctx, pause) {
			return nil
		}
	}
}

// poller asks one engine.
//
// Invariant: next[r] is one more than the number of the newest event of rank r
// that was applied in the engine's present life.
type poller struct {
	feed   *feed
	client *http.Client
	trt    enginewire.TRT
	next   map[uint16]uint64
}

// ask fetches what is new, applies it, and returns how many events it was.
func (p *poller) ask(ctx context.Context) (int, error) {
	payload, err := p.fetch(ctx)
	if err != nil {
		return 0, err
	}
	list, err := p.trt.Decode(payload)
	if err != nil {
		p.feed.metrics.Batches.WithLabelValues("bad").Inc()
		return 0, err
	}
	for i := range list {
		p.take(ctx, list[i])
	}
	return len(list), nil
}

func (p *poller) fetch(ctx context.Context) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.feed.events, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask for events: %w", err)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask for events: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask for events: %s", resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxPollAnswer+1))
	if err == nil && len(body) > maxPollAnswer {
		err = errPollTooLong
	}
	if err != nil {
		// The engine has let go of them: the next number shows the hole.
		return nil, fmt.Errorf("read events: %w", err)
	}
	return body, nil
}

// take applies one event by its number.
func (p *poller) take(ctx context.Context, e enginewire.Polled) {
	f := p.feed
	rank := f.rankOf(e.Batch)
	next, seen := p.next[rank]
	switch {
	case e.Seq == next:
	case e.Seq < next:
		f.newLife(ctx, life{}, "sequence fell back")
		if e.Seq > 0 { // the beginning of this life is lost
			f.metrics.Gaps.Inc()
		}
	default:
		f.metrics.Gaps.Inc()
		f.metrics.Doubts.Inc()
		f.log.Warn("kv events lost: content cleared", "rank", rank, "from", next, "to", e.Seq)
		if f.ranks[rank] && seen {
			f.publisher.put(ctx, update{rank: rank, events: &events{lost: true}})
		}
	}
	if p.next == nil {
		p.next = make(map[uint16]uint64)
	}
	p.next[rank] = e.Seq + 1
	f.metrics.Batches.WithLabelValues("applied").Inc()
	f.translate(ctx, e.Batch, e.Seq)
	if f.handled != nil {
		f.handled(e.Seq)
	}
}
