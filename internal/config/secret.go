package config

import (
	"fmt"
	"log/slog"
	"strconv"
)

// hidden stands for a value that must not be shown.
const hidden = "(hidden)"

// Secret is a text that is used but never shown: every way of printing it, also as part of
// a struct and in JSON, shows a stand-in. Only Reveal returns the text.
type Secret struct {
	value string
	shown string
}

// NewSecret returns a secret of which nothing may be shown.
func NewSecret(value string) Secret {
	if value == "" {
		return Secret{}
	}
	return Secret{value: value, shown: hidden}
}

// NewURL returns a connection string as a secret that shows all but its password.
func NewURL(value string) Secret {
	return Secret{value: value, shown: RedactURL(value)}
}

// Reveal returns the secret itself, for the one place that logs in with it.
func (s Secret) Reveal() string { return s.value }

// IsZero says whether there is no secret.
func (s Secret) IsZero() bool { return s.value == "" }

// String returns the stand-in; it is empty where there is no secret.
func (s Secret) String() string { return s.shown }

// Format prints the stand-in for every verb. Without it %x and %#v would print the fields.
func (s Secret) Format(f fmt.State, verb rune) {
	if verb == 'q' || verb == 'v' && f.Flag('#') {
		fmt.Fprint(f, strconv.Quote(s.shown))
		return
	}
	fmt.Fprint(f, s.shown)
}

// MarshalText keeps the secret out of JSON and of anything else that encodes text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.shown), nil }

// LogValue keeps the secret out of logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.shown) }
