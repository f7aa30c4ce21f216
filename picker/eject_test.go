package picker

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/kvlane/kvlane/internal/timing"
)

// TestStanding runs testdata/standing: what a pool adds to the prices by itself. It
// has the records of TestPool (leases are an hour), and
//
//	setup KEY=N...               a new pool; times in ms, shares in percent
//	pick [session=S] ...         as in TestPool, with a session
//	load W failed=(B,B) done=(B,B) aborted=(B,B)
//	failed ID ADDRESS [times=N]  a bad status; ids are ID-1 ... ID-N if N is given
//	answered ID ADDRESS [times=N]
//	health                       workers that failed something, and totals
//
// A pick prints the choice, and which candidates were adjusted or ruled out.
func TestStanding(t *testing.T) {
	datadriven.Walk(t, "testdata/standing", func(t *testing.T, path string) {
		s := standingScript{poolScript{pool: NewPool(testConfig(), testTable()), now: epochStart()}}
		datadriven.RunTest(t, path, s.run)
	})
}

type standingScript struct{ poolScript }

func (s *standingScript) run(t *testing.T, d *datadriven.TestData) string {
	var at int
	if d.MaybeScanArgs(t, "at", &at) {
		s.now = epochStart().Add(time.Duration(at) * time.Millisecond)
	}
	switch d.Cmd {
	case "setup":
		return s.setup(t, d)
	case "pick", "explain":
		req := parseRequest(t, d, nil)
		d.MaybeScanArgs(t, "session", &req.Session)
		f := s.pool.Pick
		if d.Cmd == "explain" {
			f = s.pool.Explain
		}
		plan := f(&req, s.now)
		return brief(&plan)
	case "load":
		r := s.record(t, d)
		for _, sample := range samples(d, "aborted") {
			sample.Aborted = true
			r.Load.Done = append(r.Load.Done, sample)
		}
		if arg, ok := d.Arg("failed"); ok {
			r.Load.Failed = arg.Vals
		}
		s.pool.Apply(r, s.now)
		return s.health()
	case "failed", "answered":
		n := 0
		d.MaybeScanArgs(t, "times", &n)
		id, address := d.CmdArgs[0].Key, d.CmdArgs[1].Key
		f := s.pool.Failed
		if d.Cmd == "answered" {
			f = s.pool.Answered
		}
		for i := range max(1, n) {
			name := id
			if n > 0 {
				name = fmt.Sprintf("%s-%d", id, i+1)
			}
			f(name, address, s.now)
		}
		return s.health()
	case "health":
		return s.health()
	case "hello", "bye":
		r := s.record(t, d)
		if r.Hello != nil {
			r.Hello.LeaseMs = 3_600_000
		}
		s.pool.Apply(r, s.now)
		return ""
	case "served", "close":
		s.poolScript.run(t, d)
		return s.health()
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
		return ""
	}
}

// brief is a plan without its figures, but for what was adjusted.
func brief(p *Plan) string {
	var out strings.Builder
	if p.OK() {
		fmt.Fprintf(&out, "%s ", name(p.Decode))
	}
	fmt.Fprintf(&out, "%s\n", p.Reason)
	for _, c := range p.Costs {
		if c.Adjust != 0 {
			fmt.Fprintf(&out, "%s adjust=%.1f\n", name(c.Target), c.Adjust)
		}
		if c.Excluded != "" {
			fmt.Fprintf(&out, "%s (%s)\n", name(c.Target), c.Excluded)
		}
	}
	return out.String()
}

func (s *standingScript) setup(t *testing.T, d *datadriven.TestData) string {
	c := testConfig()
	c.LeaseGrace = time.Hour
	for _, a := range d.CmdArgs {
		n := atoi(a.Vals[0])
		switch a.Key {
		case "session-ms":
			c.SessionMs = float64(n)
		case "session-ttl":
			c.SessionTTL = time.Duration(n) * time.Millisecond
		case "max-sessions":
			c.MaxSessions = n
		case "eject-after":
			c.EjectAfter = n
		case "eject-rate":
			c.EjectRate = float64(n) / 100
		case "eject-share":
			c.EjectShare = float64(n) / 100
		case "time-scale":
			c.TimeScale = float64(n)
		case "max-requests":
			c.MaxRequests = n
		case "fallbacks":
			c.Fallbacks = n
		default:
			t.Fatalf("%s: unknown key %s", d.Pos, a.Key)
		}
	}
	known := c
	known.DefaultDeployment = timing.DefaultDeployment
	if err := known.Validate(); err != nil {
		t.Fatal(err)
	}
	s.pool = NewPool(c, testTable())
	return "ok"
}

