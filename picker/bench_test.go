package picker

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// busyPool is a pool whose workers all have something to do: reported load, and
// bookings that are not reported yet. Eight workers share a host.
func busyPool(workers int) *Pool {
	p := NewPool(DefaultConfig(), timing.Known())
	r := rand.New(rand.NewPCG(1, uint64(workers)))
	for i := range workers {
		address := fmt.Sprintf("10.1.%d.%d:80%02d", i/8/250, i/8%250, i%8)
		owner := kvindex.Owner{Worker: kvindex.WorkerID(address)}
		p.Apply(&kvindex.Record{Owner: owner, Epoch: 1, Term: 1, Kind: kvindex.KindHello, Hello: &kvindex.Hello{
			Address: address, Ready: true, Model: "m", Served: []string{"m"}, BlockSize: 16, LeaseMs: 3_600_000,
		}}, epochStart())
		p.Apply(&kvindex.Record{Owner: owner, Epoch: 1, Term: 1, Kind: kvindex.KindLoad, Load: &kvindex.Load{
			Running: uint32(r.IntN(40)), Waiting: uint32(r.IntN(4)), QueuedTokens: uint64(r.IntN(20_000)), ContextTokens: uint64(r.IntN(100_000)),
		}}, epochStart())
	}
	for i := range 2 * workers {
		p.Pick(&Request{ID: fmt.Sprintf("before%d", i), Model: "m", ISL: r.IntN(8000)}, epochStart())
	}
	return p
}

// matchesOf are what every fourth worker holds of a prompt, as an index gives it.
func matchesOf(p *Pool, blocks uint32) []kvindex.Match {
	var out []kvindex.Match
	for i, w := range p.workers {
		if i%4 == 0 {
			out = append(out, kvindex.Match{Worker: w.id, Depth: [kvindex.NumTiers]uint32{blocks, blocks, blocks, blocks}, Seat: uint32(i)})
		}
	}
	return out
}

// BenchmarkDecide is the choice alone: all terms of all candidates, the best and
// the fallbacks, a microsecond later each time. Idle workers are all equal, in a
// split pool half of them only prefill.
func BenchmarkDecide(b *testing.B) {
	for _, pool := range []string{"busy", "idle", "split"} {
		for _, workers := range []int{8, 100, 1000} {
			b.Run(fmt.Sprintf("%s/workers=%d", pool, workers), func(b *testing.B) {
				p := busyPool(workers)
				req := &Request{ID: "r", Model: "m", ISL: 2048, Matches: matchesOf(p, 100)}
				for i, w := range p.workers {
					switch {
					case pool == "idle":
						p.liftFrom(w, epochStart())
						w.forget()
						req.Matches = nil
					case pool == "split" && i%2 > 0:
						w.hello.Role = kvindex.RolePrefill
						p.moved = true
					}
				}
				now := epochStart()
				b.ReportAllocs()
				for b.Loop() {
					now = now.Add(time.Microsecond)
					p.decide(req, now)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(workers), "ns/candidate")
			})
		}
	}
}

// everything makes the request and the pool use every term: slower tiers, adapters,
// places, targets, adjustments of four workers; in a split pool with transfers over
// every distance.
func everything(p *Pool, req *Request, split bool) {
	for i, w := range p.workers {
		w.hello.Tiers = []kvindex.TierSpec{{Tier: kvindex.Host}, {Tier: kvindex.External}}
		w.hello.Served, w.hello.Adapters = []string{"m", "lora"}, []string{"lora"}[:i%2]
		if i%3 == 0 {
			w.hello.Loading = []string{"lora"}
		}
		w.hello.Domain, w.hello.Rack, w.hello.Zone = fmt.Sprint("d", i/8), fmt.Sprint("r", i/32), fmt.Sprint("z", i%3)
		if split && i%2 > 0 {
			w.hello.Role = kvindex.RolePrefill
		}
	}
	p.moved = true
	req.Model, req.SLO = "lora", SLO{TTFTMs: 1000, TPOTMs: 30}
	for i := range req.Matches {
		d := &req.Matches[i].Depth
		d[kvindex.Host], d[kvindex.Disk], d[kvindex.External] = d[kvindex.Device]+8, d[kvindex.Device]+8, d[kvindex.Device]+16
	}
	for i := range 4 {
		w := p.workers[len(p.workers)*i/4]
		req.Adjust = append(req.Adjust, Adjust{Worker: w.id, Ms: float64(10*i - 15), Exclude: []string{"", "", "", "slow"}[i]})
	}
}

// BenchmarkDecideAll is the choice with every term in use.
func BenchmarkDecideAll(b *testing.B) {
	for _, split := range []bool{false, true} {
		for _, workers := range []int{8, 100, 1000} {
			b.Run(fmt.Sprintf("split=%v/workers=%d", split, workers), func(b *testing.B) {
				p := busyPool(workers)
				req := &Request{ID: "r", Model: "m", ISL: 2048, Matches: matchesOf(p, 100)}
				everything(p, req, split)
				now := epochStart()
				b.ReportAllocs()
				for b.Loop() {
					now = now.Add(time.Microsecond)
					p.decide(req, now)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(workers), "ns/candidate")
			})
		}
	}
}

// BenchmarkPick is the choice, the plan, the booking and its end.
func BenchmarkPick(b *testing.B) {
	for _, workers := range []int{8, 32, 100, 256, 1000} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			p := busyPool(workers)
			req := &Request{ID: "r", Model: "m", ISL: 2048, Matches: matchesOf(p, 100)}
			now := epochStart()
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Microsecond)
				p.Pick(req, now)
				p.Close(req.ID, now)
			}
		})
	}
}

// BenchmarkDecision is the whole decision for a prompt of 2,048 token ids: hash
// them, look them up, choose, book, and close the booking. Every fourth worker
// holds the prompt.
func BenchmarkDecision(b *testing.B) {
	tokens := make([]uint32, 2048)
	for i := range tokens {
		tokens[i] = uint32(i * 7919 % 150_000)
	}
	root := kvindex.Namespace{Model: "m", BlockSize: 16}.Root()
	for _, workers := range []int{32, 256, 1024} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			p, index := busyPool(workers), kvindex.NewIndex()
			chain := kvindex.AppendChain(nil, root, tokens, 16)
			for i, w := range p.workers {
				if i%4 > 0 {
					continue
				}
				err := index.Apply(&kvindex.Record{
					Owner: kvindex.Owner{Worker: w.id}, Epoch: 1, Term: 1, Seq: 1, Kind: kvindex.KindStored,
					Stored: &kvindex.Stored{Parent: root, Hashes: chain},
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			req, now := &Request{ID: "r", Model: "m", ISL: len(tokens)}, epochStart()
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Microsecond)
				chain = kvindex.AppendChain(chain[:0], root, tokens, 16)
				req.Matches = index.Overlap(chain, req.Matches[:0])
				p.Pick(req, now)
				p.Close(req.ID, now)
			}
		})
	}
}

// BenchmarkHash is the hashing of the same prompt.
func BenchmarkHash(b *testing.B) {
	tokens := make([]uint32, 2048)
	root := kvindex.Namespace{Model: "m", BlockSize: 16}.Root()
	var chain []kvindex.BlockHash
	b.ReportAllocs()
	for b.Loop() {
		chain = kvindex.AppendChain(chain[:0], root, tokens, 16)
	}
}
