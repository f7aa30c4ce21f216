package main

import (
	"io"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/porttest"
)

// TestMistakes checks that a wrong command line is told from a right one before
// anything runs, and says what to do.
func TestMistakes(t *testing.T) {
	nobody := porttest.Address(t)
	for _, test := range []struct{ args, want string }{
		{"replay", "want one TRACE file, not 0; see kvlane replay --help"},
		{"replay t.jsonl --policy roundrobin", `--policy: policy "roundrobin": want kv, round-robin, least-requests or random`},
		{"index stat", `unknown command "stat" for "kvlane index"`},
		{"sim flet", `unknown command "flet" for "kvlane sim"`},
		{"engine vllm", `unknown command "vllm" for "kvlane engine"`},
		{"protocol-test", "--target: want the host:port of a picker's ext_proc service"},
		{"protocol-test --target " + nobody, "endpoints: want the ip:port list"},
		{"collector", "no engines: give --engine or --engines-file"},
		{"collector --engine pod:8000 --engine 10.0.0.1:1,x=y", `engine "pod:8000": its host is no IP address`},
		{"explain --frob", "unknown flag: --frob; see kvlane explain --help"},
		{"explain x --admin " + nobody, "no picker at " + nobody + " (is `kvlane up` running?)"},
	} {
		root := newRootCommand()
		root.SetArgs(strings.Fields(test.args))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("kvlane %s: got %v, want %s", test.args, err, test.want)
		}
	}
}
