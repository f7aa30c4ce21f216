package sim

import (
	"math"
	"slices"
	"time"
)

// SLO is what a good answer keeps.
type SLO struct {
	// TTFTMs bounds the time to first token. With Unloaded above 0 the bound is
	// max(TTFTMs, Unloaded * the unloaded prefill of the request's uncached tokens).
	TTFTMs   float64 `json:"ttft_ms"`
	Unloaded float64 `json:"unloaded"`
	// TPOTMs bounds the mean time between tokens.
	TPOTMs float64 `json:"tpot_ms"`
}

// DefaultSLO grows with the prompt: max(1 s, 3 x unloaded), 50 ms a token.
func DefaultSLO() SLO { return SLO{TTFTMs: 1000, Unloaded: 3, TPOTMs: 50} }

// Dist is a distribution; a percentile q is the element at round(q*(n-1)) of the
// sorted values.
type Dist struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

// Result is what clients saw. Times in ms cover the answered requests; shares are
// of all requests offered, 0 to 1.
type Result struct {
	Requests int `json:"requests"`
	Refused  int `json:"refused"`
	// TTFT is first token - arrival, TPOT (last - first)/(output - 1) without
	// one-token answers, Gap the longest pause of an answer, E2E last token - arrival.
	TTFT Dist `json:"ttft_ms"`
	TPOT Dist `json:"tpot_ms"`
	Gap  Dist `json:"gap_ms"`
	E2E  Dist `json:"e2e_ms"`
	// HitRate is cached over input tokens at first admission.
	HitRate float64 `json:"hit_rate"`
	// Goodput is the share that met the SLO; Within2s with 2 s and 50 ms, Within5s
	// with 5 s and 100 ms.
	Goodput  float64 `json:"goodput"`
	Within2s float64 `json:"goodput_2s_50ms"`
	Within5s float64 `json:"goodput_5s_100ms"`
	// BusySpread and WorkSpread are the coefficients of variation over the workers of
	// busy time and of uncached tokens in a minute, averaged over the minutes.
	BusySpread float64 `json:"busy_cv"`
	WorkSpread float64 `json:"uncached_cv"`
	// Busy is the share of the time that workers computed.
	Busy        float64 `json:"busy"`
	DurationMs  float64 `json:"duration_ms"`
	Preemptions uint64  `json:"preemptions"`
	// Transferred are tokens of KV that went from one worker to another.
	Transferred uint64 `json:"transferred_tokens"`
	// Loaded is the share of the input tokens that came out of host memory.
	Loaded float64 `json:"loaded"`
	// Unfair is the largest ratio of a wait to the fair wait: the pool's queued
	// prefill at arrival divided by its workers, plus the request's own prefill, at
	// least the SLO's TTFTMs.
	Unfair float64 `json:"unfair"`
	// ErrorP50 and ErrorP90 are of the predicted time to first token, relative to the
	// real one; 0 for policies that predict none.
	ErrorP50 float64 `json:"prediction_error_p50"`
	ErrorP90 float64 `json:"prediction_error_p90"`
	// Tenants are the goodputs of the tenants that have names.
	Tenants map[string]float64 `json:"tenants,omitempty"`
	// TTFTs are all times to first token, sorted, ms.
	TTFTs []float64 `json:"-"`
	// Minutes and WorkMinutes are the spreads of busy time and of uncached tokens by
	// minute.
	Minutes     []float64 `json:"-"`
	WorkMinutes []float64 `json:"-"`
}

// Misses is the share that did not meet the SLO.
func (r *Result) Misses() float64 { return 1 - r.Goodput }