func (s *standingScript) health() string {
	st := s.pool.Stats(s.now)
	var out strings.Builder
	for _, w := range st.PerWorker {
		if w.Failures > 0 {
			fmt.Fprintf(&out, "%s failures=%d", name(Target{Worker: w.Worker, Rank: w.Rank}), w.Failures)
			if w.EjectedMs > 0 {
				fmt.Fprintf(&out, " ejected=%.0f", w.EjectedMs)
			}
			if w.ReturnMs > 0 {
				fmt.Fprintf(&out, " return=%.0f", w.ReturnMs)
			}
			out.WriteByte('\n')
		}
	}
	fmt.Fprintf(&out, "ejected=%d ejections=%d", st.Ejected, st.Ejections)
	if st.Kept > 0 {
		fmt.Fprintf(&out, " kept=%d", st.Kept)
	}
	if st.Resorted > 0 {
		fmt.Fprintf(&out, " resorted=%d", st.Resorted)
	}
	for b, n := range st.Failures {
		if n > 0 {
			fmt.Fprintf(&out, " %s=%d", Blame(b), n)
		}
	}
	if st.Sessions > 0 {
		fmt.Fprintf(&out, " sessions=%d", st.Sessions)
	}
	return out.String() + "\n"
}

// outcome is one thing that happened to a naive worker.
type outcome struct {
	at time.Time
	ok bool
}

// naiveHealth keeps all outcomes since the last ejection and all ejections.
type naiveHealth struct {
	outcomes  []outcome
	ejections []time.Time // begin
	ends      []time.Time
}

func (n *naiveHealth) out(now time.Time) bool {
	return len(n.ends) > 0 && now.Before(n.ends[len(n.ends)-1])
}

// due reports whether the outcomes, the last of which is a failure, eject.
func (n *naiveHealth) due(r *rules) bool {
	row, oks := 0, 0
	for _, o := range n.outcomes {
		row++
		if o.ok {
			row = 0
			oks++
		}
	}
	if row >= r.after || len(n.ends) > 0 && oks == 0 {
		return true
	}
	failed, all := n.window()
	return r.rate > 0 && all >= minOutcomes && float64(failed) >= r.rate*float64(all)
}

// window counts over the present window and the one before it. Windows follow each
// other from an outcome on; one that comes when two have passed begins anew.
func (n *naiveHealth) window() (failed, all int) {
	var start time.Time
	var window, windows []outcome
	for _, o := range n.outcomes {
		switch d := o.at.Sub(start); {
		case start.IsZero() || d >= 2*rateWindow:
			start, windows, window = o.at, nil, nil
		case d >= rateWindow:
			start, windows, window = start.Add(rateWindow), window, nil
		}
		window = append(window, o)
	}
	for _, o := range append(windows, window...) {
		all++
		if !o.ok {
			failed++
		}
	}
	return failed, all
}

// length is how long the next ejection takes: each one counts double what the one
// before did, less those forgotten in between.
func (n *naiveHealth) length(r *rules, now time.Time) time.Duration {
	level := 0
	for i := range n.ends {
		level++
		until := now
		if i+1 < len(n.ejections) {
			until = n.ejections[i+1]
		}
		for good := until.Sub(n.ends[i]); level > 0; level-- {
			if good -= min(r.first<<(level-1), r.most); good < 0 {
				break
			}
		}
	}
	return min(r.first<<level, r.most)
}

func TestHealthAgainstNaive(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ejections := 0
	for history := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, history))
		rules := rules{after: 1 + r.IntN(8), rate: oneOf(r, 0, 0.2, 0.5), first: 10 * time.Second, most: 100 * time.Second, ramp: 30 * time.Second, penaltyMs: 100}
		h, n, now, bad := health{}, naiveHealth{}, epochStart(), oneOf(r, 0.1, 0.3, 0.7)
		for step := range 300 {
			now = now.Add(oneOf(r, 0, 200*time.Millisecond, time.Second, time.Second, time.Duration(r.IntN(30))*time.Second))
			where := fmt.Sprintf("seed %d history %d step %d", seed, history, step)
			if h.out(now) != n.out(now) {
				t.Fatalf("%s: out %v, want %v", where, h.out(now), n.out(now))
			}
			if r.IntN(100) == 0 { // another life
				h.reborn(now)
				if n.out(now) {
					n.ends[len(n.ends)-1] = now
				}
			}
			ok := r.Float64() >= bad
			if !n.out(now) {
				n.outcomes = append(n.outcomes, outcome{now, ok})
			}
			if ok {
				h.serve(now)
				continue
			}
			want := !n.out(now) && n.due(&rules)
			if got := h.fail(&rules, now); got != want {
				t.Fatalf("%s: failure ejects %v, want %v (%+v)", where, got, want, h)
			}
			if !want || r.IntN(5) == 0 { // the share may keep it in
				continue
			}
			ejections++
			end := now.Add(n.length(&rules, now))
			h.eject(&rules, now)
			n.outcomes, n.ejections, n.ends = nil, append(n.ejections, now), append(n.ends, end)
			if !h.back.Equal(end) {
				t.Fatalf("%s: back after %v, want %v", where, h.back.Sub(now), end.Sub(now))
			}
			if late := end.Add(rules.ramp / 4); h.penaltyMs(&rules, late) != 75 || h.penaltyMs(&rules, end.Add(-1)) != 0 || h.penaltyMs(&rules, end.Add(rules.ramp)) != 0 {
				t.Fatalf("%s: penalty %v", where, h.penaltyMs(&rules, late))
			}
		}
	}
	if ejections < 1000 {
		t.Errorf("%d ejections: the histories do not cover it", ejections)
	}
}

