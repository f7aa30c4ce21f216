package sim

import "math/bits"

// The constants are digits of pi's fraction; any odd, random-looking ones do.
const (
	mixA      = 0x243f6a8885a308d3
	mixB      = 0x13198a2e03707345
	blockRoot = 0xa4093822299f31d1
	stateRoot = 0x082efa98ec4e6c89
)

// mix folds v into h: both halves of a 128-bit product.
func mix(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^mixA, v^mixB)
	return hi ^ lo ^ bits.RotateLeft64(h, 23)
}

func mixTokens(h uint64, tokens []uint32) uint64 {
	for _, t := range tokens {
		h = mix(h, uint64(t))
	}
	return h
}

func mixString(h uint64, s string) uint64 {
	h = mix(h, uint64(len(s)))
	for i := range len(s) {
		h = mix(h, uint64(s[i]))
	}
	return h
}

// rootID is the parent of first blocks: caches with another LoRA or salt have
// nothing in common.
func rootID(lora, salt string) BlockID {
	return BlockID(mixString(mixString(blockRoot, lora), salt))
}

// WordNext is a [Config.Next] that picks from words by the state and stops
// after one token in stopOneIn on average; 0 never stops. words must not be
// empty.
func WordNext(words []uint32, stopOneIn int) func(state uint64) (token uint32, stop bool) {
	return func(state uint64) (uint32, bool) {
		word := words[mix(state, 1)%uint64(len(words))]
		return word, stopOneIn > 0 && mix(state, 2)%uint64(stopOneIn) == 0
	}
}
