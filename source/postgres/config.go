package postgres

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
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
	// MemoryBytes bounds, by source.Event.Size, what a stream holds to be handed out, and once more
	// what was handed out and is not deleted yet. 0 takes the default of package tail.
	MemoryBytes int
	Logger      *slog.Logger

	// What follows is for OpenStream and OpenDurable.

	// Stream says that the outbox will be streamed: Init must then be able to create the
	// publication.
	Stream bool
	// Publication names what is streamed. Default: the table's name, behind the schema's unless
	// that is public, and "_publication".
	Publication string
	// ReplicationURL is where to connect for replication, where URL leads to a pooler.
	ReplicationURL string
	// Slot names the durable replication slot. Default: "outbox_forwarder_" and what tells the
	// table from all others of the server.
	Slot string
	// SlotFailover lets the durable slot be synchronised to standbys, from PostgreSQL 17 on.
	SlotFailover bool
	// SlotBudget bounds the log that the durable slot keeps on the server, in bytes: beyond it
	// there is a warning, or with DropOverBudget the slot is made anew. 0 is no bound.
	SlotBudget     int64
	DropOverBudget bool
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
	c.Publication = cmp.Or(c.Publication, c.table().derived("_publication"))
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
	if c.Slot != "" && !slotName.MatchString(c.Slot) || len(c.Slot) > maxName {
		errs = append(errs, fmt.Errorf("slot name: %q is not one: it has up to %d small letters, digits and underscores", c.Slot, maxName))
	}
	if len(c.Publication) > maxName {
		errs = append(errs, fmt.Errorf("publication: %q is longer than %d bytes", c.Publication, maxName))
	}
	if c.SlotBudget < 0 {
		errs = append(errs, fmt.Errorf("slot budget: %d is negative", c.SlotBudget))
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

// maxName is the longest name that the server keeps whole.
const maxName = 63

// derived is the name of something that belongs to the table and has no schema.
func (n name) derived(suffix string) string {
	text := n.table
	if n.schema != "public" {
		text = n.schema + "_" + n.table
	}
	if len(text)+len(suffix) > maxName {
		return slotPrefix + n.mark("") + suffix
	}
	return text + suffix
}

var (
	slotName = regexp.MustCompile("^[a-z0-9_]+$")
	noSlot   = regexp.MustCompile("[^a-z0-9]+")
)

// markBytes is how much of a table's name its mark shows.
const markBytes = 20

// mark tells the table from all others of a server where only small letters, digits and
// underscores may stand.
func (n name) mark(database string) string {
	readable := strings.Trim(noSlot.ReplaceAllString(strings.ToLower(n.table), "_"), "_")
	sum := sha256.Sum256([]byte(database + "\x00" + n.schema + "\x00" + n.table))
	return fmt.Sprintf("%s_%x", readable[:min(len(readable), markBytes)], sum[:4])
}

// slotPrefix begins the name of every slot of ours, but for one that was given another.
const slotPrefix = "outbox_forwarder_"

// durableSlot names the durable slot of the outbox in a database.
func (c Config) durableSlot(database string) string {
	return cmp.Or(c.Slot, slotPrefix+c.table().mark(database))
}

// temporarySlot names a temporary slot of the outbox, another one each time.
func (c Config) temporarySlot(database string) string {
	return slotPrefix + c.table().mark(database) + "_" + strings.ToLower(rand.Text()[:8])
}
