package servers

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// KafkaConfig says which broker to start.
type KafkaConfig struct {
	// Properties are lines of server.properties. They win over the defaults, by which
	// topics are not created on use.
	Properties map[string]string
	// JVM are the Java machine's options. Empty: a small heap and what starts fast, which
	// is good for tests and not for measuring.
	JVM []string
	// Join makes the node the second broker of that node's cluster, of which it is no
	// controller. It ends before the other one.
	Join *Kafka
	// Log gets a line when something is fetched or installed. Nil is slog.Default().
	Log *slog.Logger
}

// Kafka is one node of Apache Kafka, broker and controller in one unless it joined another one,
// with a data folder of its own. Its methods may be called from several goroutines.
type Kafka struct {
	folder     *folder
	java, jars string
	jvm        []string
	port       int // clients'
	controller int // the controller's port
	cluster    string
	leader     *Kafka // whose cluster it joined; nil for a node with a cluster of its own
	child
}

const (
	// A broker that was killed waits for its old session to end before it may register.
	kafkaStartLimit = 90 * time.Second
	kafkaStopLimit  = time.Minute
	nodeID          = "1"
	joinedID        = "2"
)

var fastStart = []string{"-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}

// kafkaDefaults fit a node that is alone, restarted and killed.
var kafkaDefaults = map[string]string{
	"process.roles":                  "broker,controller",
	"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
	"inter.broker.listener.name":     "PLAINTEXT",
	"controller.listener.names":      "CONTROLLER",
	"num.partitions":                 "1",
	"auto.create.topics.enable":      "false",
	"default.replication.factor":     "1",
	"min.insync.replicas":            "1",

	"offsets.topic.replication.factor":                 "1",
	"offsets.topic.num.partitions":                     "4",
	"transaction.state.log.replication.factor":         "1",
	"transaction.state.log.min.isr":                    "1",
	"transaction.state.log.num.partitions":             "4",
	"share.coordinator.state.topic.replication.factor": "1",
	"share.coordinator.state.topic.min.isr":            "1",
	"share.coordinator.state.topic.num.partitions":     "4",
	"group.initial.rebalance.delay.ms":                 "0",
	// By default a killed node cannot register again for 9 s.
	"broker.session.timeout.ms":      "3000",
	"broker.heartbeat.interval.ms":   "500",
	"num.network.threads":            "2",
	"num.io.threads":                 "4",
	"log.cleaner.dedupe.buffer.size": "16777216",
}

const log4jProperties = `status=error
appender.o.type=Console
appender.o.name=O
appender.o.layout.type=PatternLayout
appender.o.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=INFO
rootLogger.appenderRef.o.ref=O
`

// StartKafka makes a new Kafka node and starts it. ctx bounds fetching and starting, not
// the server's life, which Close ends.
func StartKafka(ctx context.Context, cfg KafkaConfig) (*Kafka, error) {
	k, err := newKafka(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("making a Kafka node: %w", err)
	}
	if err := k.Start(ctx); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

func newKafka(ctx context.Context, cfg KafkaConfig) (_ *Kafka, err error) {
	log := orDefault(cfg.Log)
	if err := Install(ctx, log, Java); err != nil {
		return nil, err
	}
	java, err := javaProgram()
	if err != nil {
		return nil, err
	}
	jars, err := kafkaJars(ctx, log)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	controller, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := newFolder("kafka", nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dir.remove())
		}
	}()
	k := &Kafka{folder: dir, java: java, jars: jars, jvm: cfg.JVM, port: port, controller: controller, cluster: newClusterID(), leader: cfg.Join, child: child{what: "Kafka", stopLimit: kafkaStopLimit}}
	if len(k.jvm) == 0 {
		k.jvm = fastStart
	}
	if err := k.configure(cfg.Properties); err != nil {
		return nil, fmt.Errorf("configuring Kafka: %w", err)
	}
	role := "--standalone"
	if k.leader != nil {
		k.cluster = k.leader.cluster
		role = "--no-initial-controllers"
	}
	format := k.command(ctx, fastStart, "kafka.tools.StorageTool", "format",
		"--cluster-id", k.cluster, role, "--config", k.path("server.properties"))
	if err := run(ctx, format); err != nil {
		return nil, err
	}
	return k, nil
}

