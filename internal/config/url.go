package config

import (
	"net/url"
	"slices"
	"strings"
)

// shownParams are the connection parameters whose values may be shown. It is a list of what
// is harmless, not of what is secret, so that a parameter nobody thought of stays hidden.
var shownParams = []string{
	"host", "hostaddr", "port", "dbname", "user", "sslmode", "application_name",
	"connect_timeout", "target_session_attrs",
}

// sslModes are the words that libpq knows.
var sslModes = []string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}

// shownSchemes may be repeated in a message. Other text before "://" may be anything.
var shownSchemes = []string{"postgres", "postgresql", "mongodb", "mongodb+srv", "mysql", "jdbc:postgresql"}

// RedactURL returns a connection string, in URL or in keyword form, without its password.
// Where the text does not parse, or where its parts may not be what they seem, nothing of
// it is returned.
func RedactURL(text string) string {
	if text == "" {
		return ""
	}
	scheme, rest, ok := cutScheme(text)
	if !ok {
		params, v := parseKeywords(text)
		if v != nil {
			return hidden
		}
		return showKeywords(params)
	}
	harmless := shownParams
	switch {
	case isMongoScheme(scheme):
		harmless = mongoParams
	case scheme != "postgres" && scheme != "postgresql":
		return scheme + "://" + hidden
	}
	p, v := cutURL(rest)
	if v != nil {
		return scheme + "://" + hidden
	}
	return scheme + "://" + p.shown(harmless)
}

// cutScheme splits at "://" when what stands before it is one of the schemes that people
// use here. Other text is no URL: it may be keywords with "://" in a password.
func cutScheme(text string) (scheme, rest string, ok bool) {
	scheme, rest, ok = strings.Cut(text, "://")
	if !ok || !slices.Contains(shownSchemes, strings.ToLower(scheme)) {
		return "", text, false
	}
	return scheme, rest, true
}

// checkURL judges a PostgreSQL connection string. It finds what would be misread; whether a
// server answers there is not its matter.
func checkURL(text string) *verdict {
	if strings.ContainsAny(text, "\x00\r\n") {
		return &verdict{"holds a line break or a zero byte", "write the connection string on one line"}
	}
	scheme, rest, isURL := cutScheme(text)
	switch {
	case !isURL && strings.Contains(text, "=") && !startsLikeURL(text):
		params, v := parseKeywords(text)
		if v != nil {
			return v
		}
		return checkParams(params)
	case !isURL:
		return &verdict{"is not a PostgreSQL connection string", "write postgres://user:password@host:5432/database"}
	case isMongoScheme(scheme):
		return &verdict{"names MongoDB", "give it as source.mongo.url"}
	case scheme != "postgres" && scheme != "postgresql":
		return &verdict{"is not a PostgreSQL URL", "begin it with postgres:// or postgresql://, in small letters"}
	}
	p, v := cutURL(rest)
	if v != nil {
		return v
	}
	return checkParams(p.params)
}

func startsLikeURL(text string) bool {
	colon, equals := strings.Index(text, "://"), strings.Index(text, "=")
	return colon >= 0 && colon < equals
}

func checkParams(params []param) *verdict {
	for _, p := range params {
		if !slices.Contains(shownParams, p.name) {
			continue
		}
		if p.value == "" {
			return &verdict{"has an empty " + p.name, "give " + p.name + " a value, or leave it out"}
		}
		if p.name == "sslmode" && !slices.Contains(sslModes, p.value) {
			return &verdict{"has an unknown sslmode", "write one of " + strings.Join(sslModes, ", ")}
		}
	}
	return nil
}

type param struct{ name, value string }

// urlParts are the parts of a URL behind the scheme.
type urlParts struct {
	user     string // still percent-encoded
	hasUser  bool
	password bool
	hosts    string
	path     string // with its slash
	params   []param
}

func (p urlParts) shown(harmless []string) string {
	var b strings.Builder
	if p.hasUser {
		b.WriteString(p.user)
		if p.password {
			b.WriteString(":xxxxx")
		}
		b.WriteString("@")
	}
	b.WriteString(p.hosts + p.path)
	sep := "?"
	for _, q := range p.params {
		if slices.Contains(harmless, q.name) {
			b.WriteString(sep + q.name + "=" + strings.ReplaceAll(url.QueryEscape(q.value), "+", "%20"))
			sep = "&"
		}
	}
	return b.String()
}

// cutURL splits what follows "://". A password with a bare / ? or # in it makes a URL in
// which the password's tail stands where a host, a path or a parameter should be. Such a
// URL always has an @ behind its authority, so that is refused, and then nothing is shown.
func cutURL(rest string) (urlParts, *verdict) {
	encode := &verdict{"has a character that must be percent-encoded in its user name or password",
		"write / as %2F, ? as %3F, # as %23, @ as %40, : as %3A, % as %25"}
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	if strings.ContainsAny(tail, "@#") {
		return urlParts{}, encode
	}
	var p urlParts
	p.hosts = authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		p.hasUser, p.hosts = true, authority[i+1:]
		user, password, has := strings.Cut(authority[:i], ":")
		p.user, p.password = user, has
		if has && password == "" {
			return urlParts{}, &verdict{"has an empty password", "write user:password@host, or user@host for a login without one"}
		}
		if !validUserinfo(user) || !validUserinfo(password) {
			return urlParts{}, encode
		}
	}
	if v := checkHosts(p.hosts); v != nil {
		return urlParts{}, v
	}
	var query string
	p.path, query, _ = strings.Cut(tail, "?")
	if _, err := url.PathUnescape(p.path); err != nil || strings.ContainsFunc(p.path, isSpaceOrControl) {
		return urlParts{}, &verdict{"has a database name that is not percent-encoded", "write % as %25 and a space as %20"}
	}
	for pair := range strings.SplitSeq(query, "&") {
		name, value, ok := strings.Cut(pair, "=")
		text, err := url.PathUnescape(value) // libpq takes + for itself
		if query != "" && (!ok || name == "" || err != nil || strings.ContainsFunc(value, isSpaceOrControl) || strings.Contains(value, "=")) {
			return urlParts{}, &verdict{"has a malformed parameter behind the ?", "write name=value&name=value, percent-encoded"}
		}
		if query != "" {
			p.params = append(p.params, param{name, text})
		}
	}
	return p, nil
}

// validUserinfo says whether s is percent-encoded text as it may stand before the @. Another
// bare @ is refused: parsers disagree about which one ends the password.
func validUserinfo(s string) bool {
	if _, err := url.PathUnescape(s); err != nil {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-._~!$&'()*+,;=%:", r))
	})
}

// checkHosts judges host:port,host:port. No host at all is the local socket's default.
func checkHosts(hosts string) *verdict {
	if hosts == "" {
		return nil
	}
	for host := range strings.SplitSeq(hosts, ",") {
		name, port, hasPort := host, "", false
		if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
			name, port, hasPort = host[:i], host[i+1:], true
		}
		if hasPort && !validPort(port, 1) {
			return &verdict{"has a port that is not a number from 1 to 65535",
				"write host:port; if that is part of the password, percent-encode it"}
		}
		address, bracketed := strings.CutPrefix(name, "[")
		if bracketed {
			address, bracketed = strings.CutSuffix(address, "]")
		}
		if address == "" || !validHost(address) || bracketed != strings.ContainsRune(address, ':') {
			return &verdict{"has a host that is no host name", "write a name or an address; IPv6 goes in brackets, [::1]"}
		}
	}
	return nil
}

func isSpaceOrControl(r rune) bool { return r <= ' ' || r == 0x7f }
