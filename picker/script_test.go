package picker

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
)

// testTable has constants that are easy to calculate with.
func testTable() timing.Table {
	return timing.Table{
		Deployments: []timing.Deployment{{
			Name: "plain", KVTokens: 100000, KVBytesPerToken: 100000,
			Prefill: timing.Prefill{A: 10, B: 0.05, G: 1e-6},
			Decode:  timing.Decode{D: 15, E: 0.02, F: 4e-5},
		}, {
			Name: "slow", KVTokens: 100000, KVBytesPerToken: 100000,
			Prefill: timing.Prefill{A: 20, B: 0.1, G: 2e-6},
			Decode:  timing.Decode{D: 30, E: 0.04, F: 8e-5},
		}},
		Transfer: timing.Transfer{SetupMs: 1, BytesPerSecond: 1e10}, // 0.01 ms a token
	}
}

func testConfig() Config {
	c := DefaultConfig()
	c.DefaultDeployment, c.Alpha = "plain", 0.2
	return c
}

// TestPick runs testdata/pick. In a fleet each line is an endpoint: role, worker
// with an optional /rank, and options; holds is the blocks of the prompt on the
// device. A pick prints the plan and the costs in order; picks counts the targets
// of many picks that differ in id and turn.
func TestPick(t *testing.T) {
	datadriven.Walk(t, "testdata/pick", func(t *testing.T, path string) {
		var fleet Fleet
		var matches []kvindex.Match
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "fleet":
				fleet, matches = parseFleet(t, d)
				return "ok"
			case "pick":
				req := parseRequest(t, d, matches)
				plan := Pick(&req, &fleet)
				return describe(&plan)
			case "picks":
				return countPicks(t, d, &fleet, matches)
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
				return ""
			}
		})
	})
}

func parseFleet(t *testing.T, d *datadriven.TestData) (Fleet, []kvindex.Match) {
	table := testTable()
	f := Fleet{Policy: PolicyKV, Alpha: 0.2, ChunkTokens: 8192, Transfer: table.Transfer, AdapterMs: 300}
	policy := string(PolicyKV)
	d.MaybeScanArgs(t, "policy", &policy)
	d.MaybeScanArgs(t, "fallbacks", &f.Fallbacks)
	d.MaybeScanArgs(t, "max-requests", &f.MaxRequests)
	maxKV := 0 // per cent
	d.MaybeScanArgs(t, "max-kv", &maxKV)
	f.MaxKV = float64(maxKV) / 100
	maxQueue := 0
	d.MaybeScanArgs(t, "max-queue", &maxQueue)
	f.Policy, f.MaxQueueMs = Policy(policy), float64(maxQueue)
	f.Links, f.MissMs = Links{Domain: 10, Rack: 2, Far: 0.25}, 1000
	ttft, maxDelay := 0, 0
	d.MaybeScanArgs(t, "slo-ttft", &ttft)
	d.MaybeScanArgs(t, "max-delay", &maxDelay)
	f.SLO.TTFTMs, f.MaxDelay = float64(ttft), float64(maxDelay)
	var matches []kvindex.Match
	for i, line := range strings.Split(d.Input, "\n") {
		e, holds := parseEndpoint(t, line)
		if e.Address == "" {
			e.Address = fmt.Sprintf("10.0.0.%d:8000", i+1)
		}
		f.Endpoints = append(f.Endpoints, e)
		if holds != [kvindex.NumTiers]uint32{} {
			matches = append(matches, kvindex.Match{Worker: e.Worker, Rank: e.Rank, Depth: holds})
		}
	}
	slices.Reverse(matches) // their order must not matter
	return f, matches
}

