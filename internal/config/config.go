package config

import (
	"log/slog"
	"time"
)

// Config is everything that the user can choose, complete with defaults. Load makes it.
type Config struct {
	Source   Source
	Kafka    Kafka
	Lanes    Lanes
	Memory   Memory
	Admin    Admin
	Log      Log
	Shutdown Shutdown
}

// Kafka describes the cluster and how to reach it.
type Kafka struct {
	Brokers     []string // host:port
	ClientID    string
	Compression string // none, gzip, snappy, lz4 or zstd
	TLS         TLS
	SASL        SASL
}

// SASL holds the login. Mechanism is empty for none; else it is PLAIN, SCRAM-SHA-256 or
// SCRAM-SHA-512, and the other two are given.
type SASL struct {
	Mechanism string
	Username  string
	Password  Secret
}

// Lanes says how replicas share the outbox.
type Lanes struct {
	// LeaseTTL is how long the lanes of a replica that crashed wait before others take them.
	LeaseTTL time.Duration
}

// Memory bounds what the process holds.
type Memory struct {
	// Events bounds the events in memory, by source.Event.Size.
	Events Size
}

// Admin describes the listener for health, metrics and parked rows.
type Admin struct {
	Listen    string // host:port; empty for no listener
	Profiling bool   // /debug/pprof/ too
}

// Log says what the log looks like.
type Log struct {
	Format string // text or json
	Level  slog.Level
}

// Shutdown bounds the end.
type Shutdown struct {
	// Grace is how long a stop waits for acknowledgements and deletes.
	Grace time.Duration
}

// LogValue lists every setting by its path. Secrets stay hidden.
func (c Config) LogValue() slog.Value {
	var attrs []slog.Attr
	for _, s := range settings {
		attrs = append(attrs, slog.Any(s.path, s.get(&c)))
	}
	return slog.GroupValue(attrs...)
}

// defaults returns the values of settings that nobody gave. Brokers and URL have none: the
// forwarder never guesses whose events it moves where.
func defaults() Config {
	return Config{
		Source:   defaultSource(),
		Kafka:    Kafka{ClientID: "forwarder", Compression: "none"},
		Lanes:    Lanes{LeaseTTL: 10 * time.Second},
		Memory:   Memory{Events: 32 * MiB},
		Admin:    Admin{Listen: "127.0.0.1:8470"},
		Log:      Log{Format: "text", Level: slog.LevelInfo},
		Shutdown: Shutdown{Grace: 20 * time.Second},
	}
}
