package config

import (
	"strings"
	"testing"
)

// TestC99OneRunListsEveryProblem gives all triggers of the case at once.
func TestC99OneRunListsEveryProblem(t *testing.T) {
	_, err := loadFile(`
source:
  postgres:
    url: postgres://app:${PGPASS}@db/app
    table: ""
    mode: strem
    slot: ""
  mongo:
    url: mongodb://db/app
kafka:
  broker: [k:9092]
  client_id: ""
  acks: 1
lanes:
  count: 0
poll_interval: 0
memory:
  events: 0
shutdown:
  grace: "30"
`, "FORWARDER_LOG_LEVLE=debug")
	wantProblems(t, err,
		`FORWARDER_LOG_LEVLE: is not a setting's variable; did you mean FORWARDER_LOG_LEVEL?`,
		`kafka.acks (f.yaml:13): is not a setting: a row is deleted once its record is acknowledged, so every in-sync replica must have it; remove it; records are always sent with acks=all`,
		`kafka.broker (f.yaml:11): is not a setting; did you mean kafka.brokers?`,
		`kafka.brokers: is not set; give --brokers, FORWARDER_KAFKA_BROKERS, or kafka.brokers in the file that --config names`,
		`kafka.client_id = "" (f.yaml:12): is empty; give it a value, or leave it out`,
		`lanes.count (f.yaml:15): is not a setting; here are allowed: lease_ttl`,
		`memory.events = "0" (f.yaml:18): has no unit; write a size above zero with a unit, such as 32MiB; the units are B, KiB, MiB, GiB`,
		`poll_interval (f.yaml:16): is not a setting: it adapts by itself; remove it`,
		`shutdown.grace = "30" (f.yaml:20): has no unit; did you mean 30s? The units are ms, s, m, h`,
		`source: names both postgres and mongo; keep one: a forwarder moves one outbox`,
		`source.postgres.mode = "strem" (f.yaml:6): is not an allowed value; write one of poll, stream`,
		`source.postgres.slot = "" (f.yaml:7): is empty; give it a value, or leave it out`,
		`source.postgres.table = "" (f.yaml:5): is empty; give it a value, or leave it out`,
		`source.postgres.url = postgres://(hidden) (f.yaml:4): uses the variable PGPASS, which is not set; set PGPASS in the environment of the forwarder`,
	)
}

