package config

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// kind is the shape that a setting has in the file.
type kind int

const (
	kindText  kind = iota // a string
	kindWord              // a string, and a number is judged by the parser, which asks for the unit
	kindTruth             // true or false
	kindList              // a list of strings, or one string with commas
)

// value is what was given for a setting: one text, or for a list its items.
type value struct {
	text  string
	items []string
}

// custom makes a setting of one text that parse understands.
func custom[T any](path string, field func(*Config) *T, parse func(string) (T, *verdict)) setting {
	k := kindText
	switch any(*new(T)).(type) {
	case Size, time.Duration:
		k = kindWord
	}
	return setting{
		path: path, kind: k,
		set: func(c *Config, v value) *verdict {
			parsed, bad := parse(v.text)
			if bad == nil {
				*field(c) = parsed
			}
			return bad
		},
		get: func(c *Config) any { return *field(c) },
	}
}

// choice makes a setting that is one of some words.
func choice[T ~string](path string, field func(*Config) *T, words ...T) setting {
	return custom(path, field, func(text string) (T, *verdict) {
		names := make([]string, len(words))
		for i, w := range words {
			if T(text) == w {
				return w, nil
			}
			names[i] = string(w)
		}
		return "", oneOf(text, names)
	})
}

func oneOf(text string, allowed []string) *verdict {
	hint := "write one of " + strings.Join(allowed, ", ")
	if len(allowed) == 1 {
		hint = "the only allowed value is " + allowed[0]
	}
	for _, a := range allowed {
		if strings.EqualFold(text, a) {
			hint = "write " + a
		}
	}
	return &verdict{"is not an allowed value", hint}
}

func truth(path string, field func(*Config) *bool) setting {
	s := custom(path, field, func(text string) (bool, *verdict) {
		switch text {
		case "true":
			return true, nil
		case "false":
			return false, nil
		}
		return false, &verdict{"is neither true nor false", "write true or false"}
	})
	s.kind = kindTruth
	return s
}

func flagged(s setting, f Flag) setting {
	s.flag = &f
	return s
}

func column(path string, name func(*Config) *string) setting {
	return named(path, name, parseColumn, `name the column; one that is really called none is written "none", with double quotes inside the value`)
}

func optionalColumn(path string, name func(*Config) *string) setting {
	return named(path, name, parseColumn, "")
}

func field(path string, name func(*Config) *string) setting {
	return named(path, name, parseField, "name the field")
}

func optionalField(path string, name func(*Config) *string) setting {
	return named(path, name, parseField, "")
}

// named makes a setting of the name of a column or a field. The word none switches it off,
// unless needed says what to write instead.
func named(path string, name func(*Config) *string, parse func(string) (string, *verdict), needed string) setting {
	s := custom(path, name, func(text string) (string, *verdict) {
		switch {
		case text != noColumn:
			return parse(text)
		case needed != "":
			return "", &verdict{"cannot be switched off", needed}
		}
		return "", nil
	})
	s.name = func(c *Config) string { return *name(c) }
	if needed == "" {
		s.get = func(c *Config) any { return cmp.Or(*name(c), noColumn) }
	}
	return s
}

func connection(path string, url func(*Config) *Secret, check func(string) *verdict) setting {
	s := custom(path, url, func(text string) (Secret, *verdict) {
		return NewURL(text), check(text)
	})
	s.secret, s.url = true, true
	return s
}

func password(path string, field func(*Config) *Secret) setting {
	s := custom(path, field, func(text string) (Secret, *verdict) {
		if strings.ContainsAny(text, "\x00\r\n") {
			return Secret{}, &verdict{"holds a line break or a zero byte", "write the password alone, on one line"}
		}
		return NewSecret(text), nil
	})
	s.secret = true
	return s
}

func brokers(path string, f *Flag) setting {
	return setting{
		path: path, kind: kindList, flag: f,
		set: func(c *Config, v value) *verdict {
			for _, item := range v.items {
				if bad := checkAddress(item, 1, "kafka1:9092"); bad != nil {
					return bad
				}
				if host, _, _ := net.SplitHostPort(item); host == "" {
					return &verdict{"holds a broker without a host", "write host:port, such as kafka1:9092"}
				}
			}
			c.Kafka.Brokers = v.items
			return nil
		},
		get: func(c *Config) any { return c.Kafka.Brokers },
	}
}

func listen(path string, f *Flag) setting {
	s := custom(path, func(c *Config) *string { return &c.Admin.Listen }, func(text string) (string, *verdict) {
		if text == "none" {
			return "", nil
		}
		return text, checkAddress(text, 0, "127.0.0.1:8470")
	})
	s.flag = f
	s.get = func(c *Config) any {
		if c.Admin.Listen == "" {
			return "none"
		}
		return c.Admin.Listen
	}
	return s
}

func logLevel(path string) setting {
	return custom(path, func(c *Config) *slog.Level { return &c.Log.Level }, func(text string) (slog.Level, *verdict) {
		switch text {
		case "debug":
			return slog.LevelDebug, nil
		case "info":
			return slog.LevelInfo, nil
		case "warn":
			return slog.LevelWarn, nil
		case "error":
			return slog.LevelError, nil
		}
		return 0, oneOf(text, []string{"debug", "info", "warn", "error"})
	})
}

