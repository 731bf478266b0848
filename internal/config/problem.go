package config

import (
	"cmp"
	"slices"
	"strings"
)

// FieldError is one problem with one setting. Its text is one line, holds no secret, and
// says what to write instead.
type FieldError struct {
	Field   string // the setting's path, or the name of what is not a setting
	Origin  string // where it was given: file:line, a variable, a flag; empty if nowhere
	Value   string // as written, ready to be shown; empty if there is nothing to show
	Problem string
	Hint    string
}

func (e *FieldError) Error() string {
	var b strings.Builder
	b.WriteString(e.Field)
	if e.Value != "" {
		b.WriteString(" = " + e.Value)
	}
	if e.Origin != "" {
		b.WriteString(" (" + e.Origin + ")")
	}
	b.WriteString(": " + e.Problem)
	if e.Hint != "" {
		b.WriteString("; " + e.Hint)
	}
	return b.String()
}

// Problems is everything that is wrong with a configuration, sorted by setting. It is
// never empty when it is returned as an error.
type Problems []*FieldError

// Error returns one line for each problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, e := range p {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find the FieldErrors.
func (p Problems) Unwrap() []error {
	errs := make([]error, len(p))
	for i, e := range p {
		errs[i] = e
	}
	return errs
}

func (p Problems) sort() {
	slices.SortStableFunc(p, func(a, b *FieldError) int {
		return cmp.Or(cmp.Compare(a.Field, b.Field), cmp.Compare(a.Problem, b.Problem))
	})
}

// verdict is what a parser says about a value that it refuses. The place is added by the
// caller, and so is the value, since only the caller knows whether it may be shown. Neither
// text repeats more of the value than digits and unit names.
type verdict struct {
	problem string
	hint    string
}
