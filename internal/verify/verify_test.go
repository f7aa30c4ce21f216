package verify_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/kvlane/kvlane/internal/epp"
	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/internal/verify"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/listing"
)

// fake is a server that gives scripted answers, the last one again and again.
type fake struct {
	*httptest.Server
	t testing.TB

	mu      sync.Mutex
	answers []string // of "source" and "owner" lines
	workers []epp.WorkerView
	cached  int // of each probe; -1: it does not say
	depth   uint32
	probes  int
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fake) address() string { return f.Listener.Addr().String() }

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch r.URL.Path {
	case "/index/stats":
		v := epp.IndexView{Workers: f.workers}
		for _, o := range parse(f.t, f.answers[0]).Owners {
			v.Owners = append(v.Owners, epp.OwnerView{Worker: o.Worker, Rank: o.Rank, Tier: o.Tier.String()})
		}
		json.NewEncoder(w).Encode(v)
	case "/index/dump", "/agent/content":
		text := f.answers[0]
		if len(f.answers) > 1 {
			f.answers = f.answers[1:]
		}
		l := parse(f.t, text)
		out := listing.NewWriter(w)
		for _, s := range l.Sources {
			out.Source(s)
		}
		for _, o := range l.Owners {
			if only := r.URL.Query().Get("worker"); only == "" || only == string(o.Worker) {
				out.Owner(o.Owner, o.Hashes)
			}
		}
		if !strings.Contains(text, "cut") {
			out.End()
		}
	case "/index/overlap":
		views := []epp.OverlapView{{Worker: "w1", Depth: [kvindex.NumTiers]uint32{f.depth, f.depth, f.depth, f.depth}}}
		json.NewEncoder(w).Encode(views)
	case "/agent/prefixes":
		var list []map[string]any
		for i := range 3 {
			list = append(list, map[string]any{"model": "m", "block_size": 2, "tokens": []int{i, 1, 2, 3}})
		}
		json.NewEncoder(w).Encode(list)
	case "/v1/completions":
		f.probes++
		if f.cached < 0 {
			fmt.Fprint(w, `{"usage":{"prompt_tokens":5}}`)
			return
		}
		fmt.Fprintf(w, `{"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":%d}}}`, f.cached)
	default:
		http.NotFound(w, r)
	}
}

// parse reads lines of "source KIND NEXT [PROBLEM]" and "WORKER/RANK/TIER HASH...".
func parse(t testing.TB, text string) *listing.Listing {
	l := &listing.Listing{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "cut" {
			continue
		}
		if words[0] == "source" {
			next, err := strconv.ParseUint(words[2], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			l.Sources = append(l.Sources, listing.Source{Worker: "w1", Kind: listing.Kind(words[1]), Next: next, Problem: strings.Join(words[3:], " ")})
			continue
		}
		name := strings.Split(words[0], "/")
		o := listing.Held{Owner: listing.Owner{Owner: kvindex.Owner{Worker: kvindex.WorkerID(name[0])}}}
		rank, err := strconv.Atoi(name[1])
		if err != nil {
			t.Fatal(err)
		}
		o.Rank = uint16(rank)
		for o.Tier.String() != name[2] {
			o.Tier++
		}
		for _, w := range words[1:] {
			h, err := strconv.ParseUint(w, 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			o.Hashes = append(o.Hashes, kvindex.BlockHash(h))
		}
		l.Owners = append(l.Owners, o)
	}
	return l
}

// TestVerify has scripted pickers and agents: what each answers, question by
// question, and what the report says.
func TestVerify(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		agents, pickers, names := map[string]*fake{}, map[string]*fake{}, []string{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var name string
			d.MaybeScanArgs(t, "name", &name)
			switch d.Cmd {
			case "reset":
				agents, pickers, names = map[string]*fake{}, map[string]*fake{}, nil
			case "agent":
				agents[name] = newFake(t)
				agents[name].answers = strings.Split(d.Input, "then\n")
				agents[name].cached = -1
				d.MaybeScanArgs(t, "cached", &agents[name].cached)
			case "picker":
				p := newFake(t)
				p.answers = strings.Split(d.Input, "then\n")
				d.MaybeScanArgs(t, "depth", &p.depth)
				var workers []string
				if d.HasArg("workers") {
					for _, a := range d.CmdArgs {
						if a.Key == "workers" {
							workers = a.Vals
						}
					}
				}
				for _, w := range workers {
					v := epp.WorkerView{Worker: kvindex.WorkerID(w), Admin: porttest.Address(t)} // nobody listens there
					if a := agents[w]; a != nil {
						v.Admin, v.Address = a.address(), a.address()
					}
					p.workers = append(p.workers, v)
				}
				pickers[name] = p
				names = append(names, name)
			case "verify":
				o := verify.Options{}
				d.MaybeScanArgs(t, "probe", &o.Probes)
				var ms int
				d.MaybeScanArgs(t, "ms", &ms)
				o.Wait = time.Duration(ms) * time.Millisecond
				called := map[string]string{}
				for _, n := range names {
					o.Pickers = append(o.Pickers, pickers[n].address())
					called[pickers[n].address()] = n
				}
				if d.HasArg("dead") {
					address := porttest.Address(t)
					o.Pickers = append(o.Pickers, address)
					called[address] = "dead"
				}
				r, err := verify.Run(t.Context(), o)
				if err != nil {
					return err.Error()
				}
				return show(r, called)
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			return ""
		})
	})
}

func show(r verify.Report, called map[string]string) string {
	var out strings.Builder
	lines := map[string][]string{}
	for _, row := range r.Rows {
		line := fmt.Sprintf("%s %s/%d/%s %s: index %d, engine %d", called[row.Picker], row.Worker, row.Rank, row.Tier, row.State, row.Index, row.Engine)
		if row.Source != "" {
			line += fmt.Sprintf(" (%s, next %d)", row.Source, row.Next)
		}
		if row.Missing+row.Extra > 0 {
			line += fmt.Sprintf(", missing %x, extra %x", row.MissingBlocks, row.ExtraBlocks)
		}
		if row.Moving > 0 {
			line += fmt.Sprintf(", moving %d", row.Moving)
		}
		if row.State == verify.Unverifiable {
			detail := row.Detail
			if strings.Contains(detail, "connection refused") { // behind an address that is another one each time
				detail = "connection refused"
			}
			line += ": " + detail
		}
		if row.Probe != nil {
			line += fmt.Sprintf(", probe %+v", *row.Probe)
		}
		lines[called[row.Picker]] = append(lines[called[row.Picker]], line)
	}
	for _, n := range []string{"a", "b", "dead"} {
		for _, l := range lines[n] {
			out.WriteString(l + "\n")
		}
	}
	fmt.Fprintf(&out, "%d differ, %d unverified", r.Differences, r.Unverified)
	if r.Unproved != r.Unverified || r.Unreachable > 0 {
		fmt.Fprintf(&out, " (%d not proved), %d unreachable", r.Unproved, r.Unreachable)
	}
	out.WriteString("\n")
	return out.String()
}
