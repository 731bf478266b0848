package config

import (
	"slices"
	"strings"
)

const keywordSpace = " \t\n\r\v\f"

// parseKeywords reads libpq's other form: name=value name='a value'.
func parseKeywords(text string) ([]param, *verdict) {
	malformed := &verdict{"is not a list of name=value",
		`write host=... dbname=... user=...; a value with a space goes in single quotes, with \ before ' and \`}
	var params []param
	for s := strings.TrimLeft(text, keywordSpace); s != ""; {
		name, rest, ok := strings.Cut(s, "=")
		name = strings.TrimRight(name, keywordSpace)
		if !ok || !validKeyword(name) {
			return nil, malformed
		}
		bare := strings.TrimLeft(rest, keywordSpace)
		spaced := bare != rest
		value, rest, ok := cutKeywordValue(bare)
		if !ok {
			return nil, malformed
		}
		// libpq reads "dbname= password=x" as a database called password=x. Nobody means that,
		// and the name would be shown.
		if spaced && strings.Contains(value, "=") && !strings.HasPrefix(bare, "'") {
			return nil, &verdict{"has a name= without a value", "give it a value, or leave it out; a value with = in it goes in single quotes"}
		}
		params = append(params, param{name, value})
		s = strings.TrimLeft(rest, keywordSpace)
	}
	return params, nil
}

func validKeyword(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '.')
	})
}

func cutKeywordValue(s string) (value, rest string, ok bool) {
	quoted := strings.HasPrefix(s, "'")
	if quoted {
		s = s[1:]
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case quoted && c == '\'':
			return b.String(), s[i+1:], true
		case !quoted && strings.IndexByte(keywordSpace, c) >= 0:
			return b.String(), s[i:], true
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), "", !quoted
}

// showKeywords prints the harmless parameters. The names of others are left out too: they
// may be the tail of a password with a space in it.
func showKeywords(params []param) string {
	var shown []string
	for _, p := range params {
		switch {
		case p.name == "password":
			shown = append(shown, "password=xxxxx")
		case !slices.Contains(shownParams, p.name):
		case p.value == "" || strings.ContainsAny(p.value, keywordSpace+`'\`):
			shown = append(shown, p.name+"='"+strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(p.value)+"'")
		default:
			shown = append(shown, p.name+"="+p.value)
		}
	}
	return strings.Join(shown, " ")
}
