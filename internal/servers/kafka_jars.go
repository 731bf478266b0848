package servers

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	kafkaVersion = "4.4.0"
	log4jVersion = "2.25.5"
	fetchTries   = 3
)

// kafkaProject asks Maven for Kafka's broker with all that it needs, and for the logging
// backend that it leaves to its user.
const kafkaProject = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>` + kafkaVersion + `</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>` + log4jVersion + `</version></dependency>
  </dependencies>
</project>
`

// kafkaJars returns the folder with Kafka's jars.
func kafkaJars(ctx context.Context, log *slog.Logger) (string, error) {
	dir, err := cached(ctx, "kafka-"+kafkaVersion, func(into string) error {
		if err := Install(ctx, log, Maven); err != nil {
			return err
		}
		log.Info("fetching Apache Kafka, once", "version", kafkaVersion)
		return fetchKafka(ctx, into)
	})
	if err != nil {
		return "", fmt.Errorf("fetching Kafka %s: %w", kafkaVersion, err)
	}
	return dir, nil
}

func fetchKafka(ctx context.Context, into string) error {
	work, err := os.MkdirTemp("", "forwarder-maven-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := os.WriteFile(filepath.Join(work, "pom.xml"), []byte(kafkaProject), 0o600); err != nil {
		return err
	}
	for try := 1; ; try++ {
		mvn := exec.CommandContext(ctx, "mvn", "-B", "-ntp", "-q",
			"dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+into)
		mvn.Dir = work
		err := run(ctx, mvn)
		if err == nil || try == fetchTries || ctx.Err() != nil {
			return err
		}
		// Repositories turn clients away now and then; what came stays in Maven's own cache.
		select {
		case <-ctx.Done():
		case <-time.After(3 * time.Second):
		}
	}
}

// logWatch looks for a line in the part of a log that it has not looked at yet.
type logWatch struct {
	path, line string
	at         int64
}

// seen says that the line is there. What it has read it does not read again, except for as
// much as may be the line's beginning.
func (w *logWatch) seen() bool {
	f, err := os.Open(w.path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.NewSectionReader(f, w.at, 1<<62))
	if err != nil {
		return false
	}
	if bytes.Contains(text, []byte(w.line)) {
		return true
	}
	w.at += int64(max(0, len(text)-len(w.line)))
	return false
}
