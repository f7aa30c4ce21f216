package e2e_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/internal/verify"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/listing"
)

// testVerify: the three commands about the index, on one that is right and on one
// that is not.
func (s *stack) testVerify(t *testing.T) {
	admin := strings.TrimPrefix(s.page, "http://")
	s.load(t, 16, 40)
	out := mustRun(t, "", "index", "verify", "--admin", admin)
	contains(t, out, fmt.Sprintf("%d rows: 0 differ, 0 unverifiable", len(s.workers)), "same (dump, before batch ")
	out = mustRun(t, "", "index", "stats", "--admin", admin)
	contains(t, out, "log      embedded, connected", "index    ", "prefixes ")
	total := 0
	for i := range s.workers {
		w := &s.workers[i]
		contains(t, out, string(w.id))
		l, err := listing.Read(strings.NewReader(mustRun(t, "", "index", "dump", "--admin", admin, "--worker", string(w.id))))
		if err != nil {
			t.Fatal(err)
		}
		total += len(l.Of(kvindex.Owner{Worker: w.id}))
	}
	if l, err := listing.Read(strings.NewReader(mustRun(t, "", "index", "dump", "--admin", admin))); err != nil || total == 0 {
		t.Errorf("dump: %v, %d blocks", err, total)
	} else {
		for _, o := range l.Owners {
			total -= len(o.Hashes)
		}
		if total != 0 {
			t.Errorf("the dumps of single workers and of all differ by %d blocks", total)
		}
	}

	// A batch that is lost and cannot be had again.
	w := &s.workers[0]
	w.fault(t, `{"kind":"drop-events","count":1,"forget":true}`)
	w.agent.ask(t, question{Model: s.model, Prompt: story("lost", 20), MaxTokens: 1})
	r, stderr, err := s.verify(t, admin, "--wait", "100ms")
	if err == nil || !strings.Contains(stderr, "rows differ") {
		t.Errorf("%v, %q", err, stderr)
	}
	for _, row := range r.Rows {
		if lost := row.Worker == w.id; lost != (row.State == verify.Differs) || lost != (row.Missing > 0) {
			t.Errorf("row %+v", row)
		}
	}
	w.fault(t, `{"kind":"restart"}`)
	if r, stderr, err = s.verify(t, admin); err != nil || r.Differences != 0 {
		t.Errorf("after the engine's restart: %v, %q, %+v", err, stderr, r)
	}
	if _, stderr, err := command(t, "", "index", "verify", "--admin", porttest.Address(t)); err == nil || !strings.Contains(stderr, "cannot be asked") || !strings.Contains(stderr, "connection refused") {
		t.Errorf("without a picker: %v, %q", err, stderr)
	}
}

// verify runs `kvlane index verify`, which fails if there are differences.
func (f *family) verify(t *testing.T, admin string, args ...string) (verify.Report, string, error) {
	t.Helper()
	stdout, stderr, err := command(t, "", append([]string{"index", "verify", "--json", "--admin", admin}, args...)...)
	var r verify.Report
	if e := json.Unmarshal([]byte(stdout), &r); e != nil {
		t.Fatalf("verify: %v, %s%s", e, stdout, stderr)
	}
	return r, stderr, err
}
