package source

import "strings"

// SetupError says that the database can be reached and cannot serve as it is: every problem
// found, each with its fix. Trying again does not help.
type SetupError struct{ Problems []string }

func (e *SetupError) Error() string { return strings.Join(e.Problems, "\n") }
