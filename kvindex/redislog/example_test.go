package redislog_test

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/redislog"
)

// An agent writes what its worker stores, and its content when the log asks; a
// picker follows into an index. (Not run here: it needs a Redis.)
func Example() { //nolint:testableexamples // it needs a Redis
	log, err := redislog.New(redislog.Options{URL: "redis://127.0.0.1:6379", Pool: "example"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer log.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	w := kvindex.Owner{Worker: "10.0.0.1:8000"}
	held := kvindex.Stored{Hashes: []kvindex.BlockHash{1, 2, 3}}
	if err := log.Append(ctx, []kvindex.Record{
		{Owner: w, Epoch: 1, Term: 1, Kind: kvindex.KindHello, Hello: &kvindex.Hello{Address: "10.0.0.1:8000", LeaseMs: 5000}},
		{Owner: w, Epoch: 1, Term: 1, Seq: 1, Kind: kvindex.KindStored, Stored: &held},
	}); err != nil {
		fmt.Println(err)
	}
	if log.CheckpointDue(w.Worker) {
		err := log.Checkpoint(ctx, []kvindex.Record{
			{Owner: w, Epoch: 1, Term: 1, Seq: 1, Kind: kvindex.KindCleared},
			{Owner: w, Epoch: 1, Term: 1, Kind: kvindex.KindStored, Stored: &held},
		})
		fmt.Println(err)
	}

	index := kvindex.NewIndex()
	err = log.Tail(ctx, func(records []kvindex.Record) error {
		if len(records) == 0 {
			fmt.Println("the present state is complete:", index.Stats().Blocks, "blocks")
		}
		for i := range records {
			if err := index.Apply(&records[i]); err != nil {
				fmt.Println(err)
			}
		}
		return nil
	})
	fmt.Println(err, log.Status().Connected)
}