func (f *Fleet) result() *Result {
	r := &Result{Requests: len(f.calls)}
	var ttft, tpot, gap, e2e, errs []float64
	cached, input, end := 0, 0, time.Duration(0)
	good, good2, good5 := 0, 0, 0
	tenants := map[string][2]int{} // requests, good ones
	count := func(c *call, good int) {
		if name := f.cfg.Trace.Entries[c.Index].Tenant; name != "" {
			n := tenants[name]
			tenants[name] = [2]int{n[0] + 1, n[1] + good}
		}
	}
	for _, c := range f.calls {
		if c.refused {
			r.Refused++
			r.Unfair = max(r.Unfair, f.unfair(c))
			count(c, 0)
			continue
		}
		first := ms(c.first - c.arrived)
		ttft, gap, e2e = append(ttft, first), append(gap, ms(c.gap)), append(e2e, ms(c.last-c.arrived))
		each := 0.0
		if c.tokens > 1 {
			each = ms(c.last-c.first) / float64(c.tokens-1)
			tpot = append(tpot, each)
		}
		cached, input, end = cached+c.cached, input+c.ISL, max(end, c.last)
		unloaded := f.cfg.Timing.UnloadedMs(c.ISL-c.cached, c.cached, f.cfg.ChunkTokens)
		met := 0
		if f.cfg.SLO.met(first, each, unloaded) {
			met = 1
		}
		good += met
		count(c, met)
		if first <= 2000 && each <= 50 {
			good2++
		}
		if first <= 5000 && each <= 100 {
			good5++
		}
		r.Unfair = max(r.Unfair, first/max(f.cfg.SLO.TTFTMs, c.fairMs+unloaded))
		if c.predicted > 0 && first > 0 {
			errs = append(errs, math.Abs(c.predicted-first)/first)
		}
	}
	n := float64(len(f.calls))
	r.Goodput, r.Within2s, r.Within5s = float64(good)/n, float64(good2)/n, float64(good5)/n
	r.TTFT, r.TPOT, r.Gap, r.E2E = distOf(ttft), distOf(tpot), distOf(gap), distOf(e2e)
	wrong := distOf(errs)
	if len(tenants) > 0 {
		r.Tenants = map[string]float64{}
	}
	for name, n := range tenants {
		r.Tenants[name] = float64(n[1]) / float64(n[0])
	}
	r.ErrorP50, r.ErrorP90 = wrong.P50, wrong.P90
	r.TTFTs = ttft
	if input > 0 {
		r.HitRate = float64(cached) / float64(input)
	}
	r.DurationMs = ms(end - f.calls[0].arrived)
	f.spreads(r, input)
	return r
}

// unfair is the time that a request waited for its first token, or for its refusal,
// over the fair one.
func (f *Fleet) unfair(c *call) float64 {
	own := f.cfg.Timing.UnloadedMs(c.ISL-c.cached, c.cached, f.cfg.ChunkTokens)
	return ms(c.first-c.arrived) / max(f.cfg.SLO.TTFTMs, c.fairMs+own)
}

// met reports whether an answer kept the SLO.
func (s SLO) met(ttft, tpot, unloaded float64) bool {
	return ttft <= s.bound(unloaded) && tpot <= s.TPOTMs
}

// bound is the most that a first token may take, ms.
func (s SLO) bound(unloaded float64) float64 { return max(s.TTFTMs, s.Unloaded*unloaded) }

func (f *Fleet) spreads(r *Result, input int) {
	busy, loaded := 0.0, uint64(0)
	last := int(time.Duration(r.DurationMs*float64(time.Millisecond)) / time.Minute)
	values := make([]float64, len(f.engines))
	spread := func(value func(minute) float64) []float64 {
		var list []float64
		for m := range last + 1 {
			for i, e := range f.engines {
				values[i] = 0
				if m < len(e.minutes) {
					values[i] = value(e.minutes[m])
				}
			}
			if cv, ok := variation(values); ok {
				list = append(list, cv)
			}
		}
		return list
	}
	r.Minutes = spread(func(m minute) float64 { return m.busyMs })
	r.BusySpread = mean(r.Minutes)
	r.WorkMinutes = spread(func(m minute) float64 { return float64(m.uncached) })
	r.WorkSpread = mean(r.WorkMinutes)
	for _, e := range f.engines {
		for _, m := range e.minutes {
			busy += m.busyMs
		}
		st := e.core.Stats()
		r.Preemptions, r.Transferred = r.Preemptions+st.Preemptions, r.Transferred+st.TransferredTokens
		loaded += st.LoadedTokens
	}
	if input > 0 {
		r.Loaded = float64(loaded) / float64(input)
	}
	if r.DurationMs > 0 {
		r.Busy = busy / r.DurationMs / float64(len(f.engines))
	}
}

// variation is the standard deviation over the mean; false if all are 0.
func variation(v []float64) (float64, bool) {
	m := mean(v)
	if m == 0 {
		return 0, false
	}
	sum := 0.0
	for _, x := range v {
		sum += (x - m) * (x - m)
	}
	return math.Sqrt(sum/float64(len(v))) / m, true
}

func mean(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// distOf sorts v.
func distOf(v []float64) Dist {
	if len(v) == 0 {
		return Dist{}
	}
	slices.Sort(v)
	pick := func(q float64) float64 { return v[int(math.Round(q*float64(len(v)-1)))] }
	return Dist{Mean: mean(v), P50: pick(0.5), P90: pick(0.9), P99: pick(0.99)}
}
