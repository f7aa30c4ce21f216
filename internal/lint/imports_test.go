package lint_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/kvlane/kvlane/"

// all as the only entry lets a package import every other one.
var all = []string{"*"}

// allowed says what each package may import of this module. "x/..." is x and
// everything under it. A new package needs a line here, a line without a
// package has to go.
var allowed = map[string][]string{
	// Wiring.
	"cmd/kvlane":   all,
	"internal/epp": all, // the picker as a process
	"internal/up":  {"extproc", "internal/child", "internal/envoyconf", "internal/epp", "internal/timing", "kvindex/redislog"},

	// Pure: values in, values out.
	"kvindex":         {},
	"picker":          {"kvindex", "internal/timing"},
	"picker/flow":     {},
	"internal/timing": {},

	// The log and what engines publish.
	"kvindex/memlog":       {"kvindex", "kvindex/memlog/logpb"},
	"kvindex/memlog/logpb": {},
	"kvindex/redislog":     {"kvindex"},
	"kvindex/enginewire":   {"kvindex"},
	"kvindex/translate":    {"kvindex", "kvindex/enginewire"},
	"kvindex/listing":      {"kvindex"},

	// The edges.
	"extproc":         {"extproc/scoring", "picker", "picker/flow", "kvindex", "internal/openai", "internal/observability"},
	"extproc/scoring": {"picker", "kvindex", "api/scorer/v1"},
	"workers":         {"kvindex/...", "workers/engine", "internal/openai", "internal/observability", "internal/child", "workers/teach"},
	"workers/engine":  {"internal/openai", "kvindex"},
	"workers/teach":   {"internal/openai", "kvindex"}, // pure

	"api/scorer/v1": {}, // generated

	// The simulated engine. Its core knows no socket.
	"workers/engine/sim":       {"internal/timing"},
	"workers/engine/bpe":       {},
	"workers/engine/bpe/train": {"workers/engine/bpe"}, // made the vocabulary
	"workers/engine/simserver": {"workers/engine/sim", "workers/engine/bpe", "internal/timing", "kvindex/enginewire", "internal/openai"},

	"internal/openai":        {"kvindex"},
	"internal/config":        {"extproc", "extproc/scoring", "picker", "internal/observability"}, // composes their options
	"internal/observability": {},
	"internal/child":         {},
	"internal/envoyconf":     {},
	"internal/verify":        {"internal/epp", "kvindex", "kvindex/listing"}, // compares pickers with engines
	"internal/replay":        {"internal/openai", "internal/timing", "workers/engine/bpe"},
	"internal/benchfile":     {},
	"internal/lint":          {},
	"internal/porttest":      {},                    // for tests
	"internal/redistest":     {"internal/porttest"}, // for tests
}

// onlyFor names packages that nobody but the given ones may import, "all" included.
var onlyFor = map[string][]string{
	"test/sim":      {"cmd/kvlane"},
	"test/protocol": {"cmd/kvlane"},
}

type listed struct {
	ImportPath string
	Imports    []string
}

func TestImports(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range list(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		seen[name] = true
		rule, ok := rule(name)
		if !ok {
			t.Errorf("%s: not in the import table; add what it may import", name)
			continue
		}
		for _, imported := range p.Imports {
			target, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			if !matches(rule, target) {
				t.Errorf("%s imports %s, which the import table does not allow", name, target)
			}
			if only, ok := onlyFor[target]; ok && !slices.Contains(only, name) {
				t.Errorf("%s imports %s, which only %v may", name, target, only)
			}
		}
	}
	for name := range allowed {
		if !seen[name] {
			t.Errorf("%s is in the import table and does not exist", name)
		}
	}
}

// rule is the table's line for a package. What is under test may import
// anything.
func rule(name string) ([]string, bool) {
	if strings.HasPrefix(name, "test/") {
		return all, true
	}
	r, ok := allowed[name]
	return r, ok
}

func matches(rule []string, target string) bool {
	for _, r := range rule {
		under, tree := strings.CutSuffix(r, "/...")
		if r == "*" || r == target || tree && (target == under || strings.HasPrefix(target, under+"/")) {
			return true
		}
	}
	return false
}

// list is every package of the module, with its imports.
func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports", path.Clean("../../")+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var packages []listed
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}
