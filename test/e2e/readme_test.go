package e2e_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// covered says for each kind of command in README.md what runs it. A command is
// known by its first words; what stands behind them is the reader's choice.
var covered = map[string]string{
	"make deps":              ".ci/run",
	"make check":             ".ci/run",
	"make test":              ".ci/run",
	"make e2e":               ".ci/run: the same tests as make test",
	"make help":              "TestReadme: every make target exists",
	"make build":             ".ci/run: part of make test",
	"make up":                "TestUpOnce; the target only adds make build",
	"make bench-replay":      "testReplay; the benchmark itself is run by hand",
	"make bench-index":       "test/bench/index's own tests; the benchmark itself is run by hand",
	"make bench-log":         "kvindex/redislog's tests; the benchmark itself is run by hand",
	"make bench-fleet":       "test/sim's tests; the benchmark itself is run by hand",
	"make protocol":          "test/protocol's tests; the target runs the same suite",
	"git clone":              ".ci/run: a fresh clone",
	"echo":                   "nothing of ours",
	"vllm serve":             "not run: it needs a GPU or a long build; simserver's tests hold the same surface",
	"cd":                     "nothing to run",
	"curl":                   "TestAggregated/Chat; the address is up's",
	"kvlane up":              "TestUpOnce",
	"kvlane epp":             "TestOwnEnvoy",
	"kvlane agent":           "TestOwnEnvoy",
	"kvlane collector":       "TestCollector",
	"kvlane engine sim":      "TestLostPrefill",
	"kvlane envoy-config":    "TestEnvoyConfig, TestOwnEnvoy",
	"kvlane replay":          "TestAggregated/Replay",
	"kvlane explain":         "TestAggregated/Explain",
	"kvlane version":         "TestVersion",
	"envoy":                  "TestOwnEnvoy",
	"envoy --mode":           "TestEnvoyConfig",
	".tools/envoy/bin/envoy": "TestOwnEnvoy",
}

// TestReadme: every command of the README's sh blocks is one that tests or CI
// run, and names only make targets and kvlane flags that exist.
func TestReadme(t *testing.T) {
	commands := shellCommands(read(t, filepath.Join(root, "README.md")))
	if len(commands) == 0 {
		t.Error("README.md has no sh block with a command")
	}
	makefile := read(t, filepath.Join(root, "Makefile"))
	for _, words := range commands {
		name := commandName(words)
		if _, ok := covered[name]; !ok {
			t.Errorf("README.md shows %q: no test runs %q; add one, and what it is to the list", strings.Join(words, " "), name)
			continue
		}
		if words[0] == "make" {
			if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(words[1]) + `:`).MatchString(makefile) {
				t.Errorf("README.md shows %q: no such target", strings.Join(words, " "))
			}
		}
		if strings.HasPrefix(name, "kvlane ") {
			wantFlags(t, name, words)
		}
	}
}

// wantFlags checks that the flags of a kvlane command are in its help.
func wantFlags(t *testing.T, name string, words []string) {
	t.Helper()
	help := mustRun(t, "", append(strings.Fields(name)[1:], "--help")...)
	for _, w := range words {
		if w == "--" {
			break
		}
		flag, _, _ := strings.Cut(w, "=")
		if strings.HasPrefix(flag, "--") && !regexp.MustCompile(regexp.QuoteMeta(flag)+`\b`).MatchString(help) {
			t.Errorf("README.md shows %q: no flag %s", strings.Join(words, " "), flag)
		}
	}
}

// commandName are the first words of a command that say what it does.
func commandName(words []string) string {
	words = append([]string(nil), words...)
	words[0] = strings.TrimPrefix(strings.TrimPrefix(words[0], "./"), "bin/")
	n := 1
	switch words[0] {
	case "make", "git", "vllm":
		n = 2
	case "envoy":
		if len(words) > 1 && words[1] == "--mode" {
			n = 2
		}
	case "kvlane":
		n = 2
		if len(words) > 2 && words[1] == "engine" {
			n = 3
		}
	}
	return strings.Join(words[:min(n, len(words))], " ")
}

// shellCommands are the commands of a text's sh blocks as words: lines that
// continue are joined, pipes and && cut, comments, assignments, redirections and
// here-documents left out.
func shellCommands(text string) [][]string {
	var out [][]string
	inside, until, joined := false, "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case !inside:
			inside = strings.TrimSpace(line) == "```sh"
			continue
		case strings.TrimSpace(line) == "```":
			inside, until = false, ""
			continue
		case until != "":
			if strings.TrimSpace(line) == until {
				until = ""
			}
			continue
		}
		joined += strings.TrimSuffix(line, `\`)
		if strings.HasSuffix(line, `\`) {
			continue
		}
		if _, end, ok := strings.Cut(joined, "<<"); ok {
			until = strings.Trim(strings.Fields(end)[0], `'"-`)
		}
		out = append(out, splitCommands(joined)...)
		joined = ""
	}
	return out
}

// splitCommands cuts a line into commands and those into words. Quotes keep
// what is inside them together.
func splitCommands(line string) [][]string {
	var out [][]string
	var words []string
	end := func() {
		for len(words) > 0 && regexp.MustCompile(`^[A-Z_]+=`).MatchString(words[0]) {
			words = words[1:]
		}
		if len(words) > 0 {
			out = append(out, words)
		}
		words = nil
	}
	for _, token := range regexp.MustCompile(`(?:'[^']*'|"(?:\\.|[^"\\])*"|[^\s'"])+`).FindAllString(line, -1) {
		switch {
		case strings.HasPrefix(token, "#"):
			end()
			return out
		case token == "|" || token == "&&" || token == "||" || token == ";" || token == "&":
			end()
		default:
			words = append(words, strings.TrimSuffix(token, ";"))
			if strings.HasSuffix(token, ";") {
				end()
			}
		}
	}
	end()
	return out
}

func TestShellCommands(t *testing.T) {
	got := shellCommands("text\n```sh\n# start\nmake up ONCE=1   # all of it\nKVLANE_ENVOY=/x bin/kvlane up \\\n  --once\ncurl -s 'a b|c' | jq . && make test\ncat <<EOF > f\nnot a command\nEOF\n```\n```\nnone\n```\n")
	want := "make up ONCE=1/bin/kvlane up --once/curl -s 'a b|c'/jq ./make test/cat <<EOF > f"
	var list []string
	for _, words := range got {
		list = append(list, strings.Join(words, " "))
	}
	if s := strings.Join(list, "/"); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
	for in, want := range map[string]string{
		"make up ONCE=1": "make up", "bin/kvlane engine sim --listen x": "kvlane engine sim", "./bin/kvlane up": "kvlane up", "curl -s x": "curl", "make": "make",
	} {
		if got := commandName(strings.Fields(in)); got != want {
			t.Errorf("%s: got %q, want %q", in, got, want)
		}
	}
}