// TestC99EachTrigger names the problem of one setting at a time.
func TestC99EachTrigger(t *testing.T) {
	const sized = "the units are B, KiB, MiB, GiB"
	for name, c := range map[string]struct{ file, want string }{
		"unknown mode":         {"source: {postgres: {mode: listen}}", `source.postgres.mode = "listen" (f.yaml:1): is not an allowed value; write one of poll, stream`},
		"mode in capitals":     {"source: {postgres: {mode: Poll}}", `source.postgres.mode = "Poll" (f.yaml:1): is not an allowed value; write poll`},
		"empty mode":           {`source: {postgres: {mode: ""}}`, `source.postgres.mode = "" (f.yaml:1): is empty; give it a value, or leave it out`},
		"null":                 {"kafka:\n  compression: ~", `kafka.compression (f.yaml:2): has no value; give it one, or remove the line to use the default`},
		"blank name":           {`kafka: {client_id: "  "}`, `kafka.client_id = "  " (f.yaml:1): is empty; give it a value, or leave it out`},
		"number for text":      {"kafka: {client_id: 7}", `kafka.client_id (f.yaml:1): is a number, not text; write it in quotes if it is meant as text`},
		"list for text":        {"kafka: {client_id: [a]}", `kafka.client_id (f.yaml:1): is a list, not text; write one text, in quotes where it has special characters`},
		"section for text":     {"kafka: {client_id: {a: b}}", `kafka.client_id (f.yaml:1): is a section, not text; write one text, in quotes where it has special characters`},
		"text for section":     {"log: text", `log (f.yaml:1): is not a section of name: value lines; it holds: format, level`},
		"text for truth":       {"kafka: {tls: {enabled: maybe}}", `kafka.tls.enabled = "maybe" (f.yaml:1): is neither true nor false; write true or false`},
		"yes for truth":        {"kafka: {tls: {enabled: yes}}", `kafka.tls.enabled = "yes" (f.yaml:1): is neither true nor false; write true or false`},
		"number for truth":     {"kafka: {tls: {enabled: 1}}", `kafka.tls.enabled (f.yaml:1): is a number, not true or false; write true or false`},
		"number in list":       {"kafka: {brokers: [k:1, 9092]}", `kafka.brokers (f.yaml:1): has an item that is a number, not text (number 2); write a list of texts, in quotes where needed`},
		"empty list":           {"kafka: {brokers: []}", `kafka.brokers = "" (f.yaml:1): is empty; write at least one item`},
		"empty item":           {"kafka: {brokers: [k:1, '']}", `kafka.brokers = "k:1," (f.yaml:1): has an empty item; write a value between the commas, or remove one`},
		"broker without port":  {"kafka: {brokers: [kafka1]}", `kafka.brokers = "kafka1" (f.yaml:1): is not host:port; write both, such as kafka1:9092; IPv6 goes in brackets, [::1]:9092`},
		"broker without host":  {"kafka: {brokers: [':9092']}", `kafka.brokers = ":9092" (f.yaml:1): holds a broker without a host; write host:port, such as kafka1:9092`},
		"broker port 0":        {"kafka: {brokers: [k:0]}", `kafka.brokers = "k:0" (f.yaml:1): has a port that is not a number from 1 to 65535; write host:port, such as kafka1:9092`},
		"broker as URL":        {"kafka: {brokers: ['sasl://u:hunter2@k:1']}", `kafka.brokers = (hidden) (f.yaml:1): is not host:port; write it without a scheme, login or path, such as kafka1:9092`},
		"duration as number":   {"shutdown: {grace: 30}", `shutdown.grace = "30" (f.yaml:1): has no unit; did you mean 30s? The units are ms, s, m, h`},
		"duration zero":        {"shutdown: {grace: 0s}", `shutdown.grace = "0s" (f.yaml:1): is out of range; write 1s to 1h`},
		"duration bare zero":   {"shutdown: {grace: 0}", `shutdown.grace = "0" (f.yaml:1): has no unit; write a duration above zero with a unit, such as 20s; the units are ms, s, m, h`},
		"duration negative":    {"shutdown: {grace: -1s}", `shutdown.grace = "-1s" (f.yaml:1): is out of range; write 1s to 1h`},
		"duration of words":    {"shutdown: {grace: soon}", `shutdown.grace = "soon" (f.yaml:1): is not a duration; write a number and a unit (ms, s, m, h), such as 20s`},
		"lease zero":           {"lanes: {lease_ttl: 0s}", `lanes.lease_ttl = "0s" (f.yaml:1): is out of range; write 1s to 5m`},
		"lease without unit":   {"lanes: {lease_ttl: 10}", `lanes.lease_ttl = "10" (f.yaml:1): has no unit; did you mean 10s? The units are ms, s, m, h`},
		"size without unit":    {"memory: {events: 64}", `memory.events = "64" (f.yaml:1): has no unit; did you mean 64MiB? The units are B, KiB, MiB, GiB`},
		"size zero":            {"memory: {events: 0MiB}", `memory.events = "0MiB" (f.yaml:1): is out of range; write 4MiB to 64GiB`},
		"size negative":        {"memory: {events: -1GiB}", `memory.events = "-1GiB" (f.yaml:1): is out of range; write 4MiB to 64GiB`},
		"size in other unit":   {"memory: {events: 64mb}", `memory.events = "64mb" (f.yaml:1): has an unknown unit; ` + sized + `, written like this`},
		"size beyond a number": {"memory: {events: 9999999999GiB}", `memory.events = "9999999999GiB" (f.yaml:1): is too large to be a number of bytes; write a smaller size`},
		"given twice":          {"log:\n  level: info\n  format: json\n  level: warn", `log.level (f.yaml:4): is given twice, first on line 2; keep one of them`},
		"merge key":            {"log: {<<: {level: info}}", `log.<< (f.yaml:1): is not a plain name; write name: value lines; merged and composed keys are not supported`},
		"dotted key":           {"kafka.client_id: x", `kafka.client_id (f.yaml:1): is not a setting; write each part on a level of its own, kafka: client_id: ...`},
		"misplaced key":        {"kafka: {password: hunter2}", `kafka.password (f.yaml:1): is not a setting; did you mean kafka.sasl.password?`},
		"two documents":        {"log: {level: info}\n---\nlog: {level: warn}", `--config = "f.yaml" (f.yaml): is not valid YAML: there is a second document behind ---; correct the line; text with special characters goes in quotes`},
		"broken YAML":          {"log:\n  level: info\n level: {", `--config = "f.yaml" (f.yaml:3): is not valid YAML: did not find expected key; correct the line; text with special characters goes in quotes`},
		"list as file":         {"- log", `the file (f.yaml:1): is not a section of name: value lines; it holds: source, kafka, lanes, memory, admin, log, shutdown`},
		"table without schema": {"source: {postgres: {table: outbox}}", `source.postgres.table = "outbox" (f.yaml:1): names no schema; write schema.table, such as public.outbox`},
		"table of three parts": {"source: {postgres: {table: a.b.c}}", `source.postgres.table = "a.b.c" (f.yaml:1): has more than two parts; write schema.table; a name that contains a dot goes in double quotes, "a.b".c`},
		"table half empty":     {"source: {postgres: {table: public.}}", `source.postgres.table = "public." (f.yaml:1): has an empty part; write every name in full`},
		"column switched off":  {"source: {postgres: {columns: {payload: none}}}", `source.postgres.columns.payload = "none" (f.yaml:1): cannot be switched off; name the column; one that is really called none is written "none", with double quotes inside the value`},
		"one column twice":     {"source: {postgres: {columns: {key: topic}}}", `source.postgres.columns.key = "topic" (f.yaml:1): is the same column as source.postgres.columns.topic; give each its own column`},
		"listen without port":  {"admin: {listen: localhost}", `admin.listen = "localhost" (f.yaml:1): is not host:port; write both, such as 127.0.0.1:8470; IPv6 goes in brackets, [::1]:8470`},
		"TLS file, TLS off":    {"kafka: {tls: {ca_file: ca.pem}}", `kafka.tls.ca_file = "ca.pem" (f.yaml:1): is given, but kafka.tls.enabled is not true; set kafka.tls.enabled to true, or remove it`},
		"TLS file missing":     {"kafka: {tls: {enabled: true, ca_file: ca.pem}}", `kafka.tls.ca_file = "ca.pem" (f.yaml:1): cannot be read: no such file or directory; name a PEM file that this user may read`},
		"TLS key missing":      {"kafka: {tls: {enabled: true, cert_file: f.yaml}}", `kafka.tls.key_file: is not set, and kafka.tls.cert_file needs it; name the PEM file with the certificate's private key`},
		"TLS file not PEM":     {"kafka: {tls: {enabled: true, ca_file: f.yaml}}", `kafka.tls.ca_file = "f.yaml" (f.yaml:1): holds no certificate; name a PEM file with the authority's certificate`},
		"login, no mechanism":  {"kafka: {sasl: {password: hunter2}}", `kafka.sasl.password = (hidden) (f.yaml:1): is given without kafka.sasl.mechanism; set the mechanism to PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512`},
		"mechanism, no login":  {"kafka: {sasl: {mechanism: PLAIN, username: u}}", `kafka.sasl.password: is not set, and kafka.sasl.mechanism needs it; set it, for example by FORWARDER_KAFKA_SASL_PASSWORD`},
		"unknown mechanism":    {"kafka: {sasl: {mechanism: scram-sha-256, username: u, password: p}}", `kafka.sasl.mechanism = "scram-sha-256" (f.yaml:1): is not an allowed value; write SCRAM-SHA-256`},
		"variable empty":       {"kafka: {client_id: '${EMPTY}'}", `kafka.client_id = "${EMPTY}" (f.yaml:1): uses the variable EMPTY, which is empty; give EMPTY a value`},
		"variable malformed":   {"kafka: {client_id: '${a-b}'}", `kafka.client_id = "${a-b}" (f.yaml:1): has a ${ that does not begin a variable's name and }; write ${NAME}, or $${ for the characters themselves`},
		"secret file missing":  {"kafka: {sasl: {mechanism: PLAIN, username: u, password: 'file:/nope'}}", `kafka.sasl.password = "file:/nope" (f.yaml:1): refers to the file "/nope", which cannot be read: no such file or directory; name a file that this user may read`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadFile(c.file, append([]string{"EMPTY="}, enough...)...)
			if strings.Contains(c.file, "brokers:") {
				_, err = loadFile(c.file, "EMPTY=", enough[0])
			}
			wantProblems(t, err, c.want)
		})
	}
}

