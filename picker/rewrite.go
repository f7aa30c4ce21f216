package picker

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/zeebo/xxh3"
)

// Rewrite sends the requests for one model name to others, each with its share.
type Rewrite struct {
	// Model is the exact name in the request. Empty stands for every name that no
	// other rule has; a request without a name is never changed.
	Model string `yaml:"model"`
	// Targets are the names that take its place, 1 to 64.
	Targets []RewriteTarget `yaml:"targets"`
}

// RewriteTarget is one of the names that take a model's place.
type RewriteTarget struct {
	// Model is the name that a worker serves. It is not rewritten again; the name
	// of the request itself leaves its share as it is.
	Model string `yaml:"model"`
	// Weight is the target's share among the rule's; 1 to 1,000,000, 1 where the file
	// does not say it.
	Weight int `yaml:"weight"`
}

// Bounds of rewrites: the weights are those of llm-d's InferenceModelRewrite, a
// name goes into a header and a metric.
const (
	maxRewrites     = 256
	maxTargets      = 64
	maxWeight       = 1_000_000
	maxRewriteModel = 256
)

// Rewrites choose the model that serves a request. The zero value changes nothing.
// It is immutable and safe for concurrent use.
type Rewrites struct {
	rules map[string]split
	other split // of the rule without a name
}

// split is one rule: the hash space is cut in the order of the targets.
type split struct {
	targets []RewriteTarget
	total   uint64
	seed    uint64
}

// NewRewrites checks the rules and lists every fault, each with its place.
func NewRewrites(list []Rewrite) (Rewrites, error) {
	var faults []error
	if len(list) > maxRewrites {
		faults = append(faults, fmt.Errorf("rewrites: %d rules are more than %d", len(list), maxRewrites))
	}
	r := Rewrites{rules: make(map[string]split, len(list))}
	names := make(map[string]bool, len(list))
	for i, rule := range list {
		if names[rule.Model] {
			faults = append(faults, fmt.Errorf("rewrites[%d].model: %q has a rule already", i, rule.Model))
		}
		names[rule.Model] = true
		if rule.Model != "" && !isModelName(rule.Model) {
			faults = append(faults, fmt.Errorf("rewrites[%d].model: %.80q is not 1 to %d printable ASCII characters", i, rule.Model, maxRewriteModel))
		}
		s, wrong := newSplit(rule)
		for _, fault := range wrong {
			faults = append(faults, fmt.Errorf("rewrites[%d].targets%w", i, fault))
		}
		if rule.Model == "" {
			r.other = s
			continue
		}
		r.rules[rule.Model] = s
	}
	return r, errors.Join(faults...)
}

func newSplit(rule Rewrite) (split, []error) {
	s := split{seed: xxh3.HashString(rule.Model)}
	var faults []error
	if n := len(rule.Targets); n < 1 || n > maxTargets {
		faults = append(faults, fmt.Errorf(": %d are not 1 to %d", n, maxTargets))
	}
	for i, t := range rule.Targets {
		if !isModelName(t.Model) {
			faults = append(faults, fmt.Errorf("[%d].model: %.80q is not 1 to %d printable ASCII characters", i, t.Model, maxRewriteModel))
		}
		if t.Weight < 1 || t.Weight > maxWeight {
			faults = append(faults, fmt.Errorf("[%d].weight: %d is not within 1 to %d", i, t.Weight, maxWeight))
		}
		s.targets = append(s.targets, t)
		s.total += uint64(t.Weight)
	}
	return s, faults
}

// isModelName refuses what a header or a log line could not hold.
func isModelName(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return s != "" && len(s) <= maxRewriteModel
}

// Empty reports whether there is no rule.
func (r *Rewrites) Empty() bool { return len(r.rules) == 0 && len(r.other.targets) == 0 }

// Target is the model that serves a request for model, the same one for the same
// key: the request's id, or its session, so that a session stays with one variant
// for as long as the rule is the same. False if no rule has the name or the name
// stays as it is.
func (r *Rewrites) Target(model, key string) (string, bool) {
	if model == "" {
		return "", false
	}
	s, ok := r.rules[model]
	if !ok {
		s = r.other
	}
	if s.total == 0 {
		return "", false
	}
	at, _ := bits.Mul64(xxh3.HashStringSeed(key, s.seed), s.total)
	for _, t := range s.targets {
		if at < uint64(t.Weight) {
			return t.Model, t.Model != model
		}
		at -= uint64(t.Weight)
	}
	return "", false // not reached: at is less than the sum of the weights
}

// Pairs are all names that a request may change from and to, of rules with a name:
// the labels of a metric. The rule without one has the name "*".
func (r *Rewrites) Pairs() [][2]string {
	var pairs [][2]string
	add := func(model string, s split) {
		for _, t := range s.targets {
			if t.Model != model {
				pairs = append(pairs, [2]string{model, t.Model})
			}
		}
	}
	for model, s := range r.rules {
		add(model, s)
	}
	add("*", r.other)
	return pairs
}

// Rule is the name of the rule that a model falls under, as in [Rewrites.Pairs].
func (r *Rewrites) Rule(model string) string {
	if _, ok := r.rules[model]; ok {
		return model
	}
	return "*"
}
