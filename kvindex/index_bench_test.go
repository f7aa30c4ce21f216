package kvindex

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
)

// The workload is that of the side-by-side benchmark with another indexer:
// conversations of families that share a prefix, a million (block, worker) pairs.

func mix(x uint64) uint64 {
	z := x + 0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

type mixRng uint64

func (r *mixRng) next() uint64 {
	v := mix(uint64(*r))
	*r += 0x9E3779B97F4A7C15
	return v
}

func localHash(kind, id, i uint64) uint64 { return mix(kind<<60 | id<<24 | i) }

func chainHashes(local []uint64) []BlockHash {
	out := make([]BlockHash, len(local))
	var b [16]byte
	for i, l := range local {
		out[i] = BlockHash(l)
		if i > 0 {
			binary.LittleEndian.PutUint64(b[:], uint64(out[i-1]))
			binary.LittleEndian.PutUint64(b[8:], l)
			out[i] = BlockHash(xxh3.HashSeed(b[:], 1337))
		}
	}
	return out
}

type conversation struct {
	family, worker, size uint64
	turns                []int
	prefix               bool // the worker had the family before
}

// workload is the plan and what follows from it.
type workload struct {
	workers uint64
	plan    []conversation
	total   int
	seq     []uint64 // of each worker
}

const prefixBlocks = 32

func newWorkload(workers uint64) *workload {
	w := &workload{workers: workers, seq: make([]uint64, workers)}
	rng := mixRng(42)
	had := map[[2]uint64]bool{}
	for w.total < 1_000_000 {
		c := conversation{}
		if rng.next()&1 == 1 {
			c.family = rng.next() % 2000
		} else {
			c.family = rng.next() % 20
		}
		c.worker = rng.next() % workers
		c.size = 64 + rng.next()%193
		for own := int(c.size) - prefixBlocks; own > 0; {
			t := min(int(4+rng.next()%29), own)
			c.turns = append(c.turns, t)
			own -= t
		}
		key := [2]uint64{c.worker, c.family}
		c.prefix = had[key]
		had[key] = true
		w.total += int(c.size) - prefixBlocks
		if !c.prefix {
			w.total += prefixBlocks
		}
		w.plan = append(w.plan, c)
	}
	return w
}

func (w *workload) local(id int) []uint64 {
	c := w.plan[id]
	out := make([]uint64, c.size)
	for i := range out {
		if i < prefixBlocks {
			out[i] = localHash(1, c.family, uint64(i))
		} else {
			out[i] = localHash(2, uint64(id), uint64(i))
		}
	}
	return out
}

func (w *workload) record(worker uint64) Record {
	w.seq[worker]++
	return Record{Owner: Owner{Worker: workerName(worker)}, Epoch: 1, Term: 1, Seq: w.seq[worker]}
}

func workerName(w uint64) WorkerID { return WorkerID(fmt.Sprintf("10.0.%d.%d:8000", w/256, w%256)) }

func (w *workload) stored(worker uint64, parent BlockHash, hashes []BlockHash) Record {
	r := w.record(worker)
	r.Kind, r.Stored = KindStored, &Stored{Parent: parent, Hashes: hashes}
	return r
}

// stores are the store events; singles stores a quarter of each turn block by block.
func (w *workload) stores(singles bool) []Record {
	var out []Record
	for wave := 0; wave < len(w.plan); wave += 256 {
		ids := w.plan[wave:min(wave+256, len(w.plan))]
		chains := make([][]BlockHash, len(ids))
		done := make([]int, len(ids))
		for i := range ids {
			chains[i] = chainHashes(w.local(wave + i))
			done[i] = prefixBlocks
		}
		for turn, more := 0, true; more; turn++ {
			more = false
			for i := range ids {
				c := &ids[i]
				if turn >= len(c.turns) {
					continue
				}
				more = true
				from, to := done[i], done[i]+c.turns[turn]
				done[i] = to
				if turn == 0 && !c.prefix {
					from = 0
				}
				end := to
				if singles {
					end -= c.turns[turn] / 4
				}
				for from < to {
					var parent BlockHash
					if from > 0 {
						parent = chains[i][from-1]
					}
					out = append(out, w.stored(c.worker, parent, chains[i][from:end:end]))
					from, end = end, end+1
				}
			}
		}
	}
	return out
}

// removes evict the first half of the conversations.
func (w *workload) removes() []Record {
	var out []Record
	for id := range len(w.plan) / 2 {
		chain := slices.Clone(chainHashes(w.local(id))[prefixBlocks:])
		slices.Reverse(chain)
		for part := range slices.Chunk(chain, 16) {
			r := w.record(w.plan[id].worker)
			r.Kind, r.Removed = KindRemoved, &Removed{Hashes: part}
			out = append(out, r)
		}
	}
	return out
}

// documents are the deep ones.
func (w *workload) documents() (out []Record, chains [][]BlockHash) {
	for d := range uint64(8) {
		local := make([]uint64, 8192)
		for i := range local {
			local[i] = localHash(3, d, uint64(i))
		}
		chain := chainHashes(local)
		chains = append(chains, chain)
		for j := range uint64(4) {
			var parent BlockHash
			for part := range slices.Chunk(chain[:8192-512*j], 512) {
				out = append(out, w.stored((4*d+j)%w.workers, parent, part))
				parent = part[len(part)-1]
			}
		}
	}
	return out, chains
}

type querySet struct {
	name   string
	chains [][]BlockHash
}

func (w *workload) queries(documents [][]BlockHash) []querySet {
	rng, q := mixRng(7), uint64(0)
	var out []querySet
	for _, n := range [][2]int{{16, 4096}, {128, 4096}, {1024, 1024}, {8192, 256}} {
		s := querySet{name: fmt.Sprintf("q%d", n[0])}
		for range n[1] {
			q++
			local := w.local(int(rng.next() % uint64(len(w.plan))))
			local = local[:min(len(local), n[0])]
			for i := len(local); i < n[0]; i++ {
				local = append(local, localHash(4, q, uint64(i)))
			}
			s.chains = append(s.chains, chainHashes(local))
		}
		out = append(out, s)
	}
	for _, n := range []int{1024, 8192} {
		s := querySet{name: fmt.Sprintf("deep%d", n)}
		for _, d := range documents {
			s.chains = append(s.chains, d[:n])
		}
		out = append(out, s)
	}
	s := querySet{name: "miss"}
	for k := range uint64(4096) {
		local := make([]uint64, 128)
		for i := range local {
			local[i] = localHash(4, 1_000_000+k, uint64(i))
		}
		s.chains = append(s.chains, chainHashes(local))
	}
	return append(out, s)
}

// threadTime is the CPU time of the calling thread.
func threadTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(1, &u); err != nil { // RUSAGE_THREAD
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func applyAll(b *testing.B, x *Index, records []Record) {
	b.Helper()
	for i := range records {
		if err := x.Apply(&records[i]); err != nil {
			b.Fatal(err)
		}
	}
}

// measure runs f with its CPU time as metric, per second of it.
func measure(b *testing.B, x *Index, records []Record, blocks int) {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := threadTime()
	applyAll(b, x, records)
	b.ReportMetric(float64(blocks)/(threadTime()-start).Seconds()/1e6, "Mblocks/cpu-s")
}

// BenchmarkIndexWrite fills and empties an index. Run it with -benchtime 3x: the
// metric is that of the last time, ns/op that of all with their preparation.
func BenchmarkIndexWrite(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	for _, workers := range []uint64{32, 256} {
		for _, singles := range []bool{false, true} {
			w := newWorkload(workers)
			records := w.stores(singles)
			removes := w.removes()
			blocks := 0
			for i := range removes {
				blocks += len(removes[i].Removed.Hashes)
			}
			var x *Index
			b.Run(fmt.Sprintf("store/workers=%d/singles=%t", workers, singles), func(b *testing.B) {
				for b.Loop() {
					x = NewIndex()
					measure(b, x, records, w.total)
				}
				b.Logf("%d conversations, %d pairs, %d events; %+v", len(w.plan), w.total, len(records), x.Stats())
				s := x.Stats()
				b.ReportMetric(float64(s.Bytes)/float64(s.Memberships), "bytes/pair")
			})
			b.Run(fmt.Sprintf("remove/workers=%d/singles=%t", workers, singles), func(b *testing.B) {
				for b.Loop() {
					x = NewIndex()
					applyAll(b, x, records)
					measure(b, x, removes, blocks)
				}
				b.Logf("%d events, %d blocks; %+v", len(removes), blocks, x.Stats())
			})
		}
	}
}

// BenchmarkIndexRead asks a full index.
func BenchmarkIndexRead(b *testing.B) {
	for _, workers := range []uint64{32, 256} {
		w := newWorkload(workers)
		x := NewIndex()
		applyAll(b, x, w.stores(false))
		documents, chains := w.documents()
		applyAll(b, x, documents)
		for _, q := range w.queries(chains) {
			b.Run(fmt.Sprintf("%s/workers=%d", q.name, workers), func(b *testing.B) {
				var dst []Match
				matched, depth := 0, 0
				for _, c := range q.chains {
					dst = x.Overlap(c, dst[:0])
					matched += len(dst)
					for _, m := range dst {
						depth += int(m.Depth[0])
					}
				}
				b.Logf("%d matches, %d deep", matched, depth)
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				samples := make([]time.Duration, 0, 1<<20)
				i := 0
				start := threadTime()
				for b.Loop() {
					from := time.Now()
					dst = x.Overlap(q.chains[i], dst[:0])
					if len(samples) < cap(samples) {
						samples = append(samples, time.Since(from))
					}
					i = (i + 1) % len(q.chains)
				}
				cpu := threadTime() - start
				slices.Sort(samples)
				b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
				b.ReportMetric(float64(samples[len(samples)/2].Nanoseconds()), "p50-ns")
				b.ReportMetric(float64(samples[len(samples)*99/100].Nanoseconds()), "p99-ns")
			})
		}
	}
}
