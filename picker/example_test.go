package picker_test

import (
	"fmt"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// Two workers introduce themselves; a request goes to the one that holds its
// prefix, and is closed when its answer ends.
func Example() {
	pool := picker.NewPool(picker.DefaultConfig(), timing.Known())
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, address := range []string{"10.0.0.1:8000", "10.0.0.2:8000"} {
		pool.Apply(&kvindex.Record{
			Owner: kvindex.Owner{Worker: kvindex.WorkerID(address)}, Epoch: 1, Term: 1, Kind: kvindex.KindHello,
			Hello: &kvindex.Hello{Address: address, Ready: true, Model: "base", Served: []string{"chat"}, BlockSize: 16},
		}, now)
	}
	plan := pool.Pick(&picker.Request{
		ID: "request-1", Model: "chat", ISL: 4000,
		Matches: []kvindex.Match{{Worker: "10.0.0.2:8000", Depth: [kvindex.NumTiers]uint32{200, 200, 200, 200}}},
	}, now)
	fmt.Printf("%s, %d of %d tokens cached, first token after %.0f ms: %s\n",
		plan.Decode.Address, plan.Cached, plan.ISL, plan.TTFTMs, plan.Reason)

	pool.Close("request-1", now.Add(time.Second))
	fmt.Println("bookings:", pool.Stats(now.Add(time.Second)).Bookings)
	// Output:
	// 10.0.0.2:8000, 3200 of 4000 tokens cached, first token after 52 ms: cached
	// bookings: 0
}

// Two replicas of a picker: what one books counts for the other once it has heard
// of it, which is what the log is for.
func ExamplePool_Outbox() {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	replica := func(name string) *picker.Pool {
		config := picker.DefaultConfig()
		config.Replica = name
		pool := picker.NewPool(config, timing.Known())
		pool.Apply(&kvindex.Record{
			Owner: kvindex.Owner{Worker: "10.0.0.1:8000"}, Epoch: 1, Term: 1, Kind: kvindex.KindHello,
			Hello: &kvindex.Hello{Address: "10.0.0.1:8000", Ready: true, Model: "base", Served: []string{"chat"}, BlockSize: 16},
		}, now)
		return pool
	}
	a, b := replica("a"), replica("b")
	a.Pick(&picker.Request{ID: "request-1", Model: "chat", ISL: 4000}, now)
	<-a.Outgoing()
	for _, record := range a.Outbox(nil) {
		b.Apply(&record, now.Add(time.Millisecond))
	}
	fmt.Println(b.Stats(now).PerWorker[0].Requests, "request on the worker,", b.Stats(now).Shared, "of another replica")
	// Output: 1 request on the worker, 1 of another replica
}

// A snapshot made by hand: the same request and fleet always give the same plan.
func ExamplePick() {
	deployment, err := timing.Known().Find(timing.DefaultDeployment)
	if err != nil {
		fmt.Println(err)
		return
	}
	endpoint := func(id kvindex.WorkerID, address string, queueMs float64) picker.Endpoint {
		return picker.Endpoint{
			Worker: id, Address: address, Ready: true, Served: []string{"chat"}, BlockSize: 16,
			Timing: deployment.Timing(), QueueMs: queueMs,
		}
	}
	plan := picker.Pick(
		&picker.Request{ID: "request-1", Model: "chat", ISL: 1000},
		&picker.Fleet{
			Endpoints:   []picker.Endpoint{endpoint("a", "10.0.0.1:8000", 120), endpoint("b", "10.0.0.2:8000", 30)},
			ChunkTokens: 8192, Fallbacks: 1,
		})
	for _, c := range plan.Costs {
		fmt.Printf("%s queue %.0f prefill %.0f total %.0f ms\n", c.Target.Worker, c.Queue, c.Compute, c.Total)
	}
	fmt.Println(plan.Reason, "then", plan.Fallbacks[0].Address)
	// Output:
	// b queue 30 prefill 57 total 102 ms
	// a queue 120 prefill 57 total 192 ms
	// least-cost then 10.0.0.1:8000
}

func ExampleParsePolicy() {
	_, err := picker.ParsePolicy("fastest")
	fmt.Println(err)
	// Output: policy "fastest": want kv, round-robin, least-requests or random
}
