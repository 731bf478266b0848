package lanes

import (
	"encoding/binary"
	"math/bits"

	"github.com/outbox-forwarder/forwarder/source"
)

// DefaultLanes is the lane count of a new store.
const DefaultLanes = 256

// LaneOf returns the lane of a key in a store of n lanes, n a power of two. It equals
// hashtext(key COLLATE "C") & (n-1) in PostgreSQL.
func LaneOf(key []byte, n int) source.Lane {
	return source.Lane(Hash(key) & uint32(n-1))
}

// LaneOfRow returns the lane of a row without a key: it has no order to keep, so its id
// spreads it.
func LaneOfRow(id int64, n int) source.Lane {
	return source.Lane(uint64(id) & uint64(n-1))
}

// Hash is PostgreSQL's hashtext for the C collation (and for every deterministic one): Bob
// Jenkins's lookup3 of the bytes, as hash_bytes computes it on little-endian machines. The
// server's int4 is this value's two's complement.
func Hash(key []byte) uint32 {
	seed := 0x9e3779b9 + uint32(len(key)) + 3923095
	a, b, c := seed, seed, seed
	for len(key) >= 12 {
		a += binary.LittleEndian.Uint32(key)
		b += binary.LittleEndian.Uint32(key[4:])
		c += binary.LittleEndian.Uint32(key[8:])
		a, b, c = mix(a, b, c)
		key = key[12:]
	}
	// The lowest byte of c is left to the length, which the seed already holds.
	var tail [12]byte
	copy(tail[:], key)
	if len(key) > 8 {
		copy(tail[9:], key[8:])
		tail[8] = 0
	}
	a += binary.LittleEndian.Uint32(tail[:])
	b += binary.LittleEndian.Uint32(tail[4:])
	c += binary.LittleEndian.Uint32(tail[8:])
	return final(a, b, c)
}

func mix(a, b, c uint32) (uint32, uint32, uint32) {
	a = (a - c) ^ bits.RotateLeft32(c, 4)
	c += b
	b = (b - a) ^ bits.RotateLeft32(a, 6)
	a += c
	c = (c - b) ^ bits.RotateLeft32(b, 8)
	b += a
	a = (a - c) ^ bits.RotateLeft32(c, 16)
	c += b
	b = (b - a) ^ bits.RotateLeft32(a, 19)
	a += c
	c = (c - b) ^ bits.RotateLeft32(b, 4)
	b += a
	return a, b, c
}

func final(a, b, c uint32) uint32 {
	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	return (c ^ b) - bits.RotateLeft32(b, 24)
}
