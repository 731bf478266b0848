package config

import (
	"slices"
	"strings"
)

// check judges what settings say together. Where one of them is already refused, nothing is
// concluded from it.
func (l *loader) check(cfg *Config, needs Needs) {
	l.checkSource(cfg, needs)
	if needs.Kafka {
		l.need("kafka.brokers", "--brokers")
	}
	if cfg.Admin.Listen == "" && !l.bad["admin.listen"] {
		if needs.Admin {
			l.contradict("admin.listen", "is none, and this command asks the running forwarder at that address", "give the address with --admin-listen")
		}
		l.idle(cfg, "admin.listen is none", "give an address, or remove it", "admin.profiling")
	}
	l.checkSASL()
	l.checkTLS(cfg)
}

func (l *loader) checkSource(cfg *Config, needs Needs) {
	const postgres, mongo = postgresSection + ".url", mongoSection + ".url"
	switch isMongo := cfg.Source.IsMongo() || l.isGiven(mongo); {
	case isMongo && l.isGiven(postgres):
		l.add(&FieldError{Field: "source", Problem: "names both postgres and mongo", Hint: "keep one: a forwarder moves one outbox"})
	case isMongo:
		if needs.Source {
			l.need(mongo, "--source-url")
		}
		l.checkMongo(cfg, needs)
		l.idle(cfg, "the outbox is in MongoDB", "remove it", postgresSection)
	default:
		if needs.Source {
			l.need(postgres, "--source-url")
		}
		l.checkPostgres(cfg)
		l.idle(cfg, "the outbox is in PostgreSQL", "remove it", mongoSection)
	}
	l.checkNames(cfg)
}

func (l *loader) checkPostgres(cfg *Config) {
	const mode, slot = "source.postgres.mode", "source.postgres.slot"
	pg := &cfg.Source.Postgres
	if pg.Mode == ModePoll && !l.bad[mode] {
		l.idle(cfg, mode+" is poll", "set "+mode+" to stream, or remove it", slot, "source.postgres.replication_url")
	}
	if pg.Slot != SlotDurable && !l.bad[slot] {
		l.idle(cfg, slot+" is not durable", "set "+slot+" to durable, or remove it",
			"source.postgres.slot_name", "source.postgres.slot_failover", "source.postgres.slot_budget", "source.postgres.slot_over_budget")
	} else if pg.SlotBudget == 0 && !l.bad["source.postgres.slot_budget"] {
		l.idle(cfg, "source.postgres.slot_budget is none", "set a budget, or remove it", "source.postgres.slot_over_budget")
	}
}

func (l *loader) checkMongo(cfg *Config, needs Needs) {
	const mode, database = "source.mongo.mode", "source.mongo.database"
	mongo := &cfg.Source.Mongo
	if mongo.Mode == ModePoll && !l.bad[mode] {
		l.idle(cfg, mode+" is poll", "set "+mode+" to stream, or remove it", "source.mongo.checkpoint")
	}
	if l.isGiven(database) {
		return
	}
	mongo.Database = databaseOf(mongo.URL.Reveal())
	if mongo.Database == "" && needs.Source && l.isGiven("source.mongo.url") && !l.bad["source.mongo.url"] {
		l.add(&FieldError{Field: database, Problem: "is not set, and source.mongo.url names no database",
			Hint: "write it behind the host, mongodb://host:27017/database, or give " + database})
	}
}

// idle reports settings at or below the paths that have no effect here and say other than
// their default: somebody believes in them.
func (l *loader) idle(cfg *Config, reason, hint string, paths ...string) {
	if l.look {
		return
	}
	plain := defaults()
	for _, s := range settings {
		below := slices.ContainsFunc(paths, func(p string) bool { return s.path == p || strings.HasPrefix(s.path, p+".") })
		if _, given := l.given[s.path]; below && given && !l.bad[s.path] && s.get(cfg) != s.get(&plain) {
			l.contradict(s.path, "is given, but "+reason, hint)
		}
	}
}

// checkNames refuses one name for two columns or two fields.
func (l *loader) checkNames(cfg *Config) {
	first := map[string]string{}
	for _, s := range settings {
		if s.name == nil || l.bad[s.path] {
			continue
		}
		what := "column"
		if strings.HasPrefix(s.path, mongoSection) {
			what = "field"
		}
		name := s.name(cfg)
		if name == "" {
			continue
		}
		if other, taken := first[what+name]; taken {
			l.contradict(s.path, "is the same "+what+" as "+other, "give each its own "+what)
		} else {
			first[what+name] = s.path
		}
	}
}

func (l *loader) checkSASL() {
	const mechanism, username, password = "kafka.sasl.mechanism", "kafka.sasl.username", "kafka.sasl.password"
	if !l.isGiven(mechanism) {
		for _, path := range []string{username, password} {
			if l.isGiven(path) {
				l.contradict(path, "is given without kafka.sasl.mechanism", "set the mechanism to PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
			}
		}
		return
	}
	for _, path := range []string{username, password} {
		if !l.isGiven(path) {
			l.add(&FieldError{Field: path, Problem: "is not set, and kafka.sasl.mechanism needs it", Hint: "set it, for example by " + Variable(path)})
		}
	}
}

func (l *loader) checkTLS(cfg *Config) {
	if l.bad["kafka.tls.enabled"] {
		return
	}
	var files bool
	for _, path := range []string{"kafka.tls.ca_file", "kafka.tls.cert_file", "kafka.tls.key_file", "kafka.tls.server_name"} {
		files = files || l.bad[path]
		if l.isGiven(path) && !cfg.Kafka.TLS.Enabled {
			l.contradict(path, "is given, but kafka.tls.enabled is not true", "set kafka.tls.enabled to true, or remove it")
		}
	}
	if files || !cfg.Kafka.TLS.Enabled {
		return
	}
	if _, err := cfg.Kafka.TLS.Client(l.readFile); err != nil {
		for _, e := range err {
			e.Origin, e.Value = l.given[e.Field].origin, ""
			if g, ok := l.given[e.Field]; ok {
				e.Value = Show(g.text)
			}
			l.add(e)
		}
	}
}

// need reports a setting that nobody gave. It stays silent where the file with it could not
// be read.
func (l *loader) need(path, flag string) {
	if l.isGiven(path) || l.fileUnread {
		return
	}
	l.add(&FieldError{Field: path, Problem: "is not set",
		Hint: "give " + flag + ", " + Variable(path) + ", or " + path + " in the file that --config names"})
}

func (l *loader) isGiven(path string) bool {
	_, ok := l.given[path]
	return ok || l.bad[path]
}

func (l *loader) contradict(path, problem, hint string) {
	e := &FieldError{Field: path, Problem: problem, Hint: hint}
	if g, ok := l.given[path]; ok {
		s, _ := find(path)
		e.Origin, e.Value = g.origin, l.shown(s, g)
	}
	l.add(e)
}
