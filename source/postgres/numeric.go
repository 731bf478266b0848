package postgres

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
)

// The signs of a numeric in binary form.
const (
	numericPositive = 0x0000
	numericNegative = 0x4000
	numericNaN      = 0xC000
	numericInf      = 0xD000
	numericNegInf   = 0xF000
)

var errNumeric = errors.New("not a numeric")

// appendNumeric prints a numeric in binary form as its output function does: four decimals a
// digit, of which the first weighs 10000^weight, and scale decimals behind the point.
func appendNumeric(to, binaryForm []byte) ([]byte, error) {
	if len(binaryForm) < 8 {
		return nil, errNumeric
	}
	n := int(binary.BigEndian.Uint16(binaryForm))
	weight := int(int16(binary.BigEndian.Uint16(binaryForm[2:])))
	sign := binary.BigEndian.Uint16(binaryForm[4:])
	scale := int(binary.BigEndian.Uint16(binaryForm[6:]))
	if len(binaryForm) != 8+2*n {
		return nil, errNumeric
	}
	switch sign {
	case numericPositive:
	case numericNegative:
		to = append(to, '-')
	case numericNaN:
		return append(to, "NaN"...), nil
	case numericInf:
		return append(to, "Infinity"...), nil
	case numericNegInf:
		return append(to, "-Infinity"...), nil
	default:
		return nil, fmt.Errorf("%w: its sign is %#x", errNumeric, sign)
	}
	// digit returns the one that weighs 10000^w.
	digit := func(w int) int64 {
		if i := weight - w; i >= 0 && i < n {
			return int64(binary.BigEndian.Uint16(binaryForm[8+2*i:]))
		}
		return 0
	}
	to = strconv.AppendInt(to, digit(max(weight, 0)), 10)
	for w := weight - 1; w >= 0; w-- {
		to = appendDigit(to, digit(w))
	}
	if scale == 0 {
		return to, nil
	}
	to = append(to, '.')
	end := len(to) + scale
	for w := -1; len(to) < end; w-- {
		to = appendDigit(to, digit(w))
	}
	return to[:end], nil
}

// appendDigit appends four decimals.
func appendDigit(to []byte, d int64) []byte {
	return append(to, byte('0'+d/1000%10), byte('0'+d/100%10), byte('0'+d/10%10), byte('0'+d%10))
}
