package translate

import (
	"encoding/binary"
	"math/bits"

	"github.com/zeebo/xxh3"
)

// The factors of mix, odd, from SplitMix64, and their inverses modulo 2^64.
const (
	factor1  = 0xbf58476d1ce4e5b9
	factor2  = 0x94d049bb133111eb
	inverse1 = 0x96de1b173f119089
	inverse2 = 0x319642b2d24d8ec3
)

// short is an 8-byte name, mixed so that it spreads evenly. Mixing loses nothing.
type short uint64

func (s short) order() uint64 { return uint64(s) }

func mix(v, seed uint64) short {
	v ^= seed
	v *= factor1
	v ^= v >> 32
	v *= factor2
	return short(v ^ v>>32)
}

func unmix(s short, seed uint64) uint64 {
	v := uint64(s)
	v ^= v >> 32
	v *= inverse2
	v ^= v >> 32
	v *= inverse1
	return v ^ seed
}

// long is a 32-byte name (SHA-256, BLAKE3), mixed word by word with the seed.
type long [4]uint64

func (l long) order() uint64 {
	hi, lo := bits.Mul64(l[0]^factor1, l[1]^factor2)
	hi2, lo2 := bits.Mul64(l[2]^inverse1, l[3]^inverse2)
	return uint64(mix(hi^lo^bits.RotateLeft64(hi2^lo2, 17), 0))
}

func longOf(h string, seed uint64) long {
	var l long
	for i := range l {
		l[i] = binary.BigEndian.Uint64([]byte(h[8*i:8*i+8])) ^ seed
	}
	return l
}

// text is a name of any other length.
type text string

func (t text) order() uint64 { return xxh3.HashString(string(t)) }