// TestEjectionLeavesEnough: whatever fails, the share is kept when a worker goes,
// and no request is refused because of it.
func TestEjectionLeavesEnough(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	table, ejections, resorted := timing.Known(), uint64(0), uint64(0)
	for history := range uint64(60) {
		c := newCrowd(rand.New(rand.NewPCG(seed, history)), table)
		c.pool.config.EjectShare = oneOf(c.r, 0, 0.3, 0.5, 1)
		c.pool.rules.after = 1 + c.r.IntN(3)
		for step := range 400 {
			c.step()
			before := c.backs()
			c.fail()
			if err := c.enough(before); err != nil {
				t.Fatalf("seed %d history %d step %d: %v", seed, history, step, err)
			}
			c.fleet = c.pool.Fleet(c.now)
			req := c.request()
			got, resort := c.pool.Explain(&req, c.now), c.pool.resorted
			pure := *c.pool.picking.req
			pure.Turn = c.pool.turn
			if want := Pick(&pure, c.fleet); !samePlan(&got, &want) {
				t.Fatalf("seed %d history %d step %d: the pool says\n%sPick says\n%s", seed, history, step, describe(&got), describe(&want))
			}
			shaky := c.pool.shaky
			c.pool.shaky = nil
			want := c.pool.Explain(&req, c.now)
			c.pool.shaky = shaky
			if !got.OK() && got.Reason != ReasonOverloaded && want.OK() {
				t.Fatalf("seed %d history %d step %d: refused (%s)\n%s", seed, history, step, got.Reason, describe(&want))
			}
			if !resort && got.OK() && c.out(got.Decode) {
				t.Fatalf("seed %d history %d step %d: sent to an ejected worker\n%s", seed, history, step, describe(&got))
			}
			if resort {
				resorted++
			}
		}
		ejections += c.pool.counts.ejections
	}
	if ejections < 200 || resorted < 50 {
		t.Errorf("%d ejections, %d without others: the histories do not cover it", ejections, resorted)
	}
}

// fail has a request fail or be served somewhere.
func (c *crowd) fail() {
	c.next++
	id, address := fmt.Sprintf("f%d", c.next), fmt.Sprintf("10.0.0.%d:800%d", c.r.IntN(4), c.r.IntN(3))
	if len(c.open) > 0 && c.r.IntN(2) == 0 {
		id = c.open[c.r.IntN(len(c.open))]
	}
	if c.r.IntN(3) > 0 {
		c.pool.Failed(id, address, c.now)
	} else {
		c.pool.Answered(id, address, c.now)
	}
}

func (c *crowd) out(t Target) bool { return c.pool.worker(t.Worker, t.Rank).health.out(c.now) }

func (c *crowd) backs() map[*worker]time.Time {
	backs := map[*worker]time.Time{}
	for _, w := range c.pool.workers {
		backs[w] = w.health.back
	}
	return backs
}

// enough checks the share of the role of each worker that was just ejected.
func (c *crowd) enough(before map[*worker]time.Time) error {
	for _, ejected := range c.pool.workers {
		if ejected.health.back.Equal(before[ejected]) {
			continue
		}
		all, out := 0, 0
		for _, w := range c.pool.workers {
			if w == ejected || w.hello.Role == ejected.hello.Role && w.ready(c.now) {
				all++
				if w.health.out(c.now) {
					out++
				}
			}
		}
		if out == all || float64(out) > c.pool.config.EjectShare*float64(all) {
			return fmt.Errorf("%d of %d of role %s are out", out, all, ejected.hello.Role)
		}
	}
	return nil
}
