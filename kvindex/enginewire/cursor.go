package enginewire

import (
	"encoding/binary"
	"errors"
	"math"
)

// The faults of a msgpack value. They name the fault, not the bytes: payloads
// hold users' prompts.
var (
	errCut      = errors.New("the value is cut off")
	errReserved = errors.New("the byte 0xc1 starts no value")
	errNotArray = errors.New("not an array")
	errNotMap   = errors.New("not a map")
	errNotInt   = errors.New("not an integer")
	errNotFloat = errors.New("not a number")
	errNotText  = errors.New("not text")
	errRange    = errors.New("out of range")
)

// cursor reads msgpack from a slice. A length it returns is checked against
// the bytes that are left, so that a caller may allocate by it: every element
// takes at least one byte.
type cursor struct {
	b []byte
}

// head is the first byte of a value and the big-endian number after it.
type head struct {
	code byte
	n    uint64
}

// numberSizes has a digit for each code from 0xc4 to 0xdf: the bytes of the
// number that follows it.
const numberSizes = "124" + "124" + "48" + "1248" + "1248" + // bin, ext, float, uint, int
	"00000" + "124" + "24" + "24" // fixext, str, array, map

func (c *cursor) head() (head, error) {
	if len(c.b) == 0 {
		return head{}, errCut
	}
	h := head{code: c.b[0]}
	c.b = c.b[1:]
	if h.code < 0xc4 || h.code > 0xdf {
		return h, nil
	}
	k := int(numberSizes[h.code-0xc4] - '0')
	if len(c.b) < k {
		return head{}, errCut
	}
	for _, x := range c.b[:k] {
		h.n = h.n<<8 | uint64(x)
	}
	c.b = c.b[k:]
	return h, nil
}

// take cuts n bytes.
func (c *cursor) take(n uint64) ([]byte, error) {
	if n > uint64(len(c.b)) {
		return nil, errCut
	}
	p := c.b[:n:n]
	c.b = c.b[n:]
	return p, nil
}

// skip passes over one value of any kind and depth without recursion.
func (c *cursor) skip() error {
	for left := uint64(1); left > 0; left-- {
		h, err := c.head()
		if err != nil {
			return err
		}
		more, body := h.contents()
		if h.code == 0xc1 {
			return errReserved
		}
		if more > uint64(len(c.b)) {
			return errCut
		}
		left += more
		if _, err := c.take(body); err != nil {
			return err
		}
	}
	return nil
}

// contents is how many values and how many bytes belong to a value after its
// head. A number's bytes are part of the head.
func (h head) contents() (values, bytes uint64) {
	switch {
	case h.code >= 0x80 && h.code <= 0x8f:
		return 2 * uint64(h.code&0x0f), 0
	case h.code >= 0x90 && h.code <= 0x9f:
		return uint64(h.code & 0x0f), 0
	case h.code >= 0xa0 && h.code <= 0xbf:
		return 0, uint64(h.code & 0x1f)
	}
	switch h.code {
	case 0xc4, 0xc5, 0xc6, 0xd9, 0xda, 0xdb:
		return 0, h.n
	case 0xc7, 0xc8, 0xc9:
		return 0, 1 + h.n
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		return 0, 1 + 1<<(h.code-0xd4)
	case 0xdc, 0xdd:
		return h.n, 0
	case 0xde, 0xdf:
		return 2 * h.n, 0
	}
	return 0, 0
}

// value cuts one whole value.
func (c *cursor) value() ([]byte, error) {
	start := c.b
	if err := c.skip(); err != nil {
		return nil, err
	}
	n := len(start) - len(c.b)
	return start[:n:n], nil
}

func (h head) isArray() bool {
	return h.code >= 0x90 && h.code <= 0x9f || h.code == 0xdc || h.code == 0xdd
}

func (h head) isMap() bool {
	return h.code >= 0x80 && h.code <= 0x8f || h.code == 0xde || h.code == 0xdf
}

