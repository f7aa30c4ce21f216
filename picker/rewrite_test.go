package picker

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestRewrite runs testdata/rewrite.txt. A line of rules is MODEL: TARGET=WEIGHT...,
// with * for the rule without a name.
func TestRewrite(t *testing.T) {
	var r Rewrites
	datadriven.RunTest(t, "testdata/rewrite.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "rules":
			var err error
			if r, err = NewRewrites(parseRules(t, d.Input)); err != nil {
				return err.Error() + "\n"
			}
			return fmt.Sprintf("ok, %d pairs\n", len(r.Pairs()))
		case "target":
			target, ok := r.Target(d.CmdArgs[0].Key, d.CmdArgs[1].Key)
			return fmt.Sprintf("%q %v rule=%s\n", target, ok, r.Rule(d.CmdArgs[0].Key))
		case "share":
			counts := map[string]int{}
			for i := range 10_000 {
				target, _ := r.Target(d.CmdArgs[0].Key, fmt.Sprintf("request-%d", i))
				counts[target]++
			}
			var out strings.Builder
			for _, name := range sortedKeys(counts) {
				fmt.Fprintf(&out, "%q %d\n", name, counts[name])
			}
			return out.String()
		default:
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		}
	})
}

func parseRules(t *testing.T, text string) []Rewrite {
	var rules []Rewrite
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		model, targets, _ := strings.Cut(line, ":")
		rule := Rewrite{Model: strings.TrimPrefix(model, "*")}
		for word := range strings.FieldsSeq(targets) {
			name, weight, _ := strings.Cut(word, "=")
			n, err := strconv.Atoi(weight)
			if err != nil {
				t.Fatal(err)
			}
			rule.Targets = append(rule.Targets, RewriteTarget{Model: name, Weight: n})
		}
		rules = append(rules, rule)
	}
	return rules
}

// Every rule serves its targets by their weights, one key always the same one, and a
// weight that grows only draws keys: a session that the grown target has stays.
func TestRewriteShares(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		rule := Rewrite{Model: "m"}
		total := 0
		for i := range 1 + r.IntN(4) {
			weight := 1 + r.IntN(oneOf(r, 10, 1000, maxWeight))
			rule.Targets = append(rule.Targets, RewriteTarget{Model: fmt.Sprintf("v%d", i), Weight: weight})
			total += weight
		}
		rewrites, err := NewRewrites([]Rewrite{rule})
		if err != nil {
			t.Fatal(err)
		}
		grown := Rewrite{Model: "m", Targets: append([]RewriteTarget{}, rule.Targets...)}
		grown.Targets[0].Weight = min(maxWeight, 2*grown.Targets[0].Weight)
		more, err := NewRewrites([]Rewrite{grown})
		if err != nil {
			t.Fatal(err)
		}
		const n = 20_000
		counts := map[string]int{}
		for i := range n {
			key := fmt.Sprintf("%d-%d", seed, i)
			target, ok := rewrites.Target("m", key)
			if again, _ := rewrites.Target("m", key); !ok || again != target {
				t.Fatalf("%q: %q %v, then %q", key, target, ok, again)
			}
			if after, _ := more.Target("m", key); target == "v0" && after != "v0" {
				t.Fatalf("%q left the target that grew", key)
			}
			counts[target]++
		}
		for _, target := range rule.Targets {
			share := float64(target.Weight) / float64(total)
			if got := float64(counts[target.Model]) / n; math.Abs(got-share) > 6*math.Sqrt(share*(1-share)/n)+5.0/n { // the second where few are expected
				t.Errorf("%v: %s has %.4f, want %.4f", rule, target.Model, got, share)
			}
		}
	}
}
