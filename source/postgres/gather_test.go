package postgres

import (
	"bufio"
	"bytes"
	"os"
	"testing"
	"time"
)

// arrivals is a network on which each read brings the next piece, and takes as long as it says.
type arrivals struct {
	clock  *time.Time
	every  time.Duration
	pieces [][]byte
	reads  int
}

func (a *arrivals) Read(p []byte) (int, error) {
	if len(a.pieces) == 0 {
		return 0, os.ErrDeadlineExceeded
	}
	a.reads++
	*a.clock = a.clock.Add(a.every)
	n := copy(p, a.pieces[0])
	if a.pieces[0] = a.pieces[0][n:]; len(a.pieces[0]) == 0 {
		a.pieces = a.pieces[1:]
	}
	return n, nil
}

// TestLogGathers: rows that come fast are left to gather, those that come one by one and those that
// wait already are not, and every byte comes through in order.
func TestLogGathers(t *testing.T) {
	row := bytes.Repeat([]byte("r"), 400)
	for name, c := range map[string]struct {
		piece  []byte
		every  time.Duration
		pieces int
		pauses [2]int // at least and at most
	}{
		"one by one": {row, 100 * time.Microsecond, 1000, [2]int{0, 0}},
		"fast":       {row, 2 * time.Microsecond, 1000, [2]int{20, 30}},
		"waiting":    {bytes.Repeat(row, 10000), 20 * time.Microsecond, 1, [2]int{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			clock := time.Unix(1, 0)
			pauses := 0
			from := &arrivals{clock: &clock, every: c.every}
			var want []byte
			for i := range c.pieces {
				piece := bytes.Clone(c.piece)
				piece[0] = byte(i)
				from.pieces = append(from.pieces, piece)
				want = append(want, piece...)
			}
			log := bufio.NewReaderSize(&gatherer{from: from, now: func() time.Time { return clock }, pause: func(d time.Duration) {
				pauses++
				clock = clock.Add(d)
			}}, logBuffer)
			var got []byte
			buf := make([]byte, 8192)
			for {
				n, err := log.Read(buf)
				got = append(got, buf[:n]...)
				if err != nil {
					break
				}
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes came through of %d, or others", len(got), len(want))
			}
			if pauses < c.pauses[0] || pauses > c.pauses[1] {
				t.Errorf("it paused %d times in %d reads, not %d to %d times", pauses, from.reads, c.pauses[0], c.pauses[1])
			}
		})
	}
}
