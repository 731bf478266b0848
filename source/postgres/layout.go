package postgres

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"time"

	// A container's image may have no time zones of its own.
	_ "time/tzdata"

	"github.com/jackc/pgx/v5/pgtype"
)

// layout says where the outbox's columns stand in the log's rows. It turns such a row into what
// a read of the same row returns, so that one decoder makes the events of both.
type layout struct {
	columns int                 // in the log's row
	at      [colSnapshot]int    // by column of a read; -1 where the outbox has none
	types   [colSnapshot]uint32 // base types
	zone    *time.Location      // of times without one
	row     [colSnapshot][]byte
	id      [8]byte
	created [8]byte
	key     []byte
}

// newLayout finds the columns by name. base returns the type under a domain. A column that is
// missing or of a type that is none for it is a brokenError.
func newLayout(columns Columns, rel relationMessage, base func(oid uint32) (uint32, error)) (*layout, error) {
	l := &layout{columns: len(rel.columns), zone: time.UTC}
	for i, col := range columns.list() {
		l.at[i] = -1
		if col.name == "" {
			continue
		}
		at := slices.IndexFunc(rel.columns, func(c relationColumn) bool { return c.name == col.name })
		if at < 0 {
			return nil, &brokenError{fmt.Sprintf("the log's rows of table %s have no column %q: add it to the table, or to the publication's column list; a generated column is not in the log", rel.name, col.name)}
		}
		oid := rel.columns[at].oid
		if !slices.Contains(columnTypes[col.field], oid) {
			var err error
			if oid, err = base(oid); err != nil {
				return nil, err
			}
		}
		if !slices.Contains(columnTypes[col.field], oid) {
			return nil, &brokenError{fmt.Sprintf("column %q of table %s has a type that cannot be its %s: it must be %s", col.name, rel.name, col.field, typeWords[col.field])}
		}
		l.at[i], l.types[i] = at, oid
	}
	return l, nil
}

// brokenError says that the log cannot serve as things are, and what mends it. The table can.
type brokenError struct{ problem string }

func (e *brokenError) Error() string { return e.problem }

// read returns a row as a read would, see readColumns. It is good until the next call.
func (l *layout) read(values []tupleValue) ([][]byte, error) {
	if len(values) != l.columns {
		return nil, fmt.Errorf("a row has %d columns, and its table %d", len(values), l.columns)
	}
	for col, at := range l.at {
		l.row[col] = nil
		if at < 0 || values[at].kind == tupleNull {
			continue
		}
		if values[at].kind != tupleBinary {
			return nil, fmt.Errorf("a value of kind %q, where binary is wanted", values[at].kind)
		}
		data, err := l.convert(col, values[at].data)
		if err != nil {
			return nil, err
		}
		l.row[col] = data
	}
	if l.row[colID] == nil {
		return nil, fmt.Errorf("a row without an id")
	}
	return l.row[:], nil
}

// convert turns one value into what a read returns.
func (l *layout) convert(col int, data []byte) ([]byte, error) {
	switch col {
	case colID:
		id, err := integer(data)
		binary.BigEndian.PutUint64(l.id[:], uint64(id))
		return l.id[:], err
	case colTopic:
		if l.types[col] == pgtype.BPCharOID {
			data = bytes.TrimRight(data, " ") // as the cast to text does
		}
	case colKey:
		return l.keyText(data)
	case colPayload, colHeaders:
		if l.types[col] == pgtype.JSONBOID {
			if len(data) == 0 || data[0] != jsonbVersion {
				return nil, fmt.Errorf("jsonb of a version other than %d", jsonbVersion)
			}
			data = data[1:]
		}
	case colCreated:
		return l.moment(data)
	}
	return data, nil
}

// jsonbVersion is the byte before the text of a jsonb in binary form.
const jsonbVersion = 1

// integer reads an integer in binary form, of any size.
func integer(data []byte) (int64, error) {
	switch len(data) {
	case 2:
		return int64(int16(binary.BigEndian.Uint16(data))), nil
	case 4:
		return int64(int32(binary.BigEndian.Uint32(data))), nil
	case 8:
		return int64(binary.BigEndian.Uint64(data)), nil
	}
	return 0, fmt.Errorf("an integer of %d bytes", len(data))
}

// keyText prints a key as its output function does.
func (l *layout) keyText(data []byte) ([]byte, error) {
	l.key = l.key[:0]
	switch l.types[colKey] {
	case pgtype.UUIDOID:
		if len(data) != 16 {
			return nil, fmt.Errorf("a uuid of %d bytes", len(data))
		}
		for i, part := range [][]byte{data[:4], data[4:6], data[6:8], data[8:10], data[10:]} {
			if i > 0 {
				l.key = append(l.key, '-')
			}
			l.key = hex.AppendEncode(l.key, part)
		}
	case pgtype.Int8OID, pgtype.Int4OID, pgtype.Int2OID:
		n, err := integer(data)
		if err != nil {
			return nil, err
		}
		l.key = strconv.AppendInt(l.key, n, 10)
	case pgtype.NumericOID:
		var err error
		if l.key, err = appendNumeric(l.key, data); err != nil {
			return nil, err
		}
	default:
		return data, nil
	}
	return l.key, nil
}

// moment turns a time into a timestamptz, or nil where statements.created does.
func (l *layout) moment(data []byte) ([]byte, error) {
	n, err := integer(data)
	if err != nil {
		return nil, err
	}
	switch l.types[colCreated] {
	case pgtype.TimestamptzOID:
		return data, nil
	case pgtype.DateOID:
		if n < firstMoment/dayMicros || n >= lastMoment/dayMicros {
			return nil, nil
		}
		n *= dayMicros
	default:
		if n < firstMoment || n >= lastMoment {
			return nil, nil
		}
	}
	binary.BigEndian.PutUint64(l.created[:], uint64(inZone(n, l.zone)))
	return l.created[:], nil
}

const dayMicros = 24 * 60 * 60 * 1_000_000

// The bounds of statements.created, in microseconds since 2000.
var (
	firstMoment = sinceEpoch(time.Date(-4712, 1, 1, 0, 0, 0, 0, time.UTC))
	lastMoment  = sinceEpoch(time.Date(294276, 12, 31, 0, 0, 0, 0, time.UTC))
)

func sinceEpoch(t time.Time) int64 { return (t.Unix() - epoch) * 1_000_000 }

// inZone returns the moment at which clocks in the zone show what local shows without one, both
// in microseconds since 2000. Of two such moments, and of none, it chooses as the server does:
// standard time.
func inZone(local int64, zone *time.Location) int64 {
	seconds := floorDiv(local, 1_000_000)
	shown := seconds + epoch
	earlier := time.Unix(shown-24*60*60, 0).In(zone)
	_, before := earlier.Zone()
	offset := before
	if _, end := earlier.ZoneBounds(); !end.IsZero() {
		_, after := end.Zone()
		boundary, ifBefore, ifAfter := end.Unix(), shown-int64(before), shown-int64(after)
		switch {
		case ifBefore < boundary && ifAfter < boundary:
		case ifBefore > boundary && ifAfter >= boundary, ifBefore <= ifAfter:
			offset = after
		}
	}
	return local - int64(offset)*1_000_000
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
