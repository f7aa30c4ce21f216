package enginewire

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// maxHashBytes bounds one block hash. Engines use 8 to 32 bytes; twice that
// leaves room for SHA-512.
const maxHashBytes = 64

// Hash is an engine's own name of a block, in one canonical form: the bytes of
// a byte string, the eight big-endian bytes of an integer, the bytes that hex
// text spells. The signed and the unsigned spelling of the same 64 bits are
// equal, and so are hex text and the bytes it spells. It is opaque: only
// equality means anything. The empty string is not a hash; a hash of value 0 is
// eight zero bytes.
type Hash string

// IntHash is the hash that an engine publishes as this integer.
func IntHash(v uint64) Hash {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	return Hash(b[:])
}

// String is the hash in hex.
func (h Hash) String() string { return hex.EncodeToString([]byte(h)) }

// appendHexHash appends what text spells in hex, or the text itself where it is
// not hex: an opaque name stays usable as one.
func appendHexHash(dst []byte, text string) []byte {
	digits := strings.TrimPrefix(text, "0x")
	if out, err := hex.AppendDecode(dst, []byte(digits)); err == nil && digits != "" {
		return out
	}
	return append(dst, text...)
}