func TestC99URLs(t *testing.T) {
	const encode = `has a character that must be percent-encoded in its user name or password; write / as %2F, ? as %3F, # as %23, @ as %40, : as %3A, % as %25`
	for url, want := range map[string]string{
		"":                                  `source.postgres.url = "" (--source-url): is empty; give it a value, or leave it out`,
		"Postgres://u:hunter2@h/db":         `source.postgres.url = Postgres://(hidden) (--source-url): is not a PostgreSQL URL; begin it with postgres:// or postgresql://, in small letters`,
		"jdbc:postgresql://h/db?password=p": `source.postgres.url = jdbc:postgresql://(hidden) (--source-url): is not a PostgreSQL URL; begin it with postgres:// or postgresql://, in small letters`,
		"localhost":                         `source.postgres.url = (hidden) (--source-url): is not a PostgreSQL connection string; write postgres://user:password@host:5432/database`,
		"https://u:hunter2@h/?a=b":          `source.postgres.url = (hidden) (--source-url): is not a PostgreSQL connection string; write postgres://user:password@host:5432/database`,
		"postgres://u:hun/ter2@h/db":        `source.postgres.url = postgres://(hidden) (--source-url): ` + encode,
		"postgres://u:12#34@h/db":           `source.postgres.url = postgres://(hidden) (--source-url): ` + encode,
		"postgres://u:12?34@h/db":           `source.postgres.url = postgres://(hidden) (--source-url): ` + encode,
		"postgres://u:hun%ter2@h/db":        `source.postgres.url = postgres://(hidden) (--source-url): ` + encode,
		"postgres://u:p@h:port/db":          `source.postgres.url = postgres://(hidden) (--source-url): has a port that is not a number from 1 to 65535; write host:port; if that is part of the password, percent-encode it`,
		"postgres://u:p@h/db?sslmode=on":    `source.postgres.url = postgres://u:xxxxx@h/db?sslmode=on (--source-url): has an unknown sslmode; write one of disable, allow, prefer, require, verify-ca, verify-full`,
		"postgres://u:p@h/db?sslmode":       `source.postgres.url = postgres://(hidden) (--source-url): has a malformed parameter behind the ?; write name=value&name=value, percent-encoded`,
		"host=h dbname= password=hunter2":   `source.postgres.url = (hidden) (--source-url): has a name= without a value; give it a value, or leave it out; a value with = in it goes in single quotes`,
		"host=h dbname=''":                  `source.postgres.url = host=h dbname='' (--source-url): has an empty dbname; give dbname a value, or leave it out`,
		"host=h password=my hunter2":        `source.postgres.url = (hidden) (--source-url): is not a list of name=value; write host=... dbname=... user=...; a value with a space goes in single quotes, with \ before ' and \`,
		"postgres://u:p@ss@h/db":            `source.postgres.url = postgres://(hidden) (--source-url): ` + encode,
		"postgres://u:@h/db":                `source.postgres.url = postgres://(hidden) (--source-url): has an empty password; write user:password@host, or user@host for a login without one`,
	} {
		_, err := Load(Overrides{Flags: map[string]string{"source.postgres.url": url}, Needs: Needs{Source: true}}, nil, files{}.read)
		t.Run(url, func(t *testing.T) { wantProblems(t, err, want) })
	}
}

