package sim

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"

	"github.com/kvlane/kvlane/internal/benchfile"
)

//go:embed page.html
var pageText string

// WriteReport writes one page without outside assets: the goals of a benchmark,
// met or not, and the study's plots and tables.
func (s *Study) WriteReport(w io.Writer, file *benchfile.File) error {
	page, err := template.New("report").Funcs(template.FuncMap{
		"figure":   func(v float64) string { return fmt.Sprintf("%.4g", v) },
		"share":    func(v float64) string { return fmt.Sprintf("%.1f", 100*v) },
		"ms":       func(v float64) string { return fmt.Sprintf("%.0f", v) },
		"moderate": func(l Load) bool { return l.Name == LoadModerate },
	}).Parse(pageText)
	if err != nil {
		return fmt.Errorf("read the page's template: %w", err)
	}
	if err := page.Execute(w, s.view(file)); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// reportView is what the page shows.
type reportView struct {
	File          *benchfile.File
	Goals, Others []rowView
	Met           int
	Cases         []caseView
	Policies      []Named
}

// rowView is a row of a benchmark; Same says that the row above is of the same case.
type rowView struct {
	benchfile.Row

	Same bool
}

type caseView struct {
	*Case

	Goodput template.HTML
	Loads   []loadView
}

type loadView struct {
	Load

	Title              string
	TTFT, Hits, Spread template.HTML
	Rows               []policyView
}

type policyView struct {
	*Result

	Name  string
	Color template.CSS
}

func (s *Study) view(file *benchfile.File) reportView {
	v := reportView{File: file, Policies: Policies()}
	add := func(list []rowView, r benchfile.Row) []rowView {
		n := len(list)
		return append(list, rowView{r, n > 0 && list[n-1].Case == r.Case})
	}
	for _, r := range file.Rows {
		if r.Goal == nil {
			v.Others = add(v.Others, r)
			continue
		}
		v.Goals = add(v.Goals, r)
		if r.OK {
			v.Met++
		}
	}
	for i := range s.Cases {
		v.Cases = append(v.Cases, s.Cases[i].view())
	}
	return v
}

// plot marks a picture as safe for a page: it is made here, of numbers and of names
// that are ours or the trace's, which the caller chose.
func plot(svg string) template.HTML { return template.HTML(svg) } //nolint:gosec // see above

func (c *Case) view() caseView {
	v := caseView{Case: c}
	if len(c.Loads) > 1 {
		v.Goodput = plot(c.GoodputPlot())
	}
	for i := range c.Loads {
		l := &c.Loads[i]
		view := loadView{Load: *l, Title: l.title(), TTFT: plot(c.TTFTPlot(l)), Hits: plot(c.HitPlot(l)), Spread: plot(c.SpreadPlot(l))}
		for _, p := range Policies() {
			if r := l.Results[p.Name]; r != nil {
				view.Rows = append(view.Rows, policyView{r, p.Name, template.CSS(colors()[p.Name])}) //nolint:gosec // a constant
			}
		}
		v.Loads = append(v.Loads, view)
	}
	return v
}