func (h head) isText() bool {
	return h.code >= 0xa0 && h.code <= 0xbf || h.code >= 0xd9 && h.code <= 0xdb
}

func (h head) isBytes() bool { return h.code >= 0xc4 && h.code <= 0xc6 }

// array reads an array's head; n is at most the number of bytes left.
func (c *cursor) array() (n int, err error) {
	h, err := c.head()
	if err != nil {
		return 0, err
	}
	if !h.isArray() {
		return 0, errNotArray
	}
	values, _ := h.contents()
	if values > uint64(len(c.b)) {
		return 0, errCut
	}
	return int(values), nil
}

// pairs reads a map's head.
func (c *cursor) pairs() (n int, err error) {
	h, err := c.head()
	if err != nil {
		return 0, err
	}
	if !h.isMap() {
		return 0, errNotMap
	}
	values, _ := h.contents()
	if values > uint64(len(c.b)) {
		return 0, errCut
	}
	return int(values / 2), nil
}

// integer returns the 64 bits of an integer in two's complement and whether
// its sign is negative.
func (h head) integer() (bits uint64, negative bool, err error) {
	switch {
	case h.code <= 0x7f:
		return uint64(h.code), false, nil
	case h.code >= 0xe0:
		return uint64(int64(int8(h.code))), true, nil
	}
	switch h.code {
	case 0xcc, 0xcd, 0xce, 0xcf:
		return h.n, false, nil
	case 0xd0:
		bits = uint64(int64(int8(h.n)))
	case 0xd1:
		bits = uint64(int64(int16(h.n)))
	case 0xd2:
		bits = uint64(int64(int32(h.n)))
	case 0xd3:
		bits = h.n
	default:
		return 0, false, errNotInt
	}
	return bits, int64(bits) < 0, nil
}

// count reads an integer in [0, bound].
func (c *cursor) count(bound uint64) (int, error) {
	h, err := c.head()
	if err != nil {
		return 0, err
	}
	bits, negative, err := h.integer()
	if err != nil {
		return 0, err
	}
	if negative || bits > bound {
		return 0, errRange
	}
	return int(bits), nil
}

// number reads a float or an integer.
func (c *cursor) number() (float64, error) {
	h, err := c.head()
	if err != nil {
		return 0, err
	}
	switch h.code {
	case 0xca:
		return float64(math.Float32frombits(uint32(h.n))), nil
	case 0xcb:
		return math.Float64frombits(h.n), nil
	}
	bits, negative, err := h.integer()
	if err != nil {
		return 0, errNotFloat
	}
	if negative {
		return float64(int64(bits)), nil
	}
	return float64(bits), nil
}

// text reads text; the bytes are the payload's own.
func (c *cursor) text() ([]byte, error) {
	h, err := c.head()
	if err != nil {
		return nil, err
	}
	if !h.isText() {
		return nil, errNotText
	}
	_, n := h.contents()
	return c.take(n)
}

// hash appends the canonical form of one block hash.
func (c *cursor) hash(dst []byte) ([]byte, error) {
	h, err := c.head()
	if err != nil {
		return dst, err
	}
	if !h.isText() && !h.isBytes() {
		bits, _, err := h.integer()
		if err != nil {
			return dst, err
		}
		return binary.BigEndian.AppendUint64(dst, bits), nil
	}
	_, n := h.contents()
	p, err := c.take(n)
	if err != nil {
		return dst, err
	}
	limit := maxHashBytes
	if h.isText() {
		limit = 2*maxHashBytes + len("0x")
	}
	if len(p) == 0 || len(p) > limit {
		return dst, errRange
	}
	if h.isText() {
		return appendHexHash(dst, string(p)), nil
	}
	return append(dst, p...), nil
}

// isNil reports whether a value is missing or nil.
func isNil(raw []byte) bool { return len(raw) == 0 || raw[0] == 0xc0 }
