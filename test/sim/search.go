package sim

import (
	"context"
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// job is one simulation of many.
type job struct {
	cfg    Config
	seeds  int // 0 for one
	result *Result
}

// runAll plays simulations side by side and fills their results.
func runAll(ctx context.Context, jobs []*job) error {
	tasks := make([]func(context.Context) error, len(jobs))
	for i, j := range jobs {
		tasks[i] = func(ctx context.Context) (err error) {
			j.result, err = RunSeeds(ctx, j.cfg, j.seeds)
			return err
		}
	}
	return sideBySide(ctx, tasks)
}

// sideBySide does tasks, one a processor at a time, until the first error.
func sideBySide(ctx context.Context, tasks []func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, task := range tasks {
		group.Go(func() error { return task(ctx) })
	}
	return group.Wait()
}

// SpeedFor is the highest speed, to within 1 %, at which at least that share of
// the requests meets the SLO, in the mean of some seeds, and the result there.
// cfg's own speed is where the search begins.
func SpeedFor(ctx context.Context, cfg Config, seeds int, goodput float64) (float64, *Result, error) {
	meets := func(speed float64) (*Result, bool, error) {
		c := cfg
		c.Speed = speed
		r, err := RunSeeds(ctx, c, seeds)
		if err != nil {
			return nil, false, err
		}
		return r, r.Goodput >= goodput, nil
	}
	low, high := 0.0, cfg.Speed
	var best *Result
	for {
		r, ok, err := meets(high)
		if err != nil {
			return 0, nil, err
		}
		if !ok {
			break
		}
		low, high, best = high, high*1.5, r
	}
	for low == 0 {
		r, ok, err := meets(high / 1.5)
		if err != nil {
			return 0, nil, err
		}
		if ok {
			low, best = high/1.5, r
			break
		}
		if high /= 1.5; high < 1e-3 {
			return 0, nil, fmt.Errorf("goodput %v: not reached at any speed", goodput)
		}
	}
	for high > low*1.01 {
		mid := (low + high) / 2
		r, ok, err := meets(mid)
		if err != nil {
			return 0, nil, err
		}
		if ok {
			low, best = mid, r
		} else {
			high = mid
		}
	}
	return low, best, nil
}
