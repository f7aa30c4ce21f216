package kvindex

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ParseTiers reads tiers as operators write them, separated by commas: the name
// and, if it is known, = and bytes per second: "host=38e9,disk". Empty is none.
func ParseTiers(s string) ([]TierSpec, error) {
	if s == "" {
		return nil, nil
	}
	var list []TierSpec
	for word := range strings.SplitSeq(s, ",") {
		name, speed, known := strings.Cut(word, "=")
		spec := TierSpec{Tier: Host}
		for spec.Tier < NumTiers && spec.Tier.String() != name {
			spec.Tier++
		}
		if spec.Tier == NumTiers {
			return nil, fmt.Errorf("tier %q: want host, disk or external", name)
		}
		if slices.ContainsFunc(list, func(o TierSpec) bool { return o.Tier == spec.Tier }) {
			return nil, fmt.Errorf("tier %q is there twice", name)
		}
		if known {
			v, err := strconv.ParseFloat(speed, 64)
			if err != nil || !(v >= 1 && v <= 1e15) {
				return nil, fmt.Errorf("tier %q: %q is not bytes per second, 1 to 1e15", name, speed)
			}
			spec.BytesPerSecond = uint64(v)
		}
		list = append(list, spec)
	}
	return list, nil
}
