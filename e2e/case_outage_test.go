package e2e

import (
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// outage is how long the servers are away in the tests of logs and rest. It is longer than
// the time for which a repeated cause is kept out of the log.
const outage = 40 * time.Second

// awaitUnready waits until the forwarder is not ready for a reason that holds all the words.
func (p *process) awaitUnready(words ...string) {
	p.t.Helper()
	var reason string
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		ok, text := p.ready()
		if reason = text; !ok && containsAll(text, words) {
			p.t.Logf("not ready: %s", text)
			return
		}
		pause(p.t, 20*time.Millisecond)
	}
	p.t.Fatalf("/readyz says %q, want all of %q", reason, words)
}

func containsAll(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// wantBriefLog demands that a log that began with the given number of lines says what happened
// in an outage, and that each message stands there once in 30 s at most.
func (p *process) wantBriefLog(from int, lasted time.Duration) {
	p.t.Helper()
	times := map[string]int{}
	warned := 0
	for _, l := range p.lines()[from:] {
		times[l.Msg]++
		if l.Level == "WARN" {
			warned++
		}
		p.t.Logf("log: %.200s", strings.TrimSpace(l.text))
	}
	if warned == 0 {
		p.t.Error("the log does not tell of the outage")
	}
	most := 1 + int(lasted/(30*time.Second))
	for msg, n := range times {
		if n > most {
			p.t.Errorf("%d lines say %q within %s, want at most %d", n, msg, lasted, most)
		}
	}
	if len(times) > 10 {
		p.t.Errorf("the log says %d different things", len(times))
	}
}

// statements counts the transactions that the database has ended, the test's own included.
func (s *stage) statements() int64 {
	s.t.Helper()
	var n int64
	s.value(&n, "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")
	return n
}

// TestC21BrokerOutage lets a thousand rows wait for a broker that is away: nothing is held
// against them, the forwarder rests and says little, and all of them arrive in order.
func TestC21BrokerOutage(t *testing.T) {
	t.Parallel()
	kafka := privateKafka(t)
	s := newStage(t, nil, kafka)
	topic := s.makeTopic("events", 6, nil)
	p := s.start(inJSON)
	s.put(row{topic, "before", "0", nil})
	s.arrive(topic, 1, drainLimit)
	s.awaitEmpty()
	from := len(p.lines())
	if err := kafka.Stop(); err != nil {
		t.Fatal(err)
	}
	var rows []row
	for i := range 1000 {
		rows = append(rows, row{topic, fmt.Sprint("k", i%20), fmt.Sprint(i), nil})
	}
	s.put(rows...)
	p.awaitUnready("kafka", s.broker)
	begun, statements, used := time.Now(), s.statements(), p.metrics()[cpuSeconds]
	for time.Since(begun) < outage {
		pause(t, 2*time.Second)
		if ok, words := p.ready(); ok {
			t.Fatalf("ready without a broker: %s", words)
		}
		if list := p.parked(); len(list) != 0 {
			t.Fatalf("an outage has parked %+v", list)
		}
		m := p.metrics()
		if n := m["parked.key"] + m["parked.row"] + m["parked.topic"] + m["parked.lane"]; n != 0 {
			t.Fatalf("the metrics say that %v parts wait", n)
		}
	}
	lasted := time.Since(begun)
	perSecond := float64(s.statements()-statements) / lasted.Seconds()
	used = p.metrics()[cpuSeconds] - used
	t.Logf("%s without a broker: %.1f statements/s, %.2f s of processor time", lasted.Round(time.Second), perSecond, used)
	if perSecond > 25 {
		t.Errorf("%.1f statements/s, want at most 25", perSecond)
	}
	if used > lasted.Seconds()/20 {
		t.Errorf("%.2f s of processor time in %s, want at most a twentieth", used, lasted)
	}
	if left := s.left(); left != 1000 {
		t.Errorf("%d rows are left, want all 1000", left)
	}

	if err := kafka.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.arrive(topic, 1001, drainLimit)
	p.awaitReady()
	s.awaitEmpty()
	p.wantBriefLog(from, time.Since(begun))
	if m := p.metrics(); m["order_violations_total"] != 0 || m["paused"] != 0 {
		t.Errorf("the metrics say %v", m)
	}
	p.stop()
	records := s.records(topic)
	byID(t, records)
	for k := range 20 {
		var want []string
		for i := k; i < 1000; i += 20 {
			want = append(want, fmt.Sprint(i))
		}
		if got := values(records, fmt.Sprint("k", k)); got != strings.Join(want, ",") {
			t.Errorf("key k%d has %s", k, got)
		}
	}
}

// The passwords of TestDatabaseOutage and TestC79NoRight. No log may hold one.
const (
	firstSecret  = "geheim-Eins-7"
	secondSecret = "geheim-Zwei-8"
)

// passwordLogin gives the server a role that has to log in with a password, and makes the
// stage's URL that role's.
func (s *stage) passwordLogin(secret string) {
	t := s.t
	t.Helper()
	s.sql("CREATE ROLE relay SUPERUSER LOGIN PASSWORD '" + secret + "'")
	var file string
	s.value(&file, "SHOW hba_file")
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	rules := "host all relay 127.0.0.1/32 scram-sha-256\n" + string(old)
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	s.sql("SELECT pg_reload_conf()")
	u, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("relay", secret)
	s.url = u.String()
}

// TestDatabaseOutage takes the database away, and then the right to log in: the forwarder
// stays up, says why, says little, never says a password, and goes on by itself.
func TestDatabaseOutage(t *testing.T) {
	t.Parallel()
	db := privatePostgres(t)
	s := newStage(t, db, nil)
	topic := s.makeTopic("", 3, nil)
	s.passwordLogin(firstSecret)
	p := s.start(inJSON, "FORWARDER_LOG_LEVEL=debug")
	s.put(row{topic, "k", "before", nil})
	s.arrive(topic, 1, drainLimit)
	s.awaitEmpty()
	from := len(p.lines())

	begun := time.Now()
	s.closeCounter()
	if err := db.Stop(); err != nil {
		t.Fatal(err)
	}
	p.awaitUnready("PostgreSQL")
	for time.Since(begun) < outage {
		pause(t, time.Second)
		if ok, words := p.ready(); ok {
			t.Fatalf("ready without a database: %s", words)
		}
	}
	if err := db.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.awaitReady()
	p.wantBriefLog(from, time.Since(begun))
	s.conn = s.connect()
	s.put(row{topic, "k", "after", nil})
	s.arrive(topic, 2, drainLimit)
	s.awaitEmpty()

	// The sessions end, and new ones are not let in.
	logOff := func(secret string) {
		s.sql("ALTER ROLE relay PASSWORD '" + secret + "'")
		s.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'relay' AND pid <> pg_backend_pid()")
	}
	logOff(secondSecret)
	p.awaitUnready("password authentication failed")
	s.put(row{topic, "k", "last", nil})
	s.sql("ALTER ROLE relay PASSWORD '" + firstSecret + "'")
	s.arrive(topic, 3, drainLimit)
	p.awaitReady()
	p.stop()
	if got, want := values(s.records(topic), "k"), "before,after,last"; got != want {
		t.Errorf("the topic has %s, want %s", got, want)
	}
	p.keepsSecrets(firstSecret, secondSecret)
}

// keepsSecrets demands that the log holds none of the texts.
func (p *process) keepsSecrets(secrets ...string) {
	p.t.Helper()
	log := p.output()
	for _, secret := range secrets {
		if strings.Contains(log, secret) {
			p.t.Errorf("the log holds the password %q:\n%s", secret, log)
		}
	}
}

// TestStartWithoutServers starts the forwarder before its servers: it waits for both, says for
// which, and forwards when they are there.
func TestStartWithoutServers(t *testing.T) {
	db, kafka := privatePostgres(t), privateKafka(t)
	s := newStage(t, db, kafka)
	topic := s.makeTopic("events", 3, nil)
	s.put(row{topic, "k", "x", nil})
	s.closeCounter()
	for _, stop := range []func() error{db.Stop, kafka.Stop} {
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	p := s.world.start(inJSON)
	p.awaitUnready("PostgreSQL")
	if alive := p.get("/livez"); alive != "alive\n" {
		t.Errorf("/livez says %q: nobody should restart it", alive)
	}
	if err := db.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.awaitUnready("Kafka", s.broker)
	if err := kafka.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.awaitReady()
	s.arrive(topic, 1, drainLimit)
	s.awaitEmpty()
	p.wantBriefLog(0, time.Second)
	p.stop()
}

// TestC79NoRight has a topic that the forwarder's user may not write, between one that it may.
func TestC79NoRight(t *testing.T) {
	kafka, err := servers.StartKafka(t.Context(), servers.KafkaConfig{Properties: map[string]string{
		"listener.security.protocol.map":       "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
		"sasl.enabled.mechanisms":              "PLAIN",
		"sasl.mechanism.inter.broker.protocol": "PLAIN",
		"listener.name.plaintext.plain.sasl.jaas.config": `org.apache.kafka.common.security.plain.PlainLoginModule required ` +
			`username="admin" password="` + firstSecret + `" user_admin="` + firstSecret + `" user_relay="` + secondSecret + `";`,
		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":           "User:admin;User:ANONYMOUS",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kafka.Close(); err != nil {
			t.Error(err)
		}
	})
	s := newBareStage(t, nil, kafka, asAdmin(firstSecret))
	s.initialise()
	good, denied := s.makeTopic("good", 3, nil), s.makeTopic("denied", 3, nil)
	s.grantWrite(good)
	var rows []row
	for i := range 100 {
		rows = append(rows, row{[]string{denied, good}[i%2], fmt.Sprint("k", i%10), fmt.Sprint(i), nil})
	}
	s.put(rows...)
	p := s.start(inJSON, "FORWARDER_LOG_LEVEL=debug", "FORWARDER_KAFKA_SASL_MECHANISM=PLAIN", "FORWARDER_KAFKA_SASL_USERNAME=relay", "FORWARDER_KAFKA_SASL_PASSWORD="+secondSecret)
	s.arrive(good, 50, drainLimit)
	w := p.awaitParked(1)[0]
	if w.Part != "topic" || w.Topic != denied || !containsAll(w.Reason, []string{"grant Write", "AUTHORIZATION_FAILED"}) {
		t.Errorf("what waits is %+v, want the topic with its cause", w)
	}
	s.grantWrite(denied)
	s.arrive(denied, 50, 20*time.Second) // without a command
	s.awaitEmpty()
	p.awaitParked(0)
	p.stop()
	for _, topic := range []string{good, denied} {
		byID(t, s.records(topic))
	}
	p.keepsSecrets(firstSecret, secondSecret)
}
