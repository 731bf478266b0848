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
	// secret values are never shown, and may be given as "file:" and a file's name.
	secret bool
	// set judges a value and stores it.
	set func(c *Config, v value) *verdict
	// get returns the value in use, safe to show.
	get func(c *Config) any
}

// Flag is a setting that is also a flag of the commands that need it.
type Flag struct {
	Name  string // without its dashes
	Path  string
	Usage string
	List  bool // items between commas; the flag may be repeated
}

var settings = []setting{
	connection("source.postgres.url", &Flag{Name: "source-url",
		Usage: "the outbox's database, postgres://user@host:5432/database; others can read a flag, so give a password by FORWARDER_SOURCE_POSTGRES_URL or the file"}),
	custom("source.postgres.table", func(c *Config) *Table { return &c.Source.Postgres.Table }, parseTable),
	column("source.postgres.columns.id", func(c *Config) *string { return &c.Source.Postgres.Columns.ID }),
	column("source.postgres.columns.topic", func(c *Config) *string { return &c.Source.Postgres.Columns.Topic }),
	optionalColumn("source.postgres.columns.key", func(c *Config) *string { return &c.Source.Postgres.Columns.Key }),
	column("source.postgres.columns.payload", func(c *Config) *string { return &c.Source.Postgres.Columns.Payload }),
	optionalColumn("source.postgres.columns.headers", func(c *Config) *string { return &c.Source.Postgres.Columns.Headers }),
	optionalColumn("source.postgres.columns.created_at", func(c *Config) *string { return &c.Source.Postgres.Columns.CreatedAt }),
	choice("source.postgres.mode", func(c *Config) *Mode { return &c.Source.Postgres.Mode }, ModePoll),

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
