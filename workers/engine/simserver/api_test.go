package simserver

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestAPI runs testdata/api*.txt, each against an engine of its own. The input
// of get and post is the body; stream shows a stream's chunks put together:
// how many tokens a chunk carries depends on the machine.
func TestAPI(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := start(t, nil)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			where := d.CmdArgs[0].Key
			switch d.Cmd {
			case "get":
				status, body := call(t, s, http.MethodGet, where, d.Input)
				return fmt.Sprintf("%d %s", status, normal(body))
			case "post":
				status, body := call(t, s, http.MethodPost, where, d.Input)
				return fmt.Sprintf("%d %s", status, normal(body))
			case "stream":
				status, body := call(t, s, http.MethodPost, where, d.Input)
				if status != http.StatusOK {
					return fmt.Sprintf("%d %s", status, normal(body))
				}
				return together(t, body)
			case "metrics":
				_, body := call(t, s, http.MethodGet, "/metrics", "")
				return metricLines(body, where)
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

// normal takes out what differs from run to run.
func normal(body string) string {
	for _, r := range [][2]string{
		{`"created":[0-9]+`, `"created":0`},
		{`"engine_id":"[0-9a-f]+"`, `"engine_id":"E"`},
		{`"remote_engine_id":"[0-9a-f]+"`, `"remote_engine_id":"E"`},
		{`engine [0-9a-f]{32}`, `engine E`},
		{`"remote_port":[0-9]+`, `"remote_port":0`},
	} {
		body = regexp.MustCompile(r[0]).ReplaceAllString(body, r[1])
	}
	return strings.TrimSpace(body)
}

// together shows the first chunk and the last ones as they are, and text and
// token ids of each choice joined.
func together(t *testing.T, body string) string {
	var out []string
	type joined struct {
		text string
		ids  []uint32
		end  string
	}
	var choices []joined
	all := events(t, body)
	for i, data := range all {
		if data == "[DONE]" {
			out = append(out, data)
			continue
		}
		c := parse(t, data)
		if len(c.Choices) == 0 || c.Choices[0].Delta.Role != "" {
			out = append(out, normal(data))
			continue
		}
		ch := c.Choices[0]
		for len(choices) <= ch.Index {
			choices = append(choices, joined{})
		}
		j := &choices[ch.Index]
		j.text += ch.Text + ch.Delta.Content
		j.ids = append(j.ids, ch.TokenIDs...)
		if ch.Finish != nil {
			j.end = *ch.Finish
			if ch.StopReason != nil {
				j.end += fmt.Sprintf(" by %q", *ch.StopReason)
			}
		}
		if i == 0 {
			out = append(out, fmt.Sprintf("prompt ids %v", ch.PromptIDs))
		}
	}
	for i, j := range choices {
		out = slices.Insert(out, len(out)-1, fmt.Sprintf("choice %d: %q %v %s", i, j.text, j.ids, j.end))
	}
	return strings.Join(out, "\n")
}

func metricLines(body, prefix string) string {
	var out []string
	for line := range strings.SplitSeq(body, "\n") {
		timed := strings.Contains(line, "seconds_sum") || strings.Contains(line, "_bucket") || strings.Contains(line, "lora_requests_info")
		if strings.HasPrefix(line, prefix) && !timed {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}