func TestC99MongoURLs(t *testing.T) {
	const encode = `has a character that must be percent-encoded in its user name or password; write / as %2F, ? as %3F, # as %23, @ as %40, : as %3A, % as %25`
	for url, want := range map[string]string{
		"mongodb://u:hun/ter2@h/db":       `source.mongo.url = mongodb://(hidden) (--source-url): ` + encode,
		"mongodb://u:@h/db":               `source.mongo.url = mongodb://(hidden) (--source-url): has an empty password; write user:password@host, or user@host for a login without one`,
		"mongodb://:hunter2@h/db":         `source.mongo.url = mongodb://:xxxxx@h/db (--source-url): has a password without a user; write user:password@host`,
		"mongodb:///db":                   `source.mongo.url = mongodb:///db (--source-url): names no host; write mongodb://host:27017`,
		"mongodb+srv://u:hunter2@h:1/db":  `source.mongo.url = mongodb+srv://u:xxxxx@h:1/db (--source-url): has a port or more than one host; mongodb+srv:// takes one name, whose DNS records tell the hosts and ports`,
		"mongodb://h:port/db":             `source.mongo.url = mongodb://(hidden) (--source-url): has a port that is not a number from 1 to 65535; write host:port; if that is part of the password, percent-encode it`,
		"mongodb://h/db?w=":               `source.mongo.url = mongodb://h/db?w= (--source-url): has a malformed parameter behind the ?; write name=value&name=value, percent-encoded`,
		"mongodb://h?replicaSet=a":        `source.mongo.url = mongodb://h?replicaSet=a (--source-url): has no / between the hosts and the ?; write mongodb://host:27017/database?name=value`,
		"mongodb://h/a.b":                 `source.mongo.url = mongodb://h/a.b (--source-url): names a database that cannot exist; write a name without spaces and / \ . " $ * < > : | ?`,
		"mongodb://u:hunter2@h":           `source.mongo.database: is not set, and source.mongo.url names no database; write it behind the host, mongodb://host:27017/database, or give source.mongo.database`,
		"Mongodb://u:hunter2@h/db":        `source.postgres.url = Mongodb://(hidden) (--source-url): is not a PostgreSQL URL; begin it with postgres:// or postgresql://, in small letters`,
		"mongodb://a,b/db?authSource=a@b": `source.mongo.url = mongodb://(hidden) (--source-url): ` + encode,
	} {
		_, err := Load(Overrides{Flags: map[string]string{"source.postgres.url": url}, Needs: Needs{Source: true}}, nil, files{}.read)
		t.Run(url, func(t *testing.T) { wantProblems(t, err, want) })
	}
}

