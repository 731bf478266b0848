package config

// check judges what settings say together. Where one of them is already refused, nothing is
// concluded from it.
func (l *loader) check(cfg *Config, needs Needs) {
	l.checkSource(cfg, needs)
	if needs.Kafka {
		l.need("kafka.brokers", "--brokers")
	}
	if needs.Admin && cfg.Admin.Listen == "" && !l.bad["admin.listen"] {
		l.contradict("admin.listen", "is none, and this command asks the running forwarder at that address", "give the address with --admin-listen")
	}
	l.checkSASL()
	l.checkTLS(cfg)
}

func (l *loader) checkSource(cfg *Config, needs Needs) {
	switch {
	case l.mongo && l.isGiven("source.postgres.url"):
		l.add(&FieldError{Field: "source", Problem: "names both postgres and mongo", Hint: "keep one: a forwarder moves one outbox"})
	case needs.Source && !l.mongo:
		l.need("source.postgres.url", "--source-url")
	}
	first := map[string]string{}
	for _, s := range settings {
		name, ok := columnOf(cfg, s)
		if !ok || name == "" || l.bad[s.path] {
			continue
		}
		if other, taken := first[name]; taken {
			l.contradict(s.path, "is the same column as "+other, "give each its own column")
		} else {
			first[name] = s.path
		}
	}
}

// columnOf returns the column that a setting names; ok is false for other settings.
func columnOf(cfg *Config, s setting) (name string, ok bool) {
	c := &cfg.Source.Postgres.Columns
	switch s.path {
	case "source.postgres.columns.id":
		return c.ID, true
	case "source.postgres.columns.topic":
		return c.Topic, true
	case "source.postgres.columns.key":
		return c.Key, true
	case "source.postgres.columns.payload":
		return c.Payload, true
	case "source.postgres.columns.headers":
		return c.Headers, true
	case "source.postgres.columns.created_at":
		return c.CreatedAt, true
	}
	return "", false
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
