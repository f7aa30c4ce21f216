package replay

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Options of a replay.
type Options struct {
	// Speed scales the arrivals: 2 sends the trace in half its time.
	Speed float64
	// TimeScale is how much faster than the trace's world engines and picker run.
	TimeScale float64
	// Progress is called after each answer with how many are done; nil for none.
	// Calls do not overlap.
	Progress func(done, errors int)
	// Prefix makes request ids unique between runs.
	Prefix string
}

// ahead is how many requests have their text ready before they are due: making
// text in time must not delay a request.
const ahead = 32

type job struct {
	index int
	body  []byte
	err   error
}

// Run sends every entry at its time and waits for all answers. A cancelled ctx
// ends it early; entries not sent then have an error.
func Run(ctx context.Context, c *Client, p *Prompter, entries []Entry, o Options) []Answer {
	answers := make([]Answer, len(entries))
	jobs := make(chan job, ahead)
	go func() {
		defer close(jobs)
		for i, e := range entries {
			body, err := c.body(e, p.Prompt(e))
			jobs <- job{index: i, body: body, err: err}
		}
	}()
	var (
		wait   sync.WaitGroup
		mu     sync.Mutex
		done   int
		faulty int
	)
	finish := func(i int, a Answer) {
		mu.Lock()
		defer mu.Unlock()
		answers[i] = a
		done++
		if a.Err != "" {
			faulty++
		}
		if o.Progress != nil {
			o.Progress(done, faulty)
		}
	}
	// The first texts are ready before the clock starts.
	start := time.Now().Add(200 * time.Millisecond)
	for j := range jobs {
		due := start.Add(time.Duration(float64(entries[j.index].At) / o.Speed / o.TimeScale))
		if j.err == nil {
			j.err = sleepUntil(ctx, due)
		}
		if j.err != nil {
			finish(j.index, Answer{Err: j.err.Error()})
			continue
		}
		wait.Go(func() {
			finish(j.index, c.Send(ctx, fmt.Sprintf("%s-%d", o.Prefix, j.index), j.body, due))
		})
	}
	wait.Wait()
	return answers
}

func sleepUntil(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("not sent: %w", ctx.Err())
	}
}
