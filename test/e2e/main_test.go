package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kvlane/kvlane/internal/up"
)

// root is the checkout, seen from this folder.
const root = "../.."

// tools are the programs that the tests run.
type tools struct{ kvlane, envoy, python string }

// found is set once by TestMain, before any test runs.
var found tools

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "kvlane-e2e-")
	if err == nil {
		found, err = prepare(dir)
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "end-to-end tests:", err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// prepare finds the tools and builds the binary into dir.
func prepare(dir string) (tools, error) {
	t := tools{kvlane: filepath.Join(dir, "bin", "kvlane")}
	checkout, err := filepath.Abs(root)
	if err != nil {
		return t, err
	}
	// up looks for .tools beside the folder of the binary.
	if t.envoy, err = up.FindEnvoy(filepath.Join(checkout, "bin", "kvlane")); err != nil {
		return t, err
	}
	if t.envoy, err = exec.LookPath(t.envoy); err != nil {
		return t, err
	}
	t.python = filepath.Join(checkout, ".tools", "pyclient", "bin", "python")
	if _, err := os.Stat(t.python); err != nil {
		return t, fmt.Errorf("no Python client (%w); run `make deps`", err)
	}
	build := exec.Command("go", "build", raceFlag, "-o", t.kvlane, "./cmd/kvlane")
	build.Dir = checkout
	if out, err := build.CombinedOutput(); err != nil {
		return t, fmt.Errorf("build kvlane: %w\n%s", err, out)
	}
	return t, nil
}
