package epp

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/kvlane/kvlane/internal/config"
	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/kvindex"
)

// TestAdmin asks the admin page of a pool made of hello lines.
func TestAdmin(t *testing.T) {
	var p *parts
	datadriven.RunTest(t, "testdata/admin.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "new":
			p = newParts(t)
			return ""
		case "hello":
			var worker, role string
			d.ScanArgs(t, "worker", &worker)
			d.MaybeScanArgs(t, "role", &role)
			r := kvindex.RoleAggregated
			if role != "" {
				var err error
				if r, err = kvindex.ParseRole(role); err != nil {
					d.Fatalf(t, "%v", err)
				}
			}
			hello(t, p, kvindex.WorkerID(worker), r)
			return ""
		case "get", "post":
			var path string
			d.ScanArgs(t, "path", &path)
			w := httptest.NewRecorder()
			p.admin.handler().ServeHTTP(w, httptest.NewRequest(strings.ToUpper(d.Cmd), path, strings.NewReader(d.Input)))
			return w.Result().Status + "\n" + stable(w.Body.String())
		}
		d.Fatalf(t, "unknown command %s", d.Cmd)
		return ""
	})
}

// stable leaves out what differs from run to run.
func stable(body string) string {
	return regexp.MustCompile(`(?m)^ *"at": .*\n`).ReplaceAllString(body, "")
}

func newParts(t *testing.T) *parts {
	t.Helper()
	c := config.Default()
	c.ExtProc.MaxBodyBytes = 150
	p, err := build(c, Options{Secret: "secret"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func hello(t *testing.T, p *parts, worker kvindex.WorkerID, role kvindex.Role) {
	t.Helper()
	err := p.follower.apply([]kvindex.Record{{
		Owner: kvindex.Owner{Worker: worker}, Epoch: 1, Term: 1, Kind: kvindex.KindHello,
		Hello: &kvindex.Hello{
			Address: string(worker) + ":8000", Role: role, Ready: true, Model: "m", Served: []string{"m"},
			BlockSize: 16, KVBlocks: 100, LeaseMs: 3000,
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// Every metric has a name and a form that Prometheus takes.
func TestMetrics(t *testing.T) {
	p := newParts(t)
	hello(t, p, "10.0.0.1", kvindex.RoleAggregated)
	families, err := p.admin.page.Gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, f := range families {
		found[f.GetName()] = true
	}
	for _, name := range []string{
		"kvlane_pool_workers_ready", "kvlane_index_blocks", "kvlane_log_records_total", "kvlane_worker_requests",
		"kvlane_pool_sessions", "kvlane_pool_workers_ejected", "kvlane_pool_ejections_total", "kvlane_pool_failures_total",
		"kvlane_worker_ejected", "kvlane_worker_failures_total", "kvlane_log_connected", "kvlane_log_lag_seconds", "kvlane_log_bookings_total", "kvlane_log_dropped_records_total",
	} {
		if !found[name] {
			t.Errorf("no %s", name)
		}
	}
}

// A worker that leaves without a Bye is forgotten everywhere in the end.
func TestSilentWorkerIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParts(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 2)
		go func() { done <- p.follower.run(ctx) }()
		go func() { done <- p.follower.dropSilent(ctx) }()
		owner := kvindex.Owner{Worker: "10.0.0.1"}
		err := p.log.Append(ctx, []kvindex.Record{
			{Owner: owner, Epoch: 1, Term: 1, Kind: kvindex.KindHello, Hello: &kvindex.Hello{
				Address: "10.0.0.1:8000", Ready: true, Model: "m", Served: []string{"m"}, BlockSize: 16, LeaseMs: 3000,
			}},
			{Owner: owner, Epoch: 1, Term: 1, Seq: 1, Kind: kvindex.KindStored, Stored: &kvindex.Stored{Hashes: []kvindex.BlockHash{1, 2}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := p.follower.index.Stats().Blocks; n != 2 {
			t.Fatalf("%d blocks, want 2", n)
		}
		time.Sleep(config.Default().Picker.LeaseGrace + time.Minute) //nolint:forbidigo // the bubble's clock
		synctest.Wait()
		if index, log := p.follower.index.Stats(), p.log.embedded.Stats(); index.Blocks != 0 || log.Workers != 0 {
			t.Errorf("index has %d blocks, log %d workers", index.Blocks, log.Workers)
		}
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// A worker that says Bye while the tail is broken is not in the snapshot of the
// next tail. It is forgotten all the same.
func TestByeBetweenTails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParts(t)
		owner := kvindex.Owner{Worker: "10.0.0.1"}
		for _, r := range []kvindex.Record{
			{Owner: owner, Epoch: 1, Term: 1, Kind: kvindex.KindHello, Hello: &kvindex.Hello{
				Address: "10.0.0.1:8000", Ready: true, Model: "m", Served: []string{"m"}, BlockSize: 16, LeaseMs: 3000,
			}},
			{Owner: owner, Epoch: 1, Term: 1, Seq: 1, Kind: kvindex.KindStored, Stored: &kvindex.Stored{Hashes: []kvindex.BlockHash{1, 2}}},
		} {
			p.follower.one(&r, time.Now()) // of a tail that broke
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 2)
		go func() { done <- p.follower.run(ctx) }()
		go func() { done <- p.follower.dropSilent(ctx) }()
		time.Sleep(config.Default().Picker.LeaseGrace + time.Minute) //nolint:forbidigo // the bubble's clock
		synctest.Wait()
		if n, silent := p.follower.index.Stats().Blocks, p.follower.silent(time.Now()); n != 0 || len(silent) != 0 {
			t.Errorf("index has %d blocks, silent workers: %v", n, silent)
		}
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// A port in use ends Run before anything is served, with one error that names it.
func TestRunNamesThePort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	l := Listen{ExtProc: "127.0.0.1:0", Health: "127.0.0.1:0", Log: taken.Addr().String(), Admin: "127.0.0.1:0"}
	err = Run(t.Context(), config.Default(), Options{Listen: l}, slog.New(slog.DiscardHandler))
	if err == nil || !strings.HasPrefix(err.Error(), "log: listen tcp") || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("got %v", err)
	}
}

// Run serves, and returns nil when its context ends.
func TestRunEnds(t *testing.T) {
	l := Listen{ExtProc: "127.0.0.1:0", Health: "127.0.0.1:0", Log: "127.0.0.1:0", Admin: porttest.Address(t)}
	ctx, cancel := context.WithCancel(t.Context())
	up, upWriter := io.Pipe()
	done := make(chan error)
	go func() {
		done <- Run(ctx, config.Default(), Options{Listen: l}, slog.New(slog.NewJSONHandler(upWriter, nil)))
	}()
	lines := json.NewDecoder(up)
	for _, want := range []string{"picker starts", "picker is up"} {
		var line struct{ Msg string }
		if err := lines.Decode(&line); err != nil || line.Msg != want {
			t.Fatalf("got %q %v, want %q", line.Msg, err, want)
		}
	}
	go func() { _, _ = io.Copy(io.Discard, up) }() // ends with the pipe
	resp, err := http.Get("http://" + l.Admin + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	cancel()
	if err := <-done; err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, end %v", resp.StatusCode, err)
	}
	_ = upWriter.Close()
}