func parseEndpoint(t *testing.T, line string) (Endpoint, [kvindex.NumTiers]uint32) {
	table := testTable()
	var holds [kvindex.NumTiers]uint32
	words := strings.Fields(line)
	role, err := kvindex.ParseRole(words[0])
	if err != nil {
		t.Fatal(err)
	}
	id, rank, _ := strings.Cut(words[1], "/")
	e := Endpoint{
		Worker: kvindex.WorkerID(id), Rank: uint16(atoi(rank)), Role: role, Ready: true, Served: []string{"m"},
		BlockSize: 16, KVBytesPerToken: 100000, KVFree: -1,
	}
	deployment := "plain"
	for _, word := range words[2:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "addr":
			e.Address = value
		case "down":
			e.Ready = false
		case "served":
			e.Served = strings.Split(value, ",")
		case "adapters":
			e.Adapters = strings.Split(value, ",")
		case "block":
			e.BlockSize = atoi(value)
		case "loading":
			e.Loading = strings.Split(value, ",")
		case "zone":
			e.Zone = value
		case "rack":
			e.Rack = value
		case "domain":
			e.Domain = value
		case "host-speed":
			e.LoadBytesPerSecond[kvindex.Host] = float64(atoi(value)) * 1e9
		case "queue":
			e.QueueMs = float64(atoi(value))
		case "requests":
			e.Requests = atoi(value)
		case "kv": // pledged/all
			pledged, all, _ := strings.Cut(value, "/")
			e.Pledged, e.KVTokens = atoi(pledged), atoi(all)
		case "owes":
			e.OwedMs = float64(atoi(value))
		case "decoding":
			e.Decoding = atoi(value)
		case "context":
			e.ContextTokens = atoi(value)
		case "deployment":
			deployment = value
		case "holds":
			for tier := range holds {
				holds[tier] += uint32(atoi(value))
			}
		case "host-holds":
			for tier := kvindex.Host; tier < kvindex.NumTiers; tier++ {
				holds[tier] = uint32(atoi(value))
			}
		default:
			t.Fatalf("unknown option %q in %q", key, line)
		}
	}
	found, err := table.Find(deployment)
	if err != nil {
		t.Fatal(err)
	}
	e.Timing = found.Timing()
	return e, holds
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

func parseRequest(t *testing.T, d *datadriven.TestData, matches []kvindex.Match) Request {
	req := Request{ID: "r1", Model: "m", Matches: matches}
	policy, turn := "", 0
	d.MaybeScanArgs(t, "id", &req.ID)
	d.MaybeScanArgs(t, "model", &req.Model)
	if d.HasArg("no-model") {
		req.Model = ""
	}
	d.MaybeScanArgs(t, "tokens", &req.ISL)
	d.MaybeScanArgs(t, "policy", &policy)
	d.MaybeScanArgs(t, "turn", &turn)
	req.Policy, req.Turn = Policy(policy), uint64(turn)
	if arg, ok := d.Arg("subset"); ok {
		req.HasSubset, req.Subset = true, arg.Vals
	}
	ttft, tpot := 0, 0
	d.MaybeScanArgs(t, "slo-ttft", &ttft)
	d.MaybeScanArgs(t, "slo-tpot", &tpot)
	req.SLO = SLO{TTFTMs: float64(ttft), TPOTMs: float64(tpot)}
	if arg, ok := d.Arg("adjust"); ok {
		for _, val := range arg.Vals {
			req.Adjust = append(req.Adjust, parseAdjust(val))
		}
	}
	return req
}

// parseAdjust reads worker:ms or worker:out:reason.
func parseAdjust(val string) Adjust {
	at, what, _ := strings.Cut(val, ":")
	id, rank, _ := strings.Cut(at, "/")
	a := Adjust{Worker: kvindex.WorkerID(id), Rank: uint16(atoi(rank))}
	if reason, ok := strings.CutPrefix(what, "out:"); ok {
		a.Exclude = reason
		return a
	}
	a.Ms, _ = strconv.ParseFloat(what, 64)
	return a
}

