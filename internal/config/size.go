package config

import (
	"fmt"
	"strconv"
	"strings"
)

// Size is a number of bytes. It is written with a unit: 512KiB, 32MiB, 1GiB.
type Size int64

// The units of a Size.
const (
	Byte Size = 1
	KiB       = 1 << 10 * Byte
	MiB       = 1 << 20 * Byte
	GiB       = 1 << 30 * Byte
)

var sizeUnits = []struct {
	name string
	size Size
}{{"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", Byte}}

// String returns the size in the largest unit that divides it.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if s != 0 && s%u.size == 0 {
			return strconv.FormatInt(int64(s/u.size), 10) + u.name
		}
	}
	return "0B"
}

// parseSize reads a whole number and a unit.
func parseSize(text string) (Size, *verdict) {
	digits := text[:len(text)-len(strings.TrimLeft(text, "+-0123456789"))]
	unit := strings.TrimSpace(text[len(digits):])
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, &verdict{"is not a size", "write a whole number and a unit (B, KiB, MiB, GiB), such as 32MiB"}
	}
	if unit == "" && n <= 0 {
		return 0, &verdict{"has no unit", "write a size above zero with a unit, such as 32MiB; the units are B, KiB, MiB, GiB"}
	}
	if unit == "" {
		return 0, &verdict{"has no unit", fmt.Sprintf("did you mean %dMiB? The units are B, KiB, MiB, GiB", n)}
	}
	for _, u := range sizeUnits {
		if unit != u.name {
			continue
		}
		if product := Size(n) * u.size; product/u.size == Size(n) {
			return product, nil
		}
		return 0, &verdict{"is too large to be a number of bytes", "write a smaller size"}
	}
	return 0, &verdict{"has an unknown unit", "the units are B, KiB, MiB, GiB, written like this"}
}
