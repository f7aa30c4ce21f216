package replay

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"
)

// SLO is what a good answer keeps: both in ms of trace time.
type SLO struct {
	TTFTMs float64 `json:"ttft_ms"`
	TPOTMs float64 `json:"tpot_ms"`
}

// Dist is a distribution in ms of trace time; zero without values.
type Dist struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

// Share is how many requests a worker got.
type Share struct {
	Name     string `json:"name"`
	Requests int    `json:"requests"`
}

// Result is what a replay measured. Latencies are in ms of trace time and cover
// the complete answers; errors count as SLO misses.
type Result struct {
	Requests int  `json:"requests"`
	Errors   int  `json:"errors"`
	TTFT     Dist `json:"ttft_ms"`
	TPOT     Dist `json:"tpot_ms"`
	E2E      Dist `json:"e2e_ms"`
	SLO      SLO  `json:"slo"`
	// Goodput is the share of all requests that met the SLO, 0 to 1.
	Goodput float64 `json:"goodput"`
	// HitRate is cached over prompt tokens as the engines reported, 0 to 1.
	HitRate      float64 `json:"hit_rate"`
	PromptTokens int     `json:"prompt_tokens"`
	CachedTokens int     `json:"cached_tokens"`
	OutputTokens int     `json:"output_tokens"`
	Workers      []Share `json:"workers"`
	Reasons      []Share `json:"reasons"`
	// Prediction is how near the picker's plans came; nil if none was seen.
	Prediction *Prediction `json:"prediction,omitempty"`
	// FirstErrors are up to five error texts.
	FirstErrors []string `json:"first_errors,omitempty"`
}

// Prediction is the error of the picker's plans against what the client saw.
type Prediction struct {
	Requests int `json:"requests"`
	// TTFT is |predicted - seen| / seen of the times to first token, of which the seen
	// one includes the way through the gateway.
	TTFT Dist `json:"ttft_error"`
	// CachedOver and CachedUnder are the tokens that were wrongly predicted to be
	// cached and not to be, as shares of the prompts' tokens.
	CachedOver  float64 `json:"cached_over"`
	CachedUnder float64 `json:"cached_under"`
}

// predicted sums up the answers with a plan; nil if there are none.
func predicted(answers []Answer) *Prediction {
	var errs []float64
	over, under, tokens := 0, 0, 0
	for i := range answers {
		a := &answers[i]
		if a.Err != "" || a.PredictedCached < 0 || a.First <= 0 {
			continue
		}
		seen := float64(a.First) / float64(time.Millisecond)
		errs = append(errs, math.Abs(a.PredictedMs-seen)/seen)
		over += max(0, a.PredictedCached-a.CachedTokens)
		under += max(0, a.CachedTokens-a.PredictedCached)
		tokens += a.PromptTokens
	}
	if len(errs) == 0 {
		return nil
	}
	return &Prediction{Requests: len(errs), TTFT: distOf(errs), CachedOver: ratio(over, tokens), CachedUnder: ratio(under, tokens)}
}

// Summarize makes a result of answers.
func Summarize(answers []Answer, timeScale float64, slo SLO) Result {
	r := Result{Requests: len(answers), SLO: slo}
	var ttft, tpot, e2e []float64
	workers, reasons := map[string]int{}, map[string]int{}
	good := 0
	for _, a := range answers {
		if a.Worker != "" {
			workers[a.Worker]++
			reasons[a.Reason]++
		}
		if a.Err != "" {
			r.Errors++
			if len(r.FirstErrors) < 5 {
				r.FirstErrors = append(r.FirstErrors, a.Err)
			}
			continue
		}
		first, last := traceMs(a.First, timeScale), traceMs(a.Last, timeScale)
		perToken := 0.0
		if a.OutputTokens > 1 {
			perToken = (last - first) / float64(a.OutputTokens-1)
			tpot = append(tpot, perToken)
		}
		ttft, e2e = append(ttft, first), append(e2e, last)
		if first <= slo.TTFTMs && perToken <= slo.TPOTMs {
			good++
		}
		r.PromptTokens += a.PromptTokens
		r.CachedTokens += a.CachedTokens
		r.OutputTokens += a.OutputTokens
	}
	r.TTFT, r.TPOT, r.E2E = distOf(ttft), distOf(tpot), distOf(e2e)
	r.Goodput = ratio(good, r.Requests)
	r.HitRate = ratio(r.CachedTokens, r.PromptTokens)
	r.Prediction = predicted(answers)
	r.Workers, r.Reasons = shares(workers), shares(reasons)
	return r
}

func traceMs(d time.Duration, scale float64) float64 {
	return float64(d) / float64(time.Millisecond) * scale
}

func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func distOf(v []float64) Dist {
	if len(v) == 0 {
		return Dist{}
	}
	slices.Sort(v)
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	at := func(q float64) float64 { return v[int(math.Ceil(q*float64(len(v))))-1] } // nearest rank
	return Dist{Mean: sum / float64(len(v)), P50: at(0.5), P90: at(0.9), P99: at(0.99)}
}

func shares(m map[string]int) []Share {
	out := make([]Share, 0, len(m))
	for name, n := range m {
		out = append(out, Share{Name: name, Requests: n})
	}
	slices.SortFunc(out, func(a, b Share) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Obeyed reports whether the picker used the policy that was asked for, as far as
// the reasons of its plans tell.
func (r Result) Obeyed(policy string) bool {
	for _, s := range r.Reasons {
		switch s.Name {
		case "policy":
			if policy == "kv" {
				return false
			}
		case "cached", "least-cost", "spill", "prefill":
			if policy != "kv" {
				return false
			}
		}
	}
	return true
}

// Print writes the result as a table for people.
func (r Result) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, d Dist) {
		_, _ = fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t\n", name, d.Mean, d.P50, d.P90, d.P99) // Flush reports it
	}
	_, _ = fmt.Fprintln(t, "ms of trace time\tmean\tp50\tp90\tp99\t") // Flush reports it
	row("TTFT", r.TTFT)
	row("TPOT", r.TPOT)
	row("E2E", r.E2E)
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	_, err := fmt.Fprintf(w, "requests %d, errors %d, goodput %.1f %% (TTFT <= %.0f ms, TPOT <= %.0f ms), hit rate %.1f %% (%d of %d prompt tokens)\n",
		r.Requests, r.Errors, 100*r.Goodput, r.SLO.TTFTMs, r.SLO.TPOTMs, 100*r.HitRate, r.CachedTokens, r.PromptTokens)
	if err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	for _, s := range []struct {
		what   string
		shares []Share
	}{{"picks", r.Workers}, {"reasons", r.Reasons}} {
		if len(s.shares) == 0 {
			continue
		}
		_, _ = fmt.Fprintf(w, "%s:", s.what) // as above: a broken pipe shows in the next write
		for _, x := range s.shares {
			_, _ = fmt.Fprintf(w, "  %s %d", x.Name, x.Requests)
		}
		_, _ = fmt.Fprintln(w)
	}
	if p := r.Prediction; p != nil {
		_, _ = fmt.Fprintf(w, "prediction error of %d plans: TTFT p50 %.1f %%, p90 %.1f %%; cached tokens %.2f points too many, %.2f too few\n",
			p.Requests, 100*p.TTFT.P50, 100*p.TTFT.P90, 100*p.CachedOver, 100*p.CachedUnder)
	}
	for _, e := range r.FirstErrors {
		_, _ = fmt.Fprintln(w, "error:", e)
	}
	return nil
}
