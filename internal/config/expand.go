package config

import (
	"regexp"
	"strings"
)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expand replaces ${NAME} by the variable's value; $${ stands for a plain ${. A variable
// that is unset or empty is a mistake: a login with an empty password is not what anyone
// meant. What was put in is not looked at again.
func (l *loader) expand(text string) (string, *verdict) {
	var b strings.Builder
	for {
		i := strings.Index(text, "${")
		if i < 0 {
			b.WriteString(text)
			return b.String(), nil
		}
		if i > 0 && text[i-1] == '$' {
			b.WriteString(text[:i-1] + "${")
			text = text[i+2:]
			continue
		}
		b.WriteString(text[:i])
		name, rest, ok := strings.Cut(text[i+2:], "}")
		if !ok || !variableName.MatchString(name) {
			return "", &verdict{"has a ${ that does not begin a variable's name and }", "write ${NAME}, or $${ for the characters themselves"}
		}
		l.used[name] = true
		replacement, set := l.env[name]
		switch {
		case !set:
			return "", &verdict{"uses the variable " + name + ", which is not set", "set " + name + " in the environment of the forwarder"}
		case replacement == "":
			return "", &verdict{"uses the variable " + name + ", which is empty", "give " + name + " a value"}
		}
		b.WriteString(replacement)
		text = rest
	}
}

// fileReference is how a secret names the file that holds it.
const fileReference = "file:"

// dereference returns the content of the file that a secret's text names, or the text. The
// line break that editors put at the end does not belong to the secret.
func (l *loader) dereference(text string) (string, *verdict) {
	name, ok := strings.CutPrefix(text, fileReference)
	if !ok {
		return text, nil
	}
	data, err := l.readFile(name)
	if err != nil {
		return "", &verdict{"refers to the file " + Show(name) + ", which cannot be read: " + cause(err), "name a file that this user may read"}
	}
	content := strings.TrimRight(string(data), "\r\n")
	if content == "" {
		return "", &verdict{"refers to the file " + Show(name) + ", which is empty", "put the secret into the file"}
	}
	return content, nil
}
