package admin

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"
)

// WriteTable prints what waits for people to read, with times relative to now.
func WriteTable(w io.Writer, parked []Parked, now time.Time) error {
	if len(parked) == 0 {
		_, err := fmt.Fprintln(w, "nothing waits")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	// tabwriter keeps the first write error and Flush returns it.
	fmt.Fprintln(table, "PART\tID\tTOPIC\tKEY\tATTEMPTS\tWAITING\tNEXT RETRY\tREASON")
	for _, p := range parked {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n",
			p.partName(), orDash(printable(p.ID)), orDash(printable(p.Topic)), p.Key.display(), p.Attempts,
			age(now.Sub(p.Since)), due(p.NextRetry, now), printable(p.Reason))
	}
	return table.Flush()
}

func (p Parked) partName() string {
	if p.Lane != nil {
		return fmt.Sprintf("%s %d", p.Part, *p.Lane)
	}
	return string(p.Part)
}

// display shows the key on one line of a terminal: as it is where that is plain, else quoted.
func (k Key) display() string {
	switch {
	case k == nil:
		return "-"
	case len(k) == 0:
		return `""`
	case !utf8.Valid(k):
		return fmt.Sprintf("0x%x", []byte(k))
	default:
		return printable(string(k))
	}
}

// printable keeps text from rows and brokers from breaking the line or steering the terminal.
func printable(s string) string {
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	if !utf8.ValidString(s) {
		return strconv.Quote(s)
	}
	return s
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func due(at, now time.Time) string {
	switch {
	case at.IsZero():
		return "under way"
	case !at.After(now):
		return "now"
	default:
		return "in " + age(at.Sub(now))
	}
}

// age rounds a duration to what a reader needs: two units at most.
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}