// checkAddress judges host:port. The host may be empty, which listeners take for every
// address; brokers look at that themselves.
func checkAddress(text string, lowestPort int, example string) *verdict {
	if strings.Contains(text, "://") || strings.ContainsAny(text, "@/") {
		return &verdict{"is not host:port", "write it without a scheme, login or path, such as " + example}
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return &verdict{"is not host:port", "write both, such as " + example + "; IPv6 goes in brackets, [::1]:" + portOf(example)}
	}
	if !validPort(port, lowestPort) {
		return &verdict{fmt.Sprintf("has a port that is not a number from %d to 65535", lowestPort), "write host:port, such as " + example}
	}
	if host != "" && !validHost(host) {
		return &verdict{"has a host that is no host name", "write host:port, such as " + example}
	}
	return nil
}

func portOf(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

func validPort(s string, lowest int) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && int(n) >= lowest && s[0] != '+'
}

func validHost(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-._:%", r) || r >= 0x80)
	})
}

func anyText(text string) (string, *verdict) {
	if strings.ContainsAny(text, "\x00\r\n") {
		return "", &verdict{"holds a line break or a zero byte", "write it on one line"}
	}
	return text, nil
}

func parseServerName(text string) (string, *verdict) {
	if !validHost(text) {
		return "", &verdict{"is no host name", "write the name that the broker's certificate is for"}
	}
	return text, nil
}

func parseClientID(text string) (string, *verdict) {
	if strings.ContainsFunc(text, isSpaceOrControl) || len(text) > 255 {
		return "", &verdict{"is not a client id", "write at most 255 bytes without spaces"}
	}
	return text, nil
}

// The smallest bound still holds one record of the size that brokers accept by default.
const minMemory, maxMemory = 4 * MiB, 64 * GiB

func parseMemory(text string) (Size, *verdict) {
	size, bad := parseSize(text)
	if bad == nil && (size < minMemory || size > maxMemory) {
		bad = &verdict{"is out of range", fmt.Sprintf("write %v to %v", minMemory, maxMemory)}
	}
	return size, bad
}

// A segment of the log is 16MiB by default, and checkpoints hold some of them back anyway.
const minBudget, maxBudget = 64 * MiB, 64 * 1024 * GiB

// budget makes a setting of a size that may be none.
func budget(path string, size func(*Config) *Size) setting {
	s := custom(path, size, func(text string) (Size, *verdict) {
		if text == "none" {
			return 0, nil
		}
		n, bad := parseSize(text)
		if bad == nil && (n < minBudget || n > maxBudget) {
			bad = &verdict{"is out of range", fmt.Sprintf("write %v to %v, or none", minBudget, maxBudget)}
		}
		return n, bad
	})
	s.get = func(c *Config) any {
		if *size(c) == 0 {
			return "none"
		}
		return *size(c)
	}
	return s
}

func graceOf(c *Config) *time.Duration { return &c.Shutdown.Grace }

func leaseTTLOf(c *Config) *time.Duration { return &c.Lanes.LeaseTTL }

// Below a second, a pause of the process or of the network would cost the lanes; above five
// minutes, a crash would stop them for too long.
const minLeaseTTL, maxLeaseTTL = time.Second, 5 * time.Minute

func parseLeaseTTL(text string) (time.Duration, *verdict) {
	return parseDurationIn(text, minLeaseTTL, maxLeaseTTL, "write 1s to 5m")
}

// The grace has a lower bound since no grace at all is a crash: records on their way at the
// end are sent again after every restart.
const minGrace, maxGrace = time.Second, time.Hour

func parseGrace(text string) (time.Duration, *verdict) {
	return parseDurationIn(text, minGrace, maxGrace, "write 1s to 1h")
}

func parseDurationIn(text string, low, high time.Duration, hint string) (time.Duration, *verdict) {
	d, bad := parseDuration(text)
	if bad == nil && (d < low || d > high) {
		bad = &verdict{"is out of range", hint}
	}
	return d, bad
}

var plainNumber = regexp.MustCompile(`^[+-]?[0-9]{1,12}(\.[0-9]{1,9})?$`)

func parseDuration(text string) (time.Duration, *verdict) {
	if d, err := time.ParseDuration(text); err == nil && text != "0" && text != "+0" && text != "-0" {
		return d, nil
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil && n <= 0 {
		return 0, &verdict{"has no unit", "write a duration above zero with a unit, such as 20s; the units are ms, s, m, h"}
	}
	if number := strings.TrimSpace(text); plainNumber.MatchString(number) {
		return 0, &verdict{"has no unit", "did you mean " + number + "s? The units are ms, s, m, h"}
	}
	return 0, &verdict{"is not a duration", "write a number and a unit (ms, s, m, h), such as 20s"}
}

// Duration reads a duration that is no setting but a flag of one command. It must be longer
// than zero.
func Duration(flag, text string) (time.Duration, *FieldError) {
	d, bad := parseDuration(text)
	if bad == nil && d <= 0 {
		bad = &verdict{"is not longer than zero", "write a number and a unit, such as 10s"}
	}
	if bad != nil {
		return 0, &FieldError{Field: flag, Value: Show(text), Problem: bad.problem, Hint: bad.hint}
	}
	return d, nil
}
