package kvindex

import (
	"slices"
	"testing"
)

func TestParseTiers(t *testing.T) {
	got, err := ParseTiers("host=38e9,disk,external=1")
	want := []TierSpec{{Host, 38_000_000_000}, {Tier: Disk}, {External, 1}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if got, err := ParseTiers(""); err != nil || got != nil {
		t.Errorf("nothing: got %v, %v", got, err)
	}
	for _, bad := range []string{"device", "host,host", "host=", "host=0", "host=NaN", "host=1e99", "ram", "host,", "host=38 GB/s"} {
		if got, err := ParseTiers(bad); err == nil {
			t.Errorf("%q: got %v, want an error", bad, got)
		}
	}
}
