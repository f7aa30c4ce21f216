package sim

import (
	"cmp"
	"fmt"
	"maps"
	"math"
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
		title: fmt.Sprintf("Time to first token, %s, %d blocks, %s", c.Trace, c.Blocks, l.short()), x: "ms", y: "% of the requests", legend: true,
		minX: 30, maxX: 30000, logX: true, maxY: 100, ticksX: []float64{30, 100, 300, 1000, 3000, 10000, 30000}, ticksY: []float64{0, 25, 50, 75, 90, 100},
	}, list)
}

// short is the load in the title of a plot, title that in a page.
func (l *Load) short() string {
	if l.Name == LoadOver {
		return l.Name
	}
	return l.Name + " load"
}

func (l *Load) title() string {
	if l.Name == LoadOver {
		return "Overload"
	}
	return "Load at which Dynamo's cost has " + l.Name + " in the SLO"
}

// GoodputPlot is the share within the SLO over the loads.
func (c *Case) GoodputPlot() string { return lines(c.goodput()) }

func (c *Case) goodput() (axes, []series) {
	a := axes{
		title: fmt.Sprintf("Requests within the SLO, %s, %d blocks", c.Trace, c.Blocks), x: "speed of the trace", y: "% of the requests",
		mark: 100 * capacityAt, maxY: 100, ticksY: []float64{0, 20, 40, 60, 80, 100}, minX: c.Loads[0].Speed, maxX: c.Loads[len(c.Loads)-1].Speed,
	}
	for _, l := range c.Loads {
		a.ticksX = append(a.ticksX, float64(int(100*l.Speed+0.5))/100)
		a.below = append(a.below, l.Name)
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
	return a, list
}

// MainPlot is the goodput over the loads of the first two traces, on the first size
// of worker; empty without both.
func (s *Study) MainPlot() string {
	var chosen []*Case
	for i := range s.Cases {
		c := &s.Cases[i]
		if c.Blocks == s.Cases[0].Blocks && len(c.Loads) > 1 && len(chosen) < 2 {
			chosen = append(chosen, c)
		}
	}
	if len(chosen) < 2 {
		return ""
	}
	left, one := chosen[0].goodput()
	right, two := chosen[1].goodput()
	left.title = fmt.Sprintf("Requests within the SLO, %s trace", chosen[0].Trace)
	right.title, right.y = chosen[1].Trace+" trace", ""
	for i := range one {
		one[i].name = "" // the right ones stand for both
	}
	return beside(left, right, one, two)
}

// HitPlot is the hit rates under one load against both bounds.
func (c *Case) HitPlot(l *Load) string {
	names := slices.Sorted(maps.Keys(l.Results))
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(l.Results[b].HitRate, l.Results[a].HitRate) })
	var list []bar
	for _, name := range names {
		color := colors()[name]
		if color == "" {
			color = grey
		}
		list = append(list, bar{name, l.Results[name].HitRate, color})
	}
	return bars(fmt.Sprintf("Hit rate, %% of the input tokens, %s, %d blocks, %s", c.Trace, c.Blocks, l.short()), list, []bar{
		{"one cache of all blocks, LRU", c.Bounds.Pooled, "#555"}, {"no eviction", c.Bounds.Ideal, "#999"},
	})
}

// smoothOver is the number of minutes that a point of the imbalance is the mean of.
const smoothOver = 5

// SpreadPlot is how unevenly prefill work fell on the workers over time; empty for
// a run of a few minutes.
func (c *Case) SpreadPlot(l *Load) string {
	a := axes{
		title: fmt.Sprintf("Imbalance, %s, %d blocks, %s", c.Trace, c.Blocks, l.short()), x: "minute", legend: true,
		y: fmt.Sprintf("CV of uncached tokens a worker, %d min", smoothOver), maxY: 0.1,
	}
	var list []series
	for _, name := range ordered(l.Results) {
		var s series
		minutes := l.Results[name].WorkMinutes
		for i := smoothOver; i < len(minutes); i++ { // the last minute is not whole
			s.x, s.y = append(s.x, float64(i)), append(s.y, mean(minutes[i-smoothOver:i]))
		}
		if len(s.x) == 0 {
			continue
		}
		if s = styled(name, s); s.name != "" {
			a.maxY = max(a.maxY, math.Ceil(slices.Max(s.y)*10)/10)
		}
		a.maxX = max(a.maxX, s.x[len(s.x)-1])
		list = append(list, s)
	}
	if a.maxX <= smoothOver {
		return ""
	}
	a.minX = smoothOver
	for i := range 5 {
		a.ticksY = append(a.ticksY, math.Round(a.maxY*float64(i)*1000/4)/1000)
	}
	for m := 5.0; m <= a.maxX; m += 5 {
		if a.maxX <= 30 || int(m)%10 == 0 {
			a.ticksX = append(a.ticksX, m)
		}
	}
	return lines(a, list)
}