// newClusterID returns 16 random bytes in the form that Kafka takes; one that begins with
// a dash would be read as an option.
func newClusterID() string {
	var id [16]byte
	_, _ = rand.Read(id[:])
	id[0] &= 0x7f
	return base64.RawURLEncoding.EncodeToString(id[:])
}

func (k *Kafka) configure(properties map[string]string) error {
	all := maps.Clone(kafkaDefaults)
	listeners := fmt.Sprintf("PLAINTEXT://%s,CONTROLLER://%s", loopback(k.port), loopback(k.controller))
	all["node.id"] = nodeID
	all["controller.quorum.bootstrap.servers"] = loopback(k.controller)
	all["listeners"] = listeners
	all["advertised.listeners"] = listeners
	all["log.dirs"] = k.path("data")
	if k.leader != nil {
		all["process.roles"] = "broker"
		all["node.id"] = joinedID
		all["controller.quorum.bootstrap.servers"] = loopback(k.leader.controller)
		all["listeners"] = "PLAINTEXT://" + loopback(k.port)
		all["advertised.listeners"] = all["listeners"]
	}
	maps.Copy(all, properties)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		// A backslash is the file format's escape.
		fmt.Fprintf(&text, "%s=%s\n", name, strings.ReplaceAll(all[name], `\`, `\\`))
	}
	return errors.Join(
		os.WriteFile(k.path("server.properties"), []byte(text.String()), 0o600),
		os.WriteFile(k.path("log4j2.properties"), []byte(log4jProperties), 0o600),
		// The compression libraries unpack their native parts here.
		os.Mkdir(k.path("tmp"), 0o700),
	)
}

func (k *Kafka) command(ctx context.Context, jvm []string, args ...string) *exec.Cmd {
	options := append(slices.Clone(jvm),
		"-XX:-UsePerfData",
		"-Djava.awt.headless=true",
		"-Djava.io.tmpdir="+k.path("tmp"),
		// An absolute path: log4j2 also looks on the classpath for a relative one.
		"-Dlog4j2.configurationFile="+k.path("log4j2.properties"),
		"-cp", filepath.Join(k.jars, "*"))
	cmd := exec.CommandContext(ctx, k.java, append(options, args...)...)
	cmd.Dir = k.folder.path
	return cmd
}

func (k *Kafka) path(name string) string { return filepath.Join(k.folder.path, name) }

// LogPath returns the file that the node writes its log to.
func (k *Kafka) LogPath() string { return k.path("log") }

// Start starts a node that was stopped or killed, on the same ports and data, and returns
// when it serves clients. It does nothing where the node runs.
func (k *Kafka) Start(ctx context.Context) error {
	return k.begin(func() (*process, error) { return k.start(ctx) })
}

func (k *Kafka) start(ctx context.Context) (*process, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, kafkaStartLimit, fmt.Errorf("not ready within %s", kafkaStartLimit))
	defer cancel()
	if err := errors.Join(awaitFree(ctx, k.port), awaitFree(ctx, k.controller)); err != nil {
		return nil, err
	}
	// The node must outlive ctx, so it is no command of this context.
	cmd := k.command(context.WithoutCancel(ctx), k.jvm, "kafka.Kafka", k.path("server.properties"))
	return serve(ctx, cmd, k.LogPath(), syscall.SIGKILL, func(_ *process, from int64) func() bool {
		started := logWatch{path: k.LogPath(), at: from, line: "Kafka Server started"}
		return started.seen
	})
}

// Stop shuts the node down in order. It does nothing where the node does not run.
func (k *Kafka) Stop() error { return k.end("stopping", syscall.SIGTERM) }

// Kill ends the node by SIGKILL.
func (k *Kafka) Kill() error { return k.end("killing", syscall.SIGKILL) }

// Close ends the node and removes its data, for whose sake no orderly end is waited for.
func (k *Kafka) Close() error {
	err := k.Kill()
	return errors.Join(err, k.folder.remove())
}

// Addr returns the address that clients start from.
func (k *Kafka) Addr() string { return loopback(k.port) }
