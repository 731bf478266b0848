package config

// Source says where the outbox is: in PostgreSQL or in MongoDB, never in both.
type Source struct {
	Postgres Postgres
	Mongo    Mongo
}

// IsMongo says whether the outbox is a MongoDB collection. Without any URL, settings that
// only MongoDB has decide.
func (s Source) IsMongo() bool {
	return !s.Mongo.URL.IsZero() || s.Postgres.URL.IsZero() && s.Mongo != defaultSource().Mongo
}

// Outbox names the table or the collection, for people.
func (s Source) Outbox() string {
	if s.IsMongo() {
		return s.Mongo.Database + "." + s.Mongo.Collection
	}
	return s.Postgres.Table.String()
}

// Describe says in words how new rows are seen.
func (s Source) Describe() string {
	switch pg := s.Postgres; {
	case s.IsMongo() && s.Mongo.Checkpoint == CheckpointDurable:
		return string(s.Mongo.Mode) + " with a durable checkpoint"
	case s.IsMongo():
		return string(s.Mongo.Mode)
	case pg.Slot == SlotDurable:
		return string(pg.Mode) + " from a durable slot"
	}
	return string(s.Postgres.Mode)
}

// Section is the path of the settings of the outbox's database.
func (s Source) Section() string {
	if s.IsMongo() {
		return mongoSection
	}
	return postgresSection
}

const postgresSection, mongoSection = "source.postgres", "source.mongo"

// Postgres describes an outbox table.
type Postgres struct {
	// URL is a libpq connection string in either form; the zero Secret where no source is
	// needed and none was given.
	URL Secret
	// ReplicationURL is where the log is read where that is not URL; the zero Secret for URL.
	ReplicationURL Secret
	Table          Table
	Columns        Columns
	Mode           Mode
	// Publication is empty for the name that follows from the table's.
	Publication string
	Slot        Slot
	// The following belong to SlotDurable. SlotName is empty for the name that follows from
	// the table's.
	SlotName     string
	SlotFailover bool
	// SlotBudget is how much of the log the slot may hold back; 0 for any amount.
	SlotBudget     Size
	SlotOverBudget OverBudget
}

// Mode is the way in which new rows are seen.
type Mode string

// ModePoll queries the outbox; ModeStream reads the database's log.
const (
	ModePoll   Mode = "poll"
	ModeStream Mode = "stream"
)

// Slot is how long a replication slot lives, and with that which is the truth: the table
// (SlotTemporary) or the log (SlotDurable).
type Slot string

// The kinds of a Slot.
const (
	SlotTemporary Slot = "temporary"
	SlotDurable   Slot = "durable"
)

// OverBudget is what happens when the slot holds back more of the log than it may.
type OverBudget string

// The kinds of OverBudget.
const (
	OverBudgetWarn OverBudget = "warn"
	OverBudgetDrop OverBudget = "drop"
)

// Columns holds the names of the outbox's columns, exactly as the database has them. Key,
// Headers and CreatedAt are empty where the table has no such column.
type Columns struct {
	ID        string
	Topic     string
	Key       string
	Payload   string
	Headers   string
	CreatedAt string
}

// Mongo describes an outbox collection.
type Mongo struct {
	// URL is a MongoDB connection string; the zero Secret as in Postgres.
	URL Secret
	// Database is the one that the URL names where no other is given.
	Database   string
	Collection string
	Fields     Fields
	Mode       Mode
	Checkpoint Checkpoint
	JSON       JSON
}

// Fields holds the names of the documents' fields; that of the id is always _id. Key,
// Headers and CreatedAt are empty where the documents have no such field.
type Fields struct {
	Topic     string
	Key       string
	Payload   string
	Headers   string
	CreatedAt string
	Seq       string
}

// Checkpoint says whether a change stream's position outlives the process, as Slot does.
type Checkpoint string

// The kinds of a Checkpoint.
const (
	CheckpointNone    Checkpoint = "none"
	CheckpointDurable Checkpoint = "durable"
)

// JSON is the form of Extended JSON in which a document is written as a payload.
type JSON string

// The forms of JSON.
const (
	JSONRelaxed   JSON = "relaxed"
	JSONCanonical JSON = "canonical"
)

func defaultSource() Source {
	return Source{
		Postgres: Postgres{
			Table: Table{Schema: "public", Name: "outbox"},
			Columns: Columns{
				ID: "id", Topic: "topic", Key: "key", Payload: "payload",
				Headers: "headers", CreatedAt: "created_at",
			},
			Mode: ModePoll, Slot: SlotTemporary, SlotOverBudget: OverBudgetWarn,
		},
		Mongo: Mongo{
			Collection: "outbox",
			Fields: Fields{
				Topic: "topic", Key: "key", Payload: "payload",
				Headers: "headers", CreatedAt: "createdAt", Seq: "seq",
			},
			Mode: ModePoll, Checkpoint: CheckpointNone, JSON: JSONRelaxed,
		},
	}
}
