package scoring

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestBreaker runs testdata/breaker.txt: each line is a moment in ms and what
// happens then: ask, ok or fail.
func TestBreaker(t *testing.T) {
	datadriven.RunTest(t, "testdata/breaker.txt", func(t *testing.T, d *datadriven.TestData) string {
		var b breaker
		var out strings.Builder
		for line := range strings.SplitSeq(strings.TrimSpace(d.Input), "\n") {
			var at int
			var what string
			if _, err := fmt.Sscan(line, &at, &what); err != nil {
				t.Fatal(err)
			}
			now := time.Unix(1000, 0).Add(time.Duration(at) * time.Millisecond)
			switch what {
			case "ask":
				fmt.Fprintf(&out, "%d %v\n", at, b.ask(now))
			case "ok", "fail":
				b.tell(what == "ok", now)
			default:
				t.Fatalf("unknown %q", what)
			}
		}
		return out.String()
	})
}

// A dead scorer is asked three times and then at growing distances; a live one always.
func TestBreakerHistories(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for history := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, history))
		var b breaker
		now, row, pauses, closedFrom := time.Unix(1000, 0), 0, 0, time.Time{}
		for step := range 300 {
			now = now.Add(time.Duration(r.IntN(1500)) * time.Millisecond)
			want := row < breakAfter || !now.Before(closedFrom)
			if got := b.ask(now); got != want {
				t.Fatalf("seed %d history %d step %d: asks %v, want %v (%+v)", seed, history, step, got, want, b)
			}
			if !want {
				continue
			}
			if row >= breakAfter && b.ask(now) {
				t.Fatalf("seed %d history %d step %d: asks twice after a pause", seed, history, step)
			}
			ok := r.IntN(8) == 0
			b.tell(ok, now)
			if ok {
				row, pauses = 0, 0
				continue
			}
			row++
			if row >= breakAfter {
				closedFrom = now.Add(min(firstBreak<<min(pauses, 10), longBreak))
				pauses++
			}
		}
	}
}
