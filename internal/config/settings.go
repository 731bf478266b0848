package config

import (
	"slices"
	"strings"
)

// setting is one thing that the user can choose. The list is the only place that knows its
// path; the file's keys, the variables' names, the flags, the log and the test of the
// documented example are all made from it.
type setting struct {
	path string
	kind kind
	flag *Flag
	// secret values are never shown, and may be given as "file:" and a file's name. Of a url
	// all but its password is shown.
	secret, url bool
	// name returns the column or field that the setting names, empty for none; it is nil for
	// other settings.
	name func(c *Config) string
	// set judges a value and stores it.
	set func(c *Config, v value) *verdict
	// get returns the value in use, safe to show.
	get func(c *Config) any
}

// Flag is a setting that is also a flag of the commands that need it.
type Flag struct {
	Name  string // without its dashes
	Path  string
	Twin  string // the setting that the flag stands for where the outbox is in MongoDB
	Usage string
	List  bool // items between commas; the flag may be repeated
}

var settings = []setting{
	flagged(connection("source.postgres.url", func(c *Config) *Secret { return &c.Source.Postgres.URL }, checkURL), Flag{Name: "source-url", Twin: "source.mongo.url",
		Usage: "the outbox's database, postgres://user@host:5432/database or mongodb://user@host:27017/database; others can read a flag, so give a password by FORWARDER_SOURCE_POSTGRES_URL, FORWARDER_SOURCE_MONGO_URL or the file"}),
	connection("source.postgres.replication_url", func(c *Config) *Secret { return &c.Source.Postgres.ReplicationURL }, checkURL),
	custom("source.postgres.table", func(c *Config) *Table { return &c.Source.Postgres.Table }, parseTable),
	column("source.postgres.columns.id", func(c *Config) *string { return &c.Source.Postgres.Columns.ID }),
	column("source.postgres.columns.topic", func(c *Config) *string { return &c.Source.Postgres.Columns.Topic }),
	optionalColumn("source.postgres.columns.key", func(c *Config) *string { return &c.Source.Postgres.Columns.Key }),
	column("source.postgres.columns.payload", func(c *Config) *string { return &c.Source.Postgres.Columns.Payload }),
	optionalColumn("source.postgres.columns.headers", func(c *Config) *string { return &c.Source.Postgres.Columns.Headers }),
	optionalColumn("source.postgres.columns.created_at", func(c *Config) *string { return &c.Source.Postgres.Columns.CreatedAt }),
	flagged(choice("source.postgres.mode", func(c *Config) *Mode { return &c.Source.Postgres.Mode }, ModePoll, ModeStream), Flag{Name: "mode", Twin: "source.mongo.mode",
		Usage: "how new rows are seen: poll, or stream for the database's log"}),
	custom("source.postgres.publication", func(c *Config) *string { return &c.Source.Postgres.Publication }, parseColumn),
	choice("source.postgres.slot", func(c *Config) *Slot { return &c.Source.Postgres.Slot }, SlotTemporary, SlotDurable),
	custom("source.postgres.slot_name", func(c *Config) *string { return &c.Source.Postgres.SlotName }, parseSlotName),
	truth("source.postgres.slot_failover", func(c *Config) *bool { return &c.Source.Postgres.SlotFailover }),
	budget("source.postgres.slot_budget", func(c *Config) *Size { return &c.Source.Postgres.SlotBudget }),
	choice("source.postgres.slot_over_budget", func(c *Config) *OverBudget { return &c.Source.Postgres.SlotOverBudget }, OverBudgetWarn, OverBudgetDrop),

	connection("source.mongo.url", func(c *Config) *Secret { return &c.Source.Mongo.URL }, checkMongoURL),
	custom("source.mongo.database", func(c *Config) *string { return &c.Source.Mongo.Database }, parseDatabase),
	custom("source.mongo.collection", func(c *Config) *string { return &c.Source.Mongo.Collection }, parseCollection),
	field("source.mongo.fields.topic", func(c *Config) *string { return &c.Source.Mongo.Fields.Topic }),
	optionalField("source.mongo.fields.key", func(c *Config) *string { return &c.Source.Mongo.Fields.Key }),
	field("source.mongo.fields.payload", func(c *Config) *string { return &c.Source.Mongo.Fields.Payload }),
	optionalField("source.mongo.fields.headers", func(c *Config) *string { return &c.Source.Mongo.Fields.Headers }),
	optionalField("source.mongo.fields.created_at", func(c *Config) *string { return &c.Source.Mongo.Fields.CreatedAt }),
	field("source.mongo.fields.seq", func(c *Config) *string { return &c.Source.Mongo.Fields.Seq }),
	choice("source.mongo.mode", func(c *Config) *Mode { return &c.Source.Mongo.Mode }, ModePoll, ModeStream),
	choice("source.mongo.checkpoint", func(c *Config) *Checkpoint { return &c.Source.Mongo.Checkpoint }, CheckpointNone, CheckpointDurable),
	choice("source.mongo.json", func(c *Config) *JSON { return &c.Source.Mongo.JSON }, JSONRelaxed, JSONCanonical),

	brokers("kafka.brokers", &Flag{Name: "brokers", Usage: "Kafka brokers to start from, host:port, separated by commas"}),
	custom("kafka.client_id", func(c *Config) *string { return &c.Kafka.ClientID }, parseClientID),
	choice("kafka.compression", func(c *Config) *string { return &c.Kafka.Compression }, "none", "gzip", "snappy", "lz4", "zstd"),
	truth("kafka.tls.enabled", func(c *Config) *bool { return &c.Kafka.TLS.Enabled }),
	custom("kafka.tls.ca_file", func(c *Config) *string { return &c.Kafka.TLS.CAFile }, anyText),
	custom("kafka.tls.cert_file", func(c *Config) *string { return &c.Kafka.TLS.CertFile }, anyText),
	custom("kafka.tls.key_file", func(c *Config) *string { return &c.Kafka.TLS.KeyFile }, anyText),
	custom("kafka.tls.server_name", func(c *Config) *string { return &c.Kafka.TLS.ServerName }, parseServerName),
	choice("kafka.sasl.mechanism", func(c *Config) *string { return &c.Kafka.SASL.Mechanism }, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
	custom("kafka.sasl.username", func(c *Config) *string { return &c.Kafka.SASL.Username }, anyText),
	password("kafka.sasl.password", func(c *Config) *Secret { return &c.Kafka.SASL.Password }),

	custom("lanes.lease_ttl", leaseTTLOf, parseLeaseTTL),
	custom("memory.events", func(c *Config) *Size { return &c.Memory.Events }, parseMemory),
	listen("admin.listen", &Flag{Name: "admin-listen", Usage: "address of health, metrics and parked rows, host:port, or none"}),
	truth("admin.profiling", func(c *Config) *bool { return &c.Admin.Profiling }),
	choice("log.format", func(c *Config) *string { return &c.Log.Format }, "text", "json"),
	logLevel("log.level"),
	custom("shutdown.grace", graceOf, parseGrace),
}

// Flags returns the settings that are also flags.
func Flags() []Flag {
	var flags []Flag
	for _, s := range settings {
		if s.flag != nil {
			f := *s.flag
			f.Path, f.List = s.path, s.kind == kindList
			flags = append(flags, f)
		}
	}
	return flags
}

// Variable returns the name of the environment variable of the setting at path.
func Variable(path string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

func find(path string) (setting, bool) {
	i := slices.IndexFunc(settings, func(s setting) bool { return s.path == path })
	if i < 0 {
		return setting{}, false
	}
	return settings[i], true
}

// isSection says whether settings lie below path.
func isSection(path string) bool {
	return slices.ContainsFunc(settings, func(s setting) bool { return strings.HasPrefix(s.path, path+".") })
}

// children returns the names that may stand directly below a section; "" is the top.
func children(section string) []string {
	prefix := section + "."
	if section == "" {
		prefix = ""
	}
	var names []string
	for _, s := range settings {
		if rest, ok := strings.CutPrefix(s.path, prefix); ok {
			name, _, _ := strings.Cut(rest, ".")
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
