package sim_test

import (
	"fmt"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/workers/engine/sim"
)

func ExampleCore() {
	core, err := sim.New(sim.Config{
		Timing: timing.Model{
			Prefill: timing.Prefill{A: 10, B: 0.05, G: 2e-6},
			Decode:  timing.Decode{D: 15, E: 0.03, F: 4e-5},
		},
		BlockSize: 16, Blocks: 1000, MaxBatchedTokens: 8192, MaxSeqs: 256, MaxModelLen: 4096,
		PrefixCaching: true, Next: sim.WordNext([]uint32{300, 301, 302}, 0),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := core.Submit(0, sim.Request{ID: "r", Prompt: make([]uint32, 100), MaxTokens: 3}); err != nil {
		fmt.Println(err)
		return
	}
	for {
		at, ok := core.NextAt()
		if !ok {
			break
		}
		for _, t := range core.Step(at).Tokens {
			fmt.Printf("%v %s[%d] %q\n", at, t.ID, t.Index, t.Finish)
		}
	}
	// Output:
	// 15.01ms r[0] ""
	// 30.04404ms r[1] ""
	// 45.07812ms r[2] "length"
}
