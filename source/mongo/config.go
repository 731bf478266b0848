package mongo

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/outbox-forwarder/forwarder/lanes"
)

// Config says where the outbox is.
type Config struct {
	// URL is a connection string, mongodb:// or mongodb+srv://.
	URL string
	// Database holds the outbox. Default: the one that URL names.
	Database string
	// Collection is the outbox. Default "outbox".
	Collection string
	// Fields names the outbox's fields; the zero value takes DefaultFields.
	Fields Fields
	// Canonical makes documents in payloads and headers canonical Extended JSON, which keeps
	// every type: {"n":{"$numberInt":"1"}}. Otherwise they are relaxed: {"n":1}.
	Canonical bool
	// Lanes is the lane count that Init records for a new store. Default lanes.DefaultLanes.
	Lanes int
	// Timeout bounds every call. Default 30 s.
	Timeout time.Duration
	// MemoryBytes bounds, by source.Event.Size, what a stream holds to be handed out, and once more
	// what was handed out and is not deleted yet. 0 takes the default of package tail.
	MemoryBytes int
	Logger      *slog.Logger

	// Stream says that the outbox will be streamed, and Durable that the position in its change
	// stream is to be kept: Init then creates the collection for it. OpenStream and OpenDurable
	// set them by themselves.
	Stream, Durable bool
}

// Fields names the fields of a document beside _id. Key, Headers and CreatedAt are empty where
// documents have no such field.
type Fields struct {
	Topic, Key, Payload, Headers, CreatedAt, Seq string
}

// DefaultFields are the fields that Init's index is made for.
var DefaultFields = Fields{Topic: "topic", Key: "key", Payload: "payload", Headers: "headers", CreatedAt: "createdAt", Seq: "seq"}

func (c Config) withDefaults() Config {
	c.Database = cmp.Or(c.Database, databaseOf(c.URL))
	c.Collection = cmp.Or(c.Collection, "outbox")
	c.Fields = cmp.Or(c.Fields, DefaultFields)
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
	if c.Database == "" {
		errs = append(errs, errors.New("database: neither the setting nor the URL names one: write mongodb://host/database"))
	} else if strings.ContainsAny(c.Database, "/\\. \"$\x00") {
		errs = append(errs, fmt.Errorf("database: %q is no name of a database", c.Database))
	}
	if strings.ContainsAny(c.Collection, "$\x00") || strings.HasPrefix(c.Collection, "system.") || strings.HasPrefix(c.Collection, ".") {
		errs = append(errs, fmt.Errorf("collection: %q is no name of a collection", c.Collection))
	}
	seen := map[string]string{"_id": "_id"}
	for _, f := range c.Fields.list() {
		switch {
		case f.name == "" && !f.optional:
			errs = append(errs, fmt.Errorf("fields.%s: an outbox cannot do without this field", f.field))
		case strings.ContainsAny(f.name, ".\x00") || strings.HasPrefix(f.name, "$"):
			errs = append(errs, fmt.Errorf("fields.%s: %q is no name of a top-level field", f.field, f.name))
		case f.name == "_id":
			errs = append(errs, fmt.Errorf("fields.%s: _id is the document's id", f.field))
		case f.name != "" && seen[f.name] != "":
			errs = append(errs, fmt.Errorf("fields.%s: %q is fields.%s already", f.field, f.name, seen[f.name]))
		}
		seen[f.name] = f.field
	}
	if c.Lanes < 1 || c.Lanes > 1<<15 || c.Lanes&(c.Lanes-1) != 0 {
		errs = append(errs, fmt.Errorf("lanes: %d is not a power of two from 1 to 32768", c.Lanes))
	}
	if c.Timeout < time.Second {
		errs = append(errs, fmt.Errorf("timeout: %v is shorter than a second", c.Timeout))
	}
	return errors.Join(errs...)
}

type field struct {
	field, name string
	optional    bool
}

func (f Fields) list() []field {
	return []field{
		{"topic", f.Topic, false},
		{"key", f.Key, true},
		{"payload", f.Payload, false},
		{"headers", f.Headers, true},
		{"createdAt", f.CreatedAt, true},
		{"seq", f.Seq, false},
	}
}

// namespace is the outbox's name as it is shown.
func (c Config) namespace() string { return c.Database + "." + c.Collection }

// The collections beside the outbox are named after it.
const (
	membersSuffix    = "_members"
	lanesSuffix      = "_lanes"
	checkpointSuffix = "_checkpoint"
)

// databaseOf returns the database that a connection string names, or "".
func databaseOf(url string) string {
	_, rest, found := strings.Cut(url, "://")
	if !found {
		return ""
	}
	rest, _, _ = strings.Cut(rest, "?")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = rest[at+1:]
	}
	_, database, _ := strings.Cut(rest, "/")
	return database
}
