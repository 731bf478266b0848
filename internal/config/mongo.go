package config

import (
	"fmt"
	"net/url"
	"strings"
	"unicode"
)

// mongoParams are the options of a MongoDB URL whose values may be shown, as shownParams.
var mongoParams = []string{
	"replicaSet", "tls", "ssl", "authSource", "authMechanism", "directConnection", "appName",
	"readPreference", "readConcernLevel", "w", "journal", "retryWrites", "retryReads",
	"connectTimeoutMS", "serverSelectionTimeoutMS", "timeoutMS",
}

func isMongoScheme(scheme string) bool { return scheme == "mongodb" || scheme == "mongodb+srv" }

// checkMongoURL judges a MongoDB connection string, as checkURL does.
func checkMongoURL(text string) *verdict {
	if strings.ContainsAny(text, "\x00\r\n") {
		return &verdict{"holds a line break or a zero byte", "write the connection string on one line"}
	}
	scheme, rest, isURL := cutScheme(text)
	switch {
	case !isURL:
		return &verdict{"is not a MongoDB connection string", "write mongodb://user:password@host:27017/database?replicaSet=name"}
	case scheme == "postgres" || scheme == "postgresql":
		return &verdict{"names PostgreSQL", "give it as source.postgres.url"}
	case !isMongoScheme(scheme):
		return &verdict{"is not a MongoDB URL", "begin it with mongodb:// or mongodb+srv://, in small letters"}
	}
	p, v := cutURL(rest)
	switch {
	case v != nil:
		return v
	case p.hosts == "":
		return &verdict{"names no host", "write mongodb://host:27017"}
	case p.hasUser && p.user == "":
		return &verdict{"has a password without a user", "write user:password@host"}
	case scheme == "mongodb+srv" && strings.ContainsAny(p.hosts, ":,"):
		return &verdict{"has a port or more than one host", "mongodb+srv:// takes one name, whose DNS records tell the hosts and ports"}
	}
	if p.path == "" && len(p.params) > 0 {
		return &verdict{"has no / between the hosts and the ?", "write mongodb://host:27017/database?name=value"}
	}
	for _, q := range p.params {
		if q.value == "" {
			return &verdict{"has a malformed parameter behind the ?", "write name=value&name=value, percent-encoded"}
		}
	}
	if name := databaseOf(text); name != "" {
		if _, v := parseDatabase(name); v != nil {
			return &verdict{"names a database that cannot exist", v.hint}
		}
	}
	return nil
}

// databaseOf returns the database that a MongoDB URL names, empty for none.
func databaseOf(text string) string {
	_, rest, _ := cutScheme(text)
	p, v := cutURL(rest)
	if v != nil {
		return ""
	}
	name, err := url.PathUnescape(strings.TrimPrefix(p.path, "/"))
	if err != nil {
		return ""
	}
	return name
}

// maxDatabase is MongoDB's limit in bytes.
const maxDatabase = 63

func parseDatabase(text string) (string, *verdict) {
	switch {
	case text == "" || strings.ContainsAny(text, "/\\. \"$*<>:|?\x00"):
		return "", &verdict{"is not a name of a database", `write a name without spaces and / \ . " $ * < > : | ?`}
	case len(text) > maxDatabase:
		return "", &verdict{fmt.Sprintf("is a name of %d bytes", len(text)), fmt.Sprintf("MongoDB takes at most %d", maxDatabase)}
	}
	return text, nil
}

func parseCollection(text string) (string, *verdict) {
	switch {
	case !plainMongoName(text, "_-.") || strings.HasPrefix(text, ".") || strings.HasSuffix(text, "."):
		return "", &verdict{"is not a name of a collection", "write letters, digits, _, - and dots, but no dot at its ends"}
	case strings.HasPrefix(text, "system."):
		return "", &verdict{"is a name that MongoDB keeps for itself", "choose one that does not begin with system."}
	}
	return text, nil
}

// parseField reads the name of a field at the top of a document.
func parseField(text string) (string, *verdict) {
	switch {
	case text == "_id":
		return "", &verdict{"is the document's id", "name another field"}
	case !plainMongoName(text, "_-"):
		return "", &verdict{"is not a name of a field at the top of a document", "write letters, digits, _ and -"}
	}
	return text, nil
}

// plainMongoName is stricter than MongoDB, which takes nearly everything, so that a URL in
// the wrong place is not taken for a name.
func plainMongoName(text, more string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(more, r)
	})
}
