package examples

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvlane/kvlane/internal/porttest"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog"
)

// built compiles one of the programs.
func built(t *testing.T, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", file, "./"+name).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return file
}

// run starts a program until the test ends; the returned function ends it earlier.
func run(t *testing.T, file string, args ...string) (stop func()) {
	t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(file, args...) // its end is ours: the context of a test ends before its cleanups
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = cmd.Process.Signal(os.Interrupt)
		late := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("%s ended with %v:\n%s", filepath.Base(file), err, &log)
		}
	}
	t.Cleanup(stop)
	return stop
}

// picked is a picker with two workers, one in each network: w1 is full, w2 is not.
type picked struct {
	t     *testing.T
	admin string
}

// picker runs the picker with the compiled-in scorer, and the given configuration.
func picker(t *testing.T, config string) *picked {
	t.Helper()
	path := filepath.Join(t.TempDir(), "epp.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	port := porttest.Take(t, 4)
	p := &picked{t: t, admin: "http://" + porttest.Join(port)}
	run(t, built(t, "scorer-compiled"), "--config", path, "--admin", porttest.Join(port), "--log", porttest.Join(port+1),
		"--ext-proc", porttest.Join(port+2), "--health", porttest.Join(port+3))

	log, err := memlog.Dial(porttest.Join(port+1), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	p.eventually("the log takes records", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return log.Append(ctx, append(worker("w1", "10.1.0.1:8000", 999), worker("w2", "10.2.0.1:8000", 0)...)) == nil
	})
	p.eventually("both workers are in the pool", func() bool { return strings.Count(p.get("/endpoints"), `"ready": true`) == 2 })
	return p
}

// worker is a member with a cache of 1,000 blocks of 16 tokens, so many of them used.
func worker(id kvindex.WorkerID, address string, used uint32) []kvindex.Record {
	r := kvindex.Record{Owner: kvindex.Owner{Worker: id}, Epoch: 1, Term: 1}
	hello, load := r, r
	hello.Kind, hello.Hello = kvindex.KindHello, &kvindex.Hello{
		Address: address, Ready: true, Model: "m", Served: []string{"m"}, BlockSize: 16, KVBlocks: 1000, LeaseMs: 3_600_000,
	}
	load.Kind, load.Load = kvindex.KindLoad, &kvindex.Load{KVUsed: used, KVTotal: 1000}
	return []kvindex.Record{hello, load}
}

func (p *picked) eventually(what string, ok func() bool) {
	p.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(time.Minute); !ok(); {
		select {
		case <-tick.C:
		case <-end:
			p.t.Fatalf("not within a minute: %s", what)
		}
	}
}

func (p *picked) get(path string) string {
	p.t.Helper()
	resp, err := http.Get(p.admin + path)
	if err != nil {
		return err.Error() // it may still start
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

// adjusted is what a prompt of so many tokens costs more on each worker, ms.
func (p *picked) adjusted(tokens int) map[string]float64 {
	p.t.Helper()
	body := fmt.Sprintf(`{"model":"m","prompt":[%s1]}`, strings.Repeat("1,", tokens-1))
	resp, err := http.Post(p.admin+"/explain?path=/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var plan struct {
		Costs []struct {
			Target struct{ Worker string }
			Adjust float64
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&plan); err != nil {
		p.t.Fatal(err)
	}
	out := map[string]float64{}
	for _, c := range plan.Costs {
		out[c.Target.Worker] += c.Adjust
	}
	return out
}

// counted is a scorer's counter.
func (p *picked) counted(scorer, outcome string) string {
	m := regexp.MustCompile(`kvlane_scorer_calls_total\{outcome="` + outcome + `",scorer="` + scorer + `"\} (\S+)`)
	if found := m.FindStringSubmatch(p.get("/metrics")); found != nil {
		return found[1]
	}
	return "missing"
}

// The scorer that is compiled in: w1 has no room for a long prompt.
func TestScorerCompiled(t *testing.T) {
	p := picker(t, "")
	p.eventually("the scorer is asked in time", func() bool { // it has a millisecond
		got := p.adjusted(200)
		return got["w1"] == 100 && got["w2"] == 0
	})
	if got := p.adjusted(10); got["w1"] != 0 || got["w2"] != 0 {
		t.Errorf("a short prompt: %v", got)
	}
	if n := p.counted("roomy", "ok"); n == "0" || n == "missing" {
		t.Errorf("counted %s", n)
	}
}

// The scorer out of process: w2 is in another network. Once it is gone, the picker
// goes on without it and soon asks it no more; when it is back, it is asked again.
func TestScorerGRPC(t *testing.T) {
	address, file := porttest.Address(t), built(t, "scorer-grpc")
	args := []string{"--listen", address, "--near", "10.1.0.0/16", "--ms", "7"}
	stop := run(t, file, args...)
	p := picker(t, "scorers: [{name: zone, address: \""+address+"\", deadline: 1s}]\n")
	p.eventually("the scorer is asked", func() bool { return p.adjusted(10)["w2"] == 7 })
	p.eventually("both scorers are asked", func() bool {
		got := p.adjusted(200)
		return got["w1"] == 100 && got["w2"] == 7
	})
	stop()
	p.eventually("the scorer is not asked", func() bool {
		if got := p.adjusted(200); got["w2"] != 0 {
			t.Errorf("a scorer that is gone says %v", got)
		}
		open := p.counted("zone", "open")
		return open != "0" && open != "missing"
	})
	run(t, file, args...)
	p.eventually("the scorer is asked again", func() bool { return p.adjusted(10)["w2"] == 7 })
}
