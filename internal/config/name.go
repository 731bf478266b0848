package config

import (
	"fmt"
	"regexp"
	"strings"
)

// noColumn switches a column off.
const noColumn = "none"

// maxIdentifier is PostgreSQL's limit in bytes. The server cuts longer names off without an
// error, and would then look at another table.
const maxIdentifier = 63

// Table names a table exactly as the database has it: no part is folded to lower case.
type Table struct {
	Schema string
	Name   string
}

// String returns the form that the configuration takes: schema.name, quoted where needed.
func (t Table) String() string { return showIdentifier(t.Schema) + "." + showIdentifier(t.Name) }

func showIdentifier(s string) string {
	if s == noColumn || strings.ContainsAny(s, `." `) {
		return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
	}
	return s
}

// parseTable reads schema.name. A name without a schema is refused: where the search path
// leads depends on the login, and an empty table elsewhere looks like an idle outbox.
func parseTable(text string) (Table, *verdict) {
	schema, rest, v := cutIdentifier(text)
	if v != nil {
		return Table{}, v
	}
	if rest == "" {
		return Table{}, &verdict{"names no schema", "write schema.table, such as public.outbox"}
	}
	name, rest, v := cutIdentifier(rest[1:])
	if v != nil {
		return Table{}, v
	}
	if rest != "" {
		return Table{}, &verdict{"has more than two parts", `write schema.table; a name that contains a dot goes in double quotes, "a.b".c`}
	}
	return Table{schema, name}, nil
}

// parseColumn reads one column name, exactly as the database has it.
func parseColumn(text string) (string, *verdict) {
	name, rest, v := cutIdentifier(text)
	if v == nil && rest != "" {
		v = &verdict{"is not one name", `write the column's name alone; a name that contains a dot goes in double quotes, "a.b"`}
	}
	return name, v
}

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// parseSlotName reads the name of a replication slot, which is a file's name to the server.
func parseSlotName(text string) (string, *verdict) {
	if !slotName.MatchString(text) {
		return "", &verdict{"is not a name of a replication slot", "write 1 to 63 of the characters a to z, 0 to 9 and _"}
	}
	return text, nil
}

// cutIdentifier reads one name, bare or in double quotes. What is left is empty or starts
// with a dot.
func cutIdentifier(text string) (name, rest string, v *verdict) {
	if strings.HasPrefix(text, `"`) {
		name, rest, v = cutQuoted(text)
	} else {
		name, rest = text, ""
		if i := strings.IndexByte(text, '.'); i >= 0 {
			name, rest = text[:i], text[i:]
		}
		if strings.ContainsAny(name, "\" \t\r\n\v\f") {
			v = &verdict{"holds a space or a quote", `a name with such characters goes in double quotes, "my outbox"`}
		}
	}
	switch {
	case v != nil:
	case name == "":
		v = &verdict{"has an empty part", "write every name in full"}
	case len(name) > maxIdentifier:
		v = &verdict{fmt.Sprintf("holds a name of %d bytes", len(name)),
			fmt.Sprintf("PostgreSQL cuts names off after %d bytes; write the name that the table has", maxIdentifier)}
	case strings.ContainsRune(name, 0):
		v = &verdict{"holds a zero byte", "no name in PostgreSQL can"}
	}
	return name, rest, v
}

func cutQuoted(text string) (name, rest string, v *verdict) {
	var b strings.Builder
	for s := text[1:]; ; {
		i := strings.IndexByte(s, '"')
		if i < 0 {
			return "", "", &verdict{"has an opening quote without a closing one", `write "name", with any quote inside doubled`}
		}
		b.WriteString(s[:i])
		if s = s[i+1:]; strings.HasPrefix(s, `"`) {
			b.WriteByte('"')
			s = s[1:]
			continue
		}
		if s != "" && s[0] != '.' {
			return "", "", &verdict{"goes on after a closing quote", `write "schema"."table"`}
		}
		return b.String(), s, nil
	}
}
