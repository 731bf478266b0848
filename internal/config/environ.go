package config

import (
	"regexp"
	"slices"
	"strings"
)

const (
	envPrefix = "FORWARDER_"
	// envFile names the YAML file, as --config does.
	envFile = envPrefix + "CONFIG"
)

// environment is the process's variables.
type environment map[string]string

func parseEnviron(environ []string) environment {
	env := environment{}
	for _, line := range environ {
		if name, text, ok := strings.Cut(line, "="); ok {
			env[name] = text
		}
	}
	return env
}

// serviceLink matches the variables that Kubernetes sets in every pod for a service whose
// name begins with "forwarder". They are nobody's settings.
var serviceLink = regexp.MustCompile(`^FORWARDER_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

// foreign says whether a FORWARDER_ variable is not meant for the configuration.
func foreign(name, text string) bool {
	switch {
	case name == envFile, name == "FORWARDER_CACHE", strings.HasPrefix(name, "FORWARDER_TEST_"), serviceLink.MatchString(name):
		return true
	case strings.HasSuffix(name, "_PORT"):
		// Kubernetes again: FORWARDER_PORT=tcp://10.0.0.1:8470.
		scheme, _, ok := strings.Cut(text, "://")
		return ok && slices.Contains([]string{"tcp", "udp", "sctp"}, scheme)
	}
	return false
}

// environ takes the settings from the environment and reports the names that are none.
// It runs after all texts that may refer to variables are known.
func (l *loader) environ() {
	names := make([]string, len(settings))
	for i, s := range settings {
		names[i] = Variable(s.path)
		if text, ok := l.env[names[i]]; ok {
			l.giveText(s, text, names[i])
		}
	}
	for name, text := range l.env {
		if !strings.HasPrefix(name, envPrefix) || slices.Contains(names, name) || foreign(name, text) || l.used[name] {
			continue
		}
		e := &FieldError{Field: showName(name), Problem: "is not a setting's variable"}
		section := strings.TrimPrefix(name, envPrefix)
		if v := refusalOfVariable(section); v != nil {
			e.Problem, e.Hint = v.problem, v.hint
		} else if near := nearestVariable(section); near != "" {
			e.Hint = "did you mean " + near + "?"
		} else {
			e.Hint = "remove it, or write FORWARDER_ and a setting's path in capitals, such as " + Variable("source.postgres.url")
		}
		l.add(e)
	}
}

// refusalOfVariable looks at the name behind each underscore: KAFKA_ENABLE_IDEMPOTENCE is
// enable_idempotence of the section kafka.
func refusalOfVariable(name string) *verdict {
	rest, ok := strings.CutPrefix(name, "KAFKA_")
	if !ok {
		rest, ok = strings.CutPrefix(name, "SOURCE_POSTGRES_")
	}
	if !ok {
		rest, ok = strings.CutPrefix(name, "SOURCE_MONGO_")
	}
	if !ok {
		return nil
	}
	return refusal(rest)
}

// nearestVariable returns the variable that was meant, mistyped or without its section.
func nearestVariable(name string) string {
	var bare []string
	for _, s := range settings {
		bare = append(bare, strings.TrimPrefix(Variable(s.path), envPrefix))
	}
	near := Nearest(name, bare)
	for _, b := range bare {
		if near == "" && strings.HasSuffix(b, "_"+name) {
			near = b
		}
	}
	if near == "" {
		return ""
	}
	return envPrefix + near
}
