package redislog

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// position is the id of a stream's entry.
type position struct{ ms, n uint64 }

func parsePosition(s string) (position, error) {
	ms, n, _ := strings.Cut(s, "-")
	var p position
	var err error
	if p.ms, err = strconv.ParseUint(ms, 10, 64); err != nil {
		return p, fmt.Errorf("id %q: %w", s, errBadEntry)
	}
	if p.n, err = strconv.ParseUint(n, 10, 64); err != nil {
		return p, fmt.Errorf("id %q: %w", s, errBadEntry)
	}
	return p, nil
}

func (p position) String() string {
	return strconv.FormatUint(p.ms, 10) + "-" + strconv.FormatUint(p.n, 10)
}

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.ms, q.ms), cmp.Compare(p.n, q.n))
}
