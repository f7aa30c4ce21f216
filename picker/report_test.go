package picker

import (
	"math"
	"testing"

	"github.com/kvlane/kvlane/kvindex"
)

// TestReported: what the worker says of an answer is kept with the booking until that
// is closed, the first token's time from where it is seen and the cached tokens from
// where they are.
func TestReported(t *testing.T) {
	p, now := NewPool(testConfig(), testTable()), epochStart()
	load := func(l kvindex.Load) {
		p.Apply(&kvindex.Record{Owner: kvindex.Owner{Worker: "w"}, Epoch: 1, Term: 1, Kind: kvindex.KindLoad, Load: &l}, now)
	}
	p.Apply(&kvindex.Record{Owner: kvindex.Owner{Worker: "w"}, Epoch: 1, Term: 1, Kind: kvindex.KindHello, Hello: &kvindex.Hello{
		Address: "10.0.0.1:8000", Ready: true, Model: "m", Served: []string{"m"}, BlockSize: 16, LeaseMs: 1 << 30,
	}}, now)
	for _, c := range []struct {
		name        string
		first, done *kvindex.Sample
		want        Report
	}{
		{name: "stream", first: &kvindex.Sample{FirstTokenMs: 30}, want: Report{30, -1}},
		{
			name: "whole stream", first: &kvindex.Sample{FirstTokenMs: 30},
			done: &kvindex.Sample{PromptTokens: 100, CachedTokens: 64, FirstTokenMs: 30, TotalMs: 90}, want: Report{30, 64},
		},
		{name: "no stream", done: &kvindex.Sample{PromptTokens: 100, CachedTokens: 0, TotalMs: 90}, want: Report{0, 0}},
		{name: "a first token never", first: &kvindex.Sample{FirstTokenMs: math.Inf(1)}, done: &kvindex.Sample{FirstTokenMs: 40, CachedTokens: -1}, want: Report{40, -1}},
		{name: "no number", first: &kvindex.Sample{FirstTokenMs: math.NaN()}, done: &kvindex.Sample{FirstTokenMs: -1, CachedTokens: -1}, want: Report{0, -1}},
		{name: "silent engine", done: &kvindex.Sample{CachedTokens: -1, TotalMs: 90}, want: Report{0, -1}},
	} {
		p.Pick(&Request{ID: c.name, Model: "m", ISL: 100}, now)
		if got, ok := p.Reported(c.name); ok {
			t.Errorf("%s: %+v before the worker said anything", c.name, got)
		}
		l := kvindex.Load{Accepted: []string{c.name}}
		for sample, list := range map[*kvindex.Sample]*[]kvindex.Sample{c.first: &l.FirstToken, c.done: &l.Done} {
			if sample != nil {
				sample.Booking = c.name
				*list = append(*list, *sample)
			}
		}
		load(l)
		if got, ok := p.Reported(c.name); !ok || got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		p.Close(c.name, now)
		if _, ok := p.Reported(c.name); ok {
			t.Errorf("%s is still there", c.name)
		}
	}
}
