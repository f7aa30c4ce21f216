package memlog_test

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// A reader that comes late gets the present state first.
func ExampleLog() {
	l := memlog.New(memlog.Options{})
	owner := kvindex.Owner{Worker: "10.0.0.1:8000"}
	err := l.Append(context.Background(), []kvindex.Record{
		{Owner: owner, Epoch: 1, Term: 1, Seq: 1, Kind: kvindex.KindStored, Stored: &kvindex.Stored{Hashes: []kvindex.BlockHash{11, 12, 13}}},
		{Owner: owner, Epoch: 1, Term: 1, Seq: 2, Kind: kvindex.KindRemoved, Removed: &kvindex.Removed{Hashes: []kvindex.BlockHash{13}}},
	})
	fmt.Println("append:", err)

	x := kvindex.NewIndex()
	ctx, cancel := context.WithCancel(context.Background())
	err = l.Tail(ctx, func(records []kvindex.Record) error {
		for i := range records {
			if err := x.Apply(&records[i]); err != nil {
				return err
			}
		}
		cancel() // one batch is enough here
		return nil
	})
	fmt.Println(err)
	fmt.Println(x.Blocks(owner))
	// Output:
	// append: <nil>
	// tail log: context canceled
	// [11 12]
}
