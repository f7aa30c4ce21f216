package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/epp"
	"github.com/kvlane/kvlane/internal/verify"
	"github.com/kvlane/kvlane/kvindex/listing"
)

func TestResult(t *testing.T) {
	for want, row := range map[string]verify.Row{
		"same (dump, before batch 57)":                           {State: verify.Same, Source: listing.Dump, Next: 57},
		"same (replay, before batch 9) 3 blocks moving":          {State: verify.Same, Source: listing.Replay, Next: 9, Moving: 3},
		"differs (dump, before batch 1) 2 blocks without a name": {State: verify.Differs, Source: listing.Dump, Next: 1, Unnamed: 2},
		"stale (connection refused)":                             {State: verify.Stale, Detail: "connection refused"},
		"unverifiable (the ring begins at batch 7) ; probed 100: 98 agree, index too high 2, too low 0": {
			State: verify.Unverifiable, Source: listing.Unknown, Detail: "the ring begins at batch 7",
			Probe: &verify.Probe{Asked: 100, Agreed: 98, More: 2},
		},
		"unverifiable (no replay socket) ; probe: no prompt is known": {
			State: verify.Unverifiable, Detail: "no replay socket", Probe: &verify.Probe{Error: "no prompt is known"},
		},
	} {
		if got := result(&row); got != want {
			t.Errorf("%q\nwant %q", got, want)
		}
	}
}

func TestPrintIndex(t *testing.T) {
	var out strings.Builder
	err := printIndex(&out, "127.0.0.1:9090", epp.IndexView{
		Owners: []epp.OwnerView{
			{Worker: "10.0.0.1:8000", Tier: "device", Blocks: 1234, Epoch: 1, Term: 2, Seq: 3},
			{Worker: "10.0.0.2:8000", Rank: 1, Tier: "host", Doubtful: true},
		},
		Index: epp.IndexTotals{Blocks: 1234, Memberships: 1300, Bytes: 5 << 20},
		Log:   epp.LogView{Kind: "redis", Since: time.Now().Add(-time.Minute), Error: "connection refused", Gaps: 2, Dropped: 9},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"picker   127.0.0.1:9090\n", "log      redis, away for 1m0s: connection refused\n", "2 gaps, 0 fenced, 0 faulty, 9 dropped",
		"1234 blocks in 1300 places, 5.0 MiB", "10.0.0.1:8000  0     device  1234", "doubtful: records were lost",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestVerdict(t *testing.T) {
	rows := []verify.Row{{}, {Picker: "127.0.0.1:9090", State: verify.Unreachable, Detail: "connection refused"}}
	for want, r := range map[string]verify.Report{
		"":                        {Rows: rows, Unverified: 1},
		"1 1 of 2 rows differ":    {Rows: rows, Differences: 1, Unproved: 1, Unreachable: 1},
		"2 1 of 2 rows could not": {Rows: rows, Unproved: 1},
		"3 the picker at 127.0.0.1:9090 cannot be asked: connection refused": {Rows: rows, Unproved: 1, Unreachable: 1},
	} {
		got := ""
		if err := verdict(r); err != nil {
			got = fmt.Sprintf("%d %v", exitCode(err), err)
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A worker that the picker does not know is an error with those that it does.
func TestDumpOfNobody(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"workers":[{"worker":"b"}],"owners":[{"worker":"a"},{"worker":"b"}]}`))
	}))
	defer page.Close()
	root := newRootCommand()
	root.SetArgs([]string{"index", "dump", "--admin", page.URL, "--worker", "nope"})
	root.SetOut(io.Discard)
	if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--worker nope: the picker does not know it; there are a, b") {
		t.Errorf("got %v", err)
	}
}
