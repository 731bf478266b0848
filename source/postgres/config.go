package postgres

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/lanes"
)

// Config says where the outbox is.
type Config struct {
	// URL is a connection string in URL or keyword form.
	URL string
	// Schema and Table name the outbox exactly as the database has it. Defaults "public" and
	// "outbox".
	Schema, Table string
	// Columns names the outbox's columns; the zero value takes DefaultColumns.
	Columns Columns
	// Lanes is the lane count that Init records for a new store. Default lanes.DefaultLanes.
	Lanes int
	// Timeout bounds every call. Default 30 s.
	Timeout time.Duration
	Logger  *slog.Logger
}

// Columns names the columns of the outbox. Key, Headers and CreatedAt are empty where it has
// no such column.
type Columns struct {
	ID, Topic, Key, Payload, Headers, CreatedAt string
}

// DefaultColumns are the columns that Init creates.
var DefaultColumns = Columns{ID: "id", Topic: "topic", Key: "key", Payload: "payload", Headers: "headers", CreatedAt: "created_at"}

func (c Config) withDefaults() Config {
	c.Schema = cmp.Or(c.Schema, "public")
	c.Table = cmp.Or(c.Table, "outbox")
	c.Columns = cmp.Or(c.Columns, DefaultColumns)
	c.Lanes = cmp.Or(c.Lanes, lanes.DefaultLanes)
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate joins everything that is wrong with the configuration, without connecting.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	seen := make(map[string]string)
	for _, col := range c.Columns.list() {
		switch {
		case col.name == "" && !col.optional:
			errs = append(errs, fmt.Errorf("columns.%s: an outbox cannot do without this column", col.field))
		case col.name != "" && seen[col.name] != "":
			errs = append(errs, fmt.Errorf("columns.%s: %q is columns.%s already", col.field, col.name, seen[col.name]))
		}
		seen[col.name] = col.field
	}
	if c.Timeout < time.Second {
		errs = append(errs, fmt.Errorf("timeout: %v is shorter than a second", c.Timeout))
	}
	return errors.Join(errs...)
}

type column struct {
	field, name string
	optional    bool
}

// list returns the columns in the order of a read's result.
func (c Columns) list() []column {
	return []column{
		{"id", c.ID, false},
		{"topic", c.Topic, false},
		{"key", c.Key, true},
		{"payload", c.Payload, false},
		{"headers", c.Headers, true},
		{"created_at", c.CreatedAt, true},
	}
}

func (c Config) table() name { return name{c.Schema, c.Table} }

// name is a schema-qualified table name.
type name struct{ schema, table string }

func (n name) sql() string { return pgx.Identifier{n.schema, n.table}.Sanitize() }

func (n name) String() string { return n.schema + "." + n.table }

// beside is a table of ours in the outbox's schema.
func (n name) beside(suffix string) name { return name{n.schema, n.table + suffix} }
