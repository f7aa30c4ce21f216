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
	// below are names under the ticks of x, if any.
	below []string
	// legend lists the names of the lines from the top, the last line first; else they
	// stand where the lines end.
	legend bool
	// mark is a dashed line across, if not 0.
	mark float64
}

// The area of a plot in pixels; the right margin holds the names of the lines.
const (
	plotWidth, plotHeight               = 720, 360
	plotLeft, plotTop, plotBottom, side = 64, 36, 52, 150
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
	b.WriteString(canvas(plotWidth, plotHeight))
	a.draw(&b, list)
	b.WriteString("</svg>\n")
	return b.String()
}

// beside draws two plots side by side, at a width of the first one's names less.
func beside(left, right axes, one, two []series) string {
	var b strings.Builder
	b.WriteString(canvas(2*plotWidth-side, plotHeight))
	left.draw(&b, one)
	fmt.Fprintf(&b, `<g transform="translate(%d 0)">`, plotWidth-side)
	right.draw(&b, two)
	b.WriteString("</g></svg>\n")
	return b.String()
}

// canvas begins a picture on white ground: pages may be dark.
func canvas(width, height int) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif">`+
		`<rect width="%d" height="%d" fill="white"/>`, width, height, width, height, width, height)
}

func (a *axes) draw(b *strings.Builder, list []series) {
	a.frame(b)
	ends := make([]float64, 0, len(list))
	for i, s := range list {
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
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="%.1f"/>`, points.String(), s.color, width)
		if s.name == "" || len(s.y) == 0 {
			continue
		}
		y := float64(plotTop + 8 + 16*(len(list)-1-i))
		if last := len(s.y) - 1; !a.legend {
			y = apart(&ends, a.py(min(max(s.y[last], a.minY), a.maxY)))
		}
		fmt.Fprintf(b, `<text x="%d" y="%.1f" fill="%s" font-size="12">%s</text>`, plotWidth-side+8, y+4, s.color, s.name)
	}
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
	fmt.Fprintf(b, `<text x="%d" y="18" font-size="14" fill="#222">%s</text>`, plotLeft, a.title)
	right, bottom := plotWidth-side, plotHeight-plotBottom
	for _, t := range a.ticksY {
		y := a.py(t)
		fmt.Fprintf(b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#e4e4e4"/>`, plotLeft, y, right, y)
		fmt.Fprintf(b, `<text x="%d" y="%.1f" font-size="11" fill="#555" text-anchor="end">%g</text>`, plotLeft-6, y+4, t)
	}
	if a.mark != 0 {
		y := a.py(a.mark)
		fmt.Fprintf(b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#888" stroke-dasharray="4 3"/>`, plotLeft, y, right, y)
	}
	for i, t := range a.ticksX {
		x := a.px(t)
		if i < len(a.below) {
			fmt.Fprintf(b, `<text x="%.1f" y="%d" font-size="10" fill="#888" text-anchor="middle">%s</text>`, x, bottom+28, a.below[i])
		}
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
	b.WriteString(canvas(plotWidth, height))
	fmt.Fprintf(&b, `<text x="12" y="18" font-size="14" fill="#222">%s</text>`, title)
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
