package sim

import (
	"fmt"
	"math"
	"strings"
)

// series is one line of a plot.
type series struct {
	name  string
	x, y  []float64
	color string
	wide  bool
}

// axes says how a plot maps its values.
type axes struct {
	title, x, y            string
	minX, maxX, minY, maxY float64
	logX                   bool
	ticksX, ticksY         []float64
}

// The area of a plot in pixels; the right margin holds the names of the lines.
const (
	plotWidth, plotHeight               = 720, 360
	plotLeft, plotTop, plotBottom, side = 64, 36, 44, 150
)

func (a *axes) px(x float64) float64 {
	share := (x - a.minX) / (a.maxX - a.minX)
	if a.logX {
		share = math.Log(x/a.minX) / math.Log(a.maxX/a.minX)
	}
	return plotLeft + share*(plotWidth-plotLeft-side)
}

func (a *axes) py(y float64) float64 {
	return plotHeight - plotBottom - (y-a.minY)/(a.maxY-a.minY)*(plotHeight-plotBottom-plotTop)
}

// lines draws a plot as SVG: named series on top of unnamed ones.
func lines(a axes, list []series) string {
	var b strings.Builder
	a.frame(&b)
	ends := make([]float64, 0, len(list))
	for _, s := range list {
		var points strings.Builder
		for i := range s.x {
			x := min(max(s.x[i], a.minX), a.maxX)
			y := min(max(s.y[i], a.minY), a.maxY)
			fmt.Fprintf(&points, "%.1f,%.1f ", a.px(x), a.py(y))
		}
		width := 1.2
		if s.wide {
			width = 2.6
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="%.1f"/>`, points.String(), s.color, width)
		if s.name == "" || len(s.y) == 0 {
			continue
		}
		last := len(s.y) - 1
		y := apart(&ends, a.py(min(max(s.y[last], a.minY), a.maxY)))
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" fill="%s" font-size="12">%s</text>`, plotWidth-side+8, y+4, s.color, s.name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// apart finds a height near y that no earlier label has.
func apart(taken *[]float64, y float64) float64 {
	const need = 14
	for shift := 0.0; ; shift += 2 {
		for _, at := range []float64{y - shift, y + shift} {
			free := at > plotTop && at < plotHeight-10
			for _, other := range *taken {
				free = free && math.Abs(other-at) >= need
			}
			if free || shift > plotHeight {
				*taken = append(*taken, at)
				return at
			}
		}
	}
}

func (a *axes) frame(b *strings.Builder) {
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif">`,
		plotWidth, plotHeight, plotWidth, plotHeight)
	fmt.Fprintf(b, `<rect width="%d" height="%d" fill="white"/>`, plotWidth, plotHeight)
	fmt.Fprintf(b, `<text x="%d" y="18" font-size="14" fill="#222">%s</text>`, plotLeft, a.title)
	right, bottom := plotWidth-side, plotHeight-plotBottom
	for _, t := range a.ticksY {
		y := a.py(t)
		fmt.Fprintf(b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#e4e4e4"/>`, plotLeft, y, right, y)
		fmt.Fprintf(b, `<text x="%d" y="%.1f" font-size="11" fill="#555" text-anchor="end">%g</text>`, plotLeft-6, y+4, t)
	}
	for _, t := range a.ticksX {
		x := a.px(t)
		fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#e4e4e4"/>`, x, plotTop, x, bottom)
		fmt.Fprintf(b, `<text x="%.1f" y="%d" font-size="11" fill="#555" text-anchor="middle">%g</text>`, x, bottom+16, t)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="12" fill="#333" text-anchor="middle">%s</text>`, (plotLeft+right)/2, plotHeight-8, a.x)
	fmt.Fprintf(b, `<text x="14" y="%d" font-size="12" fill="#333" transform="rotate(-90 14 %d)" text-anchor="middle">%s</text>`,
		(plotTop+bottom)/2, (plotTop+bottom)/2, a.y)
}

// bar is one horizontal bar.
type bar struct {
	name  string
	value float64
	color string
}

// bars draws shares in percent with marks for bounds.
func bars(title string, list, marks []bar) string {
	const row, left = 20, 150
	most := 0.0
	for _, x := range append(append([]bar(nil), list...), marks...) {
		most = max(most, x.value)
	}
	height := plotTop + row*len(list) + 40
	at := func(v float64) float64 { return left + v/most*(plotWidth-left-60) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif">`,
		plotWidth, height, plotWidth, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/><text x="12" y="18" font-size="14" fill="#222">%s</text>`, plotWidth, height, title)
	for i, x := range list {
		y := plotTop + i*row
		fmt.Fprintf(&b, `<text x="%d" y="%d" font-size="12" fill="#333" text-anchor="end">%s</text>`, left-8, y+13, x.name)
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, left, y+2, at(x.value)-left, row-5, x.color)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" font-size="11" fill="#333">%.1f</text>`, at(x.value)+5, y+13, 100*x.value)
	}
	for i, m := range marks {
		x, bottom := at(m.value), plotTop+row*len(list)
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s" stroke-dasharray="4 3"/>`, x, plotTop-4, x, bottom, m.color)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" font-size="11" fill="%s" text-anchor="middle">%s %.1f</text>`,
			x, bottom+14+14*i, m.color, m.name, 100*m.value)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