func countPicks(t *testing.T, d *datadriven.TestData, f *Fleet, matches []kvindex.Match) string {
	req := parseRequest(t, d, matches)
	n := 0
	d.ScanArgs(t, "n", &n)
	counts := map[string]int{}
	for i := range n {
		req.ID, req.Turn = fmt.Sprintf("r%d", i), uint64(i)
		plan := Pick(&req, f)
		name := string(plan.Decode.Worker)
		if plan.Prefill != nil {
			name = string(plan.Prefill.Worker) + ">" + name
		}
		counts[name]++
	}
	var out strings.Builder
	for _, name := range sortedKeys(counts) {
		fmt.Fprintf(&out, "%s %d\n", name, counts[name])
	}
	return out.String()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// describe writes a plan: a line of what was chosen, then one for each cost with
// the terms that are not 0.
func describe(p *Plan) string {
	var out strings.Builder
	if p.OK() {
		fmt.Fprintf(&out, "decode=%s", name(p.Decode))
		if p.Prefill != nil {
			fmt.Fprintf(&out, " prefill=%s", name(*p.Prefill))
		}
		for i, f := range p.Fallbacks {
			fmt.Fprintf(&out, "%s%s", map[bool]string{true: " fallbacks=", false: ","}[i == 0], name(f))
		}
		fmt.Fprintf(&out, " cached=%d ttft=%.1f ", p.Cached, p.TTFTMs)
	}
	fmt.Fprintf(&out, "reason=%s", p.Reason)
	if p.RetryAfterMs > 0 {
		fmt.Fprintf(&out, " retry-after=%.1f", p.RetryAfterMs)
	}
	out.WriteByte('\n')
	for _, c := range p.Costs {
		out.WriteString(name(c.Target))
		if c.Prefill != nil {
			fmt.Fprintf(&out, " after %s", name(*c.Prefill))
		}
		if c.Cached > 0 {
			fmt.Fprintf(&out, " cached=%d", c.Cached)
		}
		for _, term := range []struct {
			name string
			ms   float64
		}{
			{"queue", c.Queue}, {"load", c.Load}, {"compute", c.Compute}, {"transfer", c.Transfer}, {"adapter", c.Adapter},
			{"delay", c.Delay}, {"decode", c.Decode}, {"adjust", c.Adjust}, {"miss", c.Miss}, {"total", c.Total}, {"carry", c.Carry},
		} {
			if term.ms != 0 {
				fmt.Fprintf(&out, " %s=%.1f", term.name, term.ms)
			}
		}
		if c.Excluded != "" {
			fmt.Fprintf(&out, " (%s)", c.Excluded)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

func name(t Target) string {
	if t.Rank == 0 {
		return string(t.Worker)
	}
	return fmt.Sprintf("%s/%d", t.Worker, t.Rank)
}

// TestPool runs testdata/pool. Every command may have at=MS, the time since the
// start; without it the time stays. hello and load are records of a worker;
// samples are booking ids.
func TestPool(t *testing.T) {
	datadriven.Walk(t, "testdata/pool", func(t *testing.T, path string) {
		s := poolScript{pool: NewPool(testConfig(), testTable()), now: epochStart()}
		datadriven.RunTest(t, path, s.run)
	})
}

func epochStart() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

type poolScript struct {
	pool *Pool
	now  time.Time
}

func (s *poolScript) run(t *testing.T, d *datadriven.TestData) string {
	var at int
	if d.MaybeScanArgs(t, "at", &at) {
		s.now = epochStart().Add(time.Duration(at) * time.Millisecond)
	}
	switch d.Cmd {
	case "config":
		return s.config(t, d)
	case "hello", "load", "bye", "stored":
		s.pool.Apply(s.record(t, d), s.now)
		return s.stats()
	case "pick", "explain":
		var matches []kvindex.Match
		if arg, ok := d.Arg("holds"); ok {
			matches = []kvindex.Match{{Worker: kvindex.WorkerID(arg.Vals[0]), Depth: [kvindex.NumTiers]uint32{uint32(atoi(arg.Vals[1]))}}}
		}
		req := parseRequest(t, d, matches)
		f := s.pool.Pick
		if d.Cmd == "explain" {
			f = s.pool.Explain
		}
		plan := f(&req, s.now)
		return describe(&plan)
	case "served":
		s.pool.Served(d.CmdArgs[0].Key, d.CmdArgs[1].Key, s.now)
		return s.stats()
	case "close":
		s.pool.Close(d.CmdArgs[0].Key, s.now)
		return s.stats()
	case "stats":
		return s.stats()
	case "learned":
		return s.learned()
	case "model":
		info, ok := s.pool.Model(d.CmdArgs[0].Key)
		return fmt.Sprintf("base=%q lora=%q block=%d %v\n", info.Base, info.LoRA, info.BlockSize, ok)
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
		return ""
	}
}

func (s *poolScript) config(t *testing.T, d *datadriven.TestData) string {
	c := testConfig()
	scale, policy := 1, string(c.Policy)
	d.MaybeScanArgs(t, "time-scale", &scale)
	d.MaybeScanArgs(t, "max-requests", &c.MaxRequests)
	d.MaybeScanArgs(t, "policy", &policy)
	c.TimeScale, c.Policy = float64(scale), Policy(policy)
	s.pool = NewPool(c, testTable())
	return "ok"
}

func (s *poolScript) record(t *testing.T, d *datadriven.TestData) *kvindex.Record {
	id, rank, _ := strings.Cut(d.CmdArgs[0].Key, "/")
	r := &kvindex.Record{Owner: kvindex.Owner{Worker: kvindex.WorkerID(id), Rank: uint16(atoi(rank))}, Epoch: 1, Term: 1}
	d.MaybeScanArgs(t, "epoch", &r.Epoch)
	d.MaybeScanArgs(t, "term", &r.Term)
	if d.HasArg("host") {
		r.Owner.Tier = kvindex.Host
	}
	switch d.Cmd {
	case "hello":
		r.Kind = kvindex.KindHello
		h := &kvindex.Hello{Address: id + ":8000", Ready: !d.HasArg("down"), Model: "base", Served: []string{"m"}, BlockSize: 16, LeaseMs: 3000, Bare: d.HasArg("bare")}
		role := h.Role.String()
		d.MaybeScanArgs(t, "role", &role)
		d.MaybeScanArgs(t, "deployment", &h.Deployment)
		d.MaybeScanArgs(t, "lease", &h.LeaseMs)
		h.Role, _ = kvindex.ParseRole(role)
		if arg, ok := d.Arg("served"); ok {
			h.Served = arg.Vals
		}
		if arg, ok := d.Arg("adapters"); ok {
			h.Adapters = arg.Vals
		}
		r.Hello = h
	case "load":
		r.Kind = kvindex.KindLoad
		l := &kvindex.Load{}
		d.MaybeScanArgs(t, "running", &l.Running)
		d.MaybeScanArgs(t, "waiting", &l.Waiting)
		d.MaybeScanArgs(t, "queued", &l.QueuedTokens)
		d.MaybeScanArgs(t, "context", &l.ContextTokens)
		d.MaybeScanArgs(t, "age", &l.AgeMs)
		if arg, ok := d.Arg("accepted"); ok {
			l.Accepted = arg.Vals
		}
		l.FirstToken, l.Done = samples(d, "first"), samples(d, "done")
		r.Load = l
	case "bye":
		r.Kind = kvindex.KindBye
	case "stored":
		r.Kind, r.Stored = kvindex.KindStored, &kvindex.Stored{Hashes: []kvindex.BlockHash{1}}
	}
	return r
}

func samples(d *datadriven.TestData, key string) []kvindex.Sample {
	var out []kvindex.Sample
	arg, _ := d.Arg(key)
	for _, val := range arg.Vals { // id, or id/prompt/cached/output
		words := append(strings.Split(val, "/"), "0", "0", "0")
		s := kvindex.Sample{
			Booking: words[0], PromptTokens: int32(atoi(words[1])), CachedTokens: int32(atoi(words[2])), OutputTokens: int32(atoi(words[3])),
		}
		if s.PromptTokens > 0 {
			s.FirstTokenMs = 1
		}
		out = append(out, s)
	}
	return out
}

// learned makes the models anew and lists them with what the workers show.
func (s *poolScript) learned() string {
	s.pool.learnedAt = time.Time{}
	s.pool.relearn(s.now)
	var out strings.Builder
	for _, c := range s.pool.Stats(s.now).Classes {
		fmt.Fprintf(&out, "%s %s kind %d workers=%d samples=%d rejected=%d learned=%v step=%.1f token=%.4f decode=%.1f\n", c.Deployment, c.Role, c.Kind,
			c.Workers, c.Samples, c.Rejected, c.Learned, c.Model.Prefill.A, c.Model.Prefill.B, c.Model.Decode.D)
	}
	return out.String()
}

func (s *poolScript) stats() string {
	st := s.pool.Stats(s.now)
	var out strings.Builder
	fmt.Fprintf(&out, "bookings=%d", st.Bookings)
	if st.Unreported > 0 {
		fmt.Fprintf(&out, " unreported=%d", st.Unreported)
	}
	if st.Shared > 0 {
		fmt.Fprintf(&out, " shared=%d", st.Shared)
	}
	for _, total := range []struct {
		name string
		n    uint64
	}{
		{"expired", st.Expired}, {"unknown-closes", st.UnknownCloses}, {"replaced", st.Replaced}, {"fenced", st.Fenced},
		{"late", st.Late}, {"clashes", st.Clashes}, {"overflow", st.Overflow}, {"lapsed", st.Lapsed}, {"unsent", st.Unsent},
	} {
		if total.n > 0 {
			fmt.Fprintf(&out, " %s=%d", total.name, total.n)
		}
	}
	for h := HandOffRemote; h < NumHandOffs; h++ {
		if st.HandOffs[h] > 0 {
			fmt.Fprintf(&out, " %s=%d", h, st.HandOffs[h])
		}
	}
	out.WriteByte('\n')
	for _, w := range st.PerWorker {
		shared := ""
		if w.Shared > 0 {
			shared = fmt.Sprintf(" shared=%d", w.Shared)
		}
		fmt.Fprintf(&out, "%s ready=%v requests=%d bookings=%d%s queue=%.1f\n",
			name(Target{Worker: w.Worker, Rank: w.Rank}), w.Ready, w.Requests, w.Bookings, shared, w.QueueMs)
	}
	return out.String()
}
