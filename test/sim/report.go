package sim

import (
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
)

// colors are of the policies that plots name; the others are grey.
func colors() map[string]string {
	return map[string]string{
		Ours: "#0b5fa5", Theirs: "#c2410c", "llm-d-token-aware": "#15803d", "lmetric": "#7c3aed", "mooncake": "#a16207",
		"round-robin": "#6b7280", Oracle: "#111827",
	}
}

const grey = "#d4d4d4"

// ordered are the policies of a load, those that plots name last, ours on top.
func ordered(results map[string]*Result) []string {
	named := colors()
	names := slices.Sorted(maps.Keys(results))
	rank := func(n string) int {
		switch {
		case n == Ours:
			return 2
		case named[n] != "":
			return 1
		}
		return 0
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	return names
}

func styled(name string, s series) series {
	s.color, s.wide = grey, name == Ours
	if c := colors()[name]; c != "" {
		s.color, s.name = c, name
	}
	return s
}

// TTFTPlot is the distribution of the times to first token under one load.
func (c *Case) TTFTPlot(l *Load) string {
	var list []series
	for _, name := range ordered(l.Results) {
		t := l.Results[name].TTFTs
		var s series
		const points = 200
		for i := range points + 1 {
			if len(t) > 0 {
				s.x = append(s.x, t[i*(len(t)-1)/points])
				s.y = append(s.y, 100*float64(i)/points)
			}
		}
		list = append(list, styled(name, s))
	}
	return lines(axes{
		title: fmt.Sprintf("Time to first token, %s, %d blocks, %s", c.Trace, c.Blocks, l.Name), x: "ms", y: "% of the requests",
		minX: 30, maxX: 30000, logX: true, maxY: 100, ticksX: []float64{30, 100, 300, 1000, 3000, 10000, 30000}, ticksY: []float64{0, 25, 50, 75, 90, 100},
	}, list)
}

// GoodputPlot is the share within the SLO over the loads.
func (c *Case) GoodputPlot() string {
	a := axes{
		title: fmt.Sprintf("Requests within the SLO, %s, %d blocks", c.Trace, c.Blocks), x: "speed of the trace", y: "%",
		maxY: 100, ticksY: []float64{0, 20, 40, 60, 80, 100}, minX: c.Loads[0].Speed, maxX: c.Loads[len(c.Loads)-1].Speed,
	}
	for _, l := range c.Loads {
		a.ticksX = append(a.ticksX, float64(int(1000*l.Speed+0.5))/1000)
	}
	if a.maxX <= a.minX {
		a.maxX = a.minX + 1
	}
	var list []series
	for _, name := range ordered(c.Loads[0].Results) {
		var s series
		for _, l := range c.Loads {
			s.x, s.y = append(s.x, l.Speed), append(s.y, 100*l.Results[name].Goodput)
		}
		list = append(list, styled(name, s))
	}
	return lines(a, list)
}

// HitPlot is the hit rates under one load against both bounds.
func (c *Case) HitPlot(l *Load) string {
	names := slices.Sorted(maps.Keys(l.Results))
	slices.SortStableFunc(names, func(a, b string) int {
		if l.Results[a].HitRate > l.Results[b].HitRate {
			return -1
		}
		return 1
	})
	var list []bar
	for _, name := range names {
		color := colors()[name]
		if color == "" {
			color = grey
		}
		list = append(list, bar{name, l.Results[name].HitRate, color})
	}
	return bars(fmt.Sprintf("Hit rate, %% of the input tokens, %s, %d blocks, %s", c.Trace, c.Blocks, l.Name), list, []bar{
		{"one cache of all blocks, LRU", c.Bounds.Pooled, "#555"}, {"no eviction", c.Bounds.Ideal, "#999"},
	})
}

// SpreadPlot is how unevenly workers were busy, minute by minute.
func (c *Case) SpreadPlot(l *Load) string {
	a := axes{
		title: fmt.Sprintf("Imbalance, %s, %d blocks, %s", c.Trace, c.Blocks, l.Name), x: "minute", y: "CV of the workers' busy time",
		maxY: 0.5, ticksY: []float64{0, 0.1, 0.2, 0.3, 0.4, 0.5},
	}
	var list []series
	for _, name := range ordered(l.Results) {
		var s series
		minutes := l.Results[name].Minutes
		for i, v := range minutes[:max(0, len(minutes)-1)] { // the last minute is not whole
			s.x, s.y = append(s.x, float64(i)), append(s.y, v)
		}
		a.maxX = max(a.maxX, float64(len(s.x)))
		list = append(list, styled(name, s))
	}
	for m := 0.0; m <= a.maxX; m += 10 {
		a.ticksX = append(a.ticksX, m)
	}
	return lines(a, list)
}

// WriteReport writes one page with the plots of a study, without outside assets.
// notes are preformatted tables to show below.
func (s *Study) WriteReport(w io.Writer, notes ...string) error {
	page := template.Must(template.New("report").Parse(reportPage))
	var plots []template.HTML
	add := func(svg string) { plots = append(plots, template.HTML(svg)) } //nolint:gosec // made here from numbers and our own names
	for i := range s.Cases {
		c := &s.Cases[i]
		if len(c.Loads) > 1 {
			add(c.GoodputPlot())
		}
		for j := range c.Loads {
			l := &c.Loads[j]
			add(c.TTFTPlot(l))
			if l.Name == LoadModerate {
				add(c.HitPlot(l))
				add(c.SpreadPlot(l))
			}
		}
	}
	err := page.Execute(w, struct {
		Plots []template.HTML
		Notes []string
	}{plots, notes})
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

const reportPage = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>kvlane: fleet simulation</title>
<style>body{font:15px/1.5 sans-serif;max-width:1500px;margin:2em auto;padding:0 1em;color:#222}
.plots{display:flex;flex-wrap:wrap;gap:16px}pre{font-size:12px;overflow-x:auto;background:#f7f7f7;padding:1em}</style></head>
<body><h1>Fleet simulation</h1>
<p>Eight simulated workers (Qwen3-32B on two H100 each) under every routing policy, in virtual time. Loads are the speeds at which Dynamo's
default cost keeps 95, 85 and 65 % of the requests within the SLO, and an overload. SLO: time to first token at most 1 s or three times the
unloaded prefill of the request's uncached tokens, 50 ms a token after that; refused requests are misses. Grey lines are the other policies of
the tables.</p>
<div class="plots">{{range .Plots}}<div>{{.}}</div>{{end}}</div>
{{range .Notes}}<pre>{{.}}</pre>{{end}}
</body></html>
`
