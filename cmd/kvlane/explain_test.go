package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestExplain prints plans as a picker's admin page gives them.
func TestExplain(t *testing.T) {
	datadriven.Walk(t, "testdata/explain", func(t *testing.T, path string) {
		var plan string
		page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if plan == "" {
				http.Error(w, "no plan of request \"x\" is kept", http.StatusNotFound)
				return
			}
			_, _ = w.Write([]byte(plan))
		}))
		defer page.Close()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "plan":
				plan = d.Input
				if plan != "" && !json.Valid([]byte(plan)) {
					d.Fatalf(t, "not JSON")
				}
				return ""
			case "explain":
				args := []string{"explain", "--admin", strings.TrimPrefix(page.URL, "http://")}
				for _, a := range d.CmdArgs {
					args = append(args, a.Key)
				}
				var out strings.Builder
				root := newRootCommand()
				root.SetArgs(args)
				root.SetOut(&out)
				root.SetIn(strings.NewReader(d.Input))
				if err := root.ExecuteContext(t.Context()); err != nil {
					return out.String() + "error: " + err.Error() + "\n"
				}
				return out.String()
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func TestVersion(t *testing.T) {
	var out strings.Builder
	root := newRootCommand()
	root.SetArgs([]string{"version"})
	root.SetOut(&out)
	if err := root.ExecuteContext(t.Context()); err != nil || !strings.HasPrefix(out.String(), "kvlane ") {
		t.Fatalf("got %q %v", out.String(), err)
	}
}