// TestC99SettingsWithoutEffect: a setting that says other than its default and is not heard.
func TestC99SettingsWithoutEffect(t *testing.T) {
	const pg, mongo = "FORWARDER_SOURCE_POSTGRES_URL=postgres://u@h/db", "FORWARDER_SOURCE_MONGO_URL=mongodb://h/app"
	for name, c := range map[string]struct {
		file, url string
		want      []string
	}{
		"durable slot, polling": {"source: {postgres: {slot: durable, slot_budget: 1GiB}}", pg, []string{
			`source.postgres.slot = "durable" (f.yaml:1): is given, but source.postgres.mode is poll; set source.postgres.mode to stream, or remove it`}},
		"replication URL, polling": {"source: {postgres: {replication_url: 'postgres://r:hunter2@h/db'}}", pg, []string{
			`source.postgres.replication_url = postgres://r:xxxxx@h/db (f.yaml:1): is given, but source.postgres.mode is poll; set source.postgres.mode to stream, or remove it`}},
		"name of a temporary slot": {"source: {postgres: {mode: stream, slot_name: s, slot_failover: true, slot_over_budget: drop}}", pg, []string{
			`source.postgres.slot_failover = "true" (f.yaml:1): is given, but source.postgres.slot is not durable; set source.postgres.slot to durable, or remove it`,
			`source.postgres.slot_name = "s" (f.yaml:1): is given, but source.postgres.slot is not durable; set source.postgres.slot to durable, or remove it`,
			`source.postgres.slot_over_budget = "drop" (f.yaml:1): is given, but source.postgres.slot is not durable; set source.postgres.slot to durable, or remove it`}},
		"drop without a budget": {"source: {postgres: {mode: stream, slot: durable, slot_over_budget: drop}}", pg, []string{
			`source.postgres.slot_over_budget = "drop" (f.yaml:1): is given, but source.postgres.slot_budget is none; set a budget, or remove it`}},
		"profiles without a listener": {"admin: {listen: none, profiling: true}", pg, []string{
			`admin.profiling = "true" (f.yaml:1): is given, but admin.listen is none; give an address, or remove it`}},
		"checkpoint, polling": {"source: {mongo: {checkpoint: durable}}", mongo, []string{
			`source.mongo.checkpoint = "durable" (f.yaml:1): is given, but source.mongo.mode is poll; set source.mongo.mode to stream, or remove it`}},
		"settings of PostgreSQL": {"source: {postgres: {mode: stream, columns: {key: k}}}", mongo, []string{
			`source.postgres.columns.key = "k" (f.yaml:1): is given, but the outbox is in MongoDB; remove it`,
			`source.postgres.mode = "stream" (f.yaml:1): is given, but the outbox is in MongoDB; remove it`}},
		"settings of MongoDB": {"source: {mongo: {collection: events}}", pg, []string{
			`source.mongo.collection = "events" (f.yaml:1): is given, but the outbox is in PostgreSQL; remove it`}},
		"only defaults": {"source: {postgres: {mode: poll, slot: temporary, slot_over_budget: warn, slot_budget: none}, mongo: {mode: poll, checkpoint: none}}", pg, nil},
		"durable":       {"source: {postgres: {mode: stream, slot: durable, slot_name: s_1, slot_failover: true, slot_budget: 1GiB, slot_over_budget: drop, publication: '\"P.1\"'}}", pg, nil},
		"malformed": {"source: {postgres: {mode: strem, slot: durable, slot_name: S, slot_budget: 1MiB}}", pg, []string{
			`source.postgres.mode = "strem" (f.yaml:1): is not an allowed value; write one of poll, stream`,
			`source.postgres.slot_budget = "1MiB" (f.yaml:1): is out of range; write 64MiB to 65536GiB, or none`,
			`source.postgres.slot_name = "S" (f.yaml:1): is not a name of a replication slot; write 1 to 63 of the characters a to z, 0 to 9 and _`}},
		"malformed names": {"source: {mongo: {database: a.b, collection: system.x, fields: {topic: _id, key: none, seq: a.b, payload: headers}}}", mongo, []string{
			`source.mongo.collection = "system.x" (f.yaml:1): is a name that MongoDB keeps for itself; choose one that does not begin with system.`,
			`source.mongo.database = "a.b" (f.yaml:1): is not a name of a database; write a name without spaces and / \ . " $ * < > : | ?`,
			`source.mongo.fields.headers: is the same field as source.mongo.fields.payload; give each its own field`,
			`source.mongo.fields.seq = "a.b" (f.yaml:1): is not a name of a field at the top of a document; write letters, digits, _ and -`,
			`source.mongo.fields.topic = "_id" (f.yaml:1): is the document's id; name another field`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadFile(c.file, c.url, enough[1])
			if c.want == nil && err == nil {
				return
			}
			wantProblems(t, err, c.want...)
		})
	}
}

func TestC82SettingsThatWeakenDeliveryAreRefused(t *testing.T) {
	for _, key := range []string{
		"acks", "required_acks", "enable.idempotence", "idempotence", "max.in.flight.requests.per.connection",
		"max_in_flight", "partitioner", "partitioner.class", "retries", "delivery.timeout.ms",
	} {
		_, err := loadFile("kafka:\n  "+key+": whatever\n", enough...)
		var text string
		if err != nil {
			text = err.Error()
		}
		if !strings.HasPrefix(text, "kafka."+key+" (f.yaml:2): is not a setting: ") || !strings.Contains(text, "; remove it; ") {
			t.Errorf("%s: %q does not say why it is refused", key, text)
		}
		variable := "FORWARDER_KAFKA_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
		_, err = loadFile("", append([]string{variable + "=1"}, enough...)...)
		if err == nil || !strings.HasPrefix(err.Error(), variable+": is not a setting: ") {
			t.Errorf("%s: %v does not say why it is refused", variable, err)
		}
	}
}
