package timing

import (
	"math"
	"strings"
	"testing"
)

func TestEmbeddedTable(t *testing.T) {
	table := Known()
	if got, want := len(table.Deployments), 7; got != want {
		t.Fatalf("deployments: got %d, want %d", got, want)
	}
	for _, d := range table.Deployments {
		if d.KVTokens <= 0 || d.KVBytesPerToken <= 0 || d.Prefill.B <= 0 || d.Decode.D <= 0 {
			t.Errorf("%s: a constant is missing: %+v", d.Name, d)
		}
		found, err := table.Find(d.Name)
		if err != nil || found != d {
			t.Errorf("Find(%q) = %+v, %v", d.Name, found, err)
		}
	}
	if _, err := table.Find("h100"); err == nil || !strings.Contains(err.Error(), DefaultDeployment) {
		t.Errorf("Find of an unknown name: got %v, want the known names listed", err)
	}
}

// TestPublishedPoint holds the fit at a point that its source states: 8,192
// tokens of prefill on 2xH100 with Qwen3-32B take 440 ms.
func TestPublishedPoint(t *testing.T) {
	d, err := Known().Find(DefaultDeployment)
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Timing().PrefillMs(8192, 0, 8192); math.Abs(got-440) > 1 {
		t.Errorf("PrefillMs(8192) = %.1f, want 440", got)
	}
	if got := d.Timing().DecodeMs(0, 0); got != 0 {
		t.Errorf("DecodeMs of nothing = %v, want 0", got)
	}
	if got := d.Timing().PrefillMs(0, 100, 8192); got != 0 {
		t.Errorf("PrefillMs of nothing = %v, want 0", got)
	}
	if got := (Transfer{SetupMs: 1, BytesPerSecond: 4e10}).Ms(8192, 262144); math.Abs(got-54.7) > 0.1 {
		t.Errorf("Transfer.Ms = %.2f, want 54.7", got)
	}
}

func TestSteps(t *testing.T) {
	for _, tc := range []struct{ u, chunk, want int }{
		{0, 8192, 0}, {-1, 8192, 0}, {1, 8192, 1}, {8192, 8192, 1}, {8193, 8192, 2}, {100000, 0, 1},
	} {
		if got := Steps(tc.u, tc.chunk); got != tc.want {
			t.Errorf("Steps(%d, %d) = %d, want %d", tc.u, tc.chunk, got, tc.want)
		}
	}
	if got := (Transfer{SetupMs: 2}).Ms(10, 10); got != 2 {
		t.Errorf("Transfer.Ms without a bandwidth = %v, want the set-up", got)
	}
}
