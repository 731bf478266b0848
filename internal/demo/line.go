package demo

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Stats is what the live line shows.
type Stats struct {
	Elapsed            time.Duration
	Written, Forwarded int64
	// WriteRate and ForwardRate are events per second over the last moments.
	WriteRate, ForwardRate float64
	Backlog                int64
	// P50 and P99 are from commit to consumed over the last second; Measured is false until
	// there was something to measure.
	P50, P99 time.Duration
	Measured bool
	// Repeats are allowed, Faults are broken promises.
	Repeats, Faults int64
}

// line renders the stats in at most width columns: the fullest layout that fits. Figures have
// fixed widths where there is room, so that the line does not twitch.
func line(s Stats, width int) string {
	clock := clock(s.Elapsed)
	writeRate, forwardRate := fmt.Sprintf("%8s", perSecond(s.WriteRate)), fmt.Sprintf("%8s", perSecond(s.ForwardRate))
	backlog := fmt.Sprintf("backlog %6s", thousands(s.Backlog))
	p50, p99 := "p50 "+latencyColumn(s.P50, s.Measured), "p99 "+latencyColumn(s.P99, s.Measured)
	order := "in order"
	if s.Faults > 0 {
		order = strings.ToUpper(counted(s.Faults, "fault"))
	}
	repeats := counted(s.Repeats, "repeat")

	text := ""
	for _, parts := range [][]string{
		{
			clock, fmt.Sprintf("written %9s %s", thousands(s.Written), writeRate),
			fmt.Sprintf("forwarded %9s %s", thousands(s.Forwarded), forwardRate), backlog, p50, p99, order, repeats,
		},
		{clock, "written " + writeRate, "forwarded " + forwardRate, backlog, p50, p99, order, repeats},
		{clock, "in " + writeRate, "out " + forwardRate, backlog, p99, order},
		{clock, "out " + forwardRate, backlog, order},
		{clock, "backlog " + thousands(s.Backlog), order},
		{clock, order},
	} {
		if text = strings.Join(parts, "  "); len(text) <= width {
			return text
		}
	}
	return cut(text, width)
}

// cut shortens text to width columns. Everything the demo prints is one column a rune.
func cut(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	return string(runes[:max(width, 0)])
}

// clock is m:ss, or h:mm:ss from an hour on.
func clock(d time.Duration) string {
	seconds := int(d / time.Second)
	if seconds >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", seconds/3600, seconds/60%60, seconds%60)
	}
	return fmt.Sprintf("%d:%02d", seconds/60, seconds%60)
}

func perSecond(rate float64) string { return thousands(int64(rate+0.5)) + "/s" }

// thousands groups the digits of a number that is not negative.
func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func counted(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return thousands(n) + " " + noun + "s"
}

// latencyColumn has a fixed width for everything below 1,000 seconds.
func latencyColumn(d time.Duration, measured bool) string {
	if !measured {
		return fmt.Sprintf("%7s", "-")
	}
	return fmt.Sprintf("%7s", latency(d))
}

func latency(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	switch {
	case ms < 9.95:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 999.5:
		return fmt.Sprintf("%.0f ms", ms)
	default:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
}
