package postgres

import (
	"bufio"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// gatherer reads the log from the network. A server sends each row by itself, so that one who reads
// them as they come is woken up for each, which costs both sides more than the row. Where they come
// fast they are left to gather for a moment.
type gatherer struct {
	from  io.Reader
	now   func() time.Time
	pause func(time.Duration)

	since time.Time // when the count began
	bytes int
	more  bool // the last read took all that it had room for
}

const (
	// logBuffer is what one read takes at most.
	logBuffer = 64 << 10
	// gatherBytes in gatherFor or less is fast: tens of thousands of small rows a second.
	gatherBytes = 16 << 10
	gatherFor   = time.Millisecond
)

// gatheringFrontend implements pgconn.BuildFrontendFunc.
func gatheringFrontend(r io.Reader, w io.Writer) *pgproto3.Frontend {
	g := &gatherer{from: r, now: time.Now, pause: time.Sleep}
	return pgproto3.NewFrontend(bufio.NewReaderSize(g, logBuffer), w)
}

// Read implements io.Reader.
func (g *gatherer) Read(p []byte) (int, error) {
	if !g.more {
		now := g.now()
		switch past := now.Sub(g.since); {
		case past >= gatherFor:
			g.since, g.bytes = now, 0
		case g.bytes >= gatherBytes:
			g.pause(gatherFor)
			g.since, g.bytes = g.now(), 0
		}
	}
	n, err := g.from.Read(p)
	g.bytes += n
	g.more = n == len(p)
	return n, err
}
