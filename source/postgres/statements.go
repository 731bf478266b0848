package postgres

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// statements are the texts that are sent for one table.
type statements struct {
	table       *table
	del, oldest string
	// xid gives the transaction an xid, marks it as ours, and tells it.
	xid string
	// The result formats of a read's columns, see readColumns.
	formats []int16
	reads   [16]string // by filter
}

// filter says which clauses a read has beyond the floor.
type filter uint8

const (
	byLane filter = 1 << iota
	byKnown
	byTopic
	byKey
)

// The columns of a read's result. The first row holds the snapshot and nothing else.
const (
	colID = iota
	colTopic
	colKey
	colPayload
	colHeaders
	colCreated
	colSnapshot
	readColumns
)

const (
	textFormat   = 0
	binaryFormat = 1
)

func newStatements(t *table) *statements {
	s := &statements{table: t, formats: make([]int16, readColumns)}
	s.formats[colID] = binaryFormat
	s.formats[colCreated] = binaryFormat
	if t.types["payload"].oid == pgtype.ByteaOID {
		s.formats[colPayload] = binaryFormat
	}
	s.xid = "SELECT " + markedXid
	if !t.marks {
		s.xid = "SELECT pg_current_xact_id()::text"
	}
	for f := range s.reads {
		s.reads[f] = s.read(filter(f))
	}
	s.del = fmt.Sprintf(`DELETE FROM %s WHERE %s = ANY($1::bigint[])`, t.name.sql(), s.col(t.columns.ID))
	s.oldest = fmt.Sprintf(`SELECT %s FROM %s ORDER BY %s LIMIT 1`, s.created(), t.name.sql(), s.col(t.columns.ID))
	return s
}

// fit reports whether a prepared read still has the types that it was written for. The key's
// type decides on its text, and the payload's on its format: bytes in text format are hex
// digits, and a jsonb in binary format has a byte before it.
func (s *statements) fit(fields []pgconn.FieldDescription) bool {
	return fields[colPayload].DataTypeOID == s.table.types["payload"].oid &&
		(!s.table.has("key") || fields[colKey].DataTypeOID == s.table.types["key"].oid)
}

func (s *statements) col(name string) string { return pgx.Identifier{name}.Sanitize() }

// keyText is the key's text as its output function prints it, which is also what logical
// replication sends. A cast would strip the blanks of a char(n).
func (s *statements) keyText() string {
	col := s.col(s.table.columns.Key)
	if s.table.types["key"].oid == pgtype.BPCharOID {
		return "concat(" + col + ")"
	}
	return col + "::text"
}

// created is the row's time as a timestamptz, NULL where the row has none or one that cannot
// be converted: a date reaches further than a timestamptz, and an hour's offset can lead out
// of the range.
func (s *statements) created() string {
	if !s.table.has("created_at") {
		return "NULL::timestamptz"
	}
	col := s.col(s.table.columns.CreatedAt)
	if s.table.types["created_at"].oid == pgtype.TimestamptzOID {
		return col
	}
	return fmt.Sprintf("CASE WHEN %[1]s >= '4713-01-01 BC' AND %[1]s < '294276-12-31' THEN %[1]s::timestamptz END", col)
}

// lane is the row's lane in SQL, equal to lanes.LaneOf and lanes.LaneOfRow.
func (s *statements) lane() string {
	mask := s.table.lanes - 1
	byRow := fmt.Sprintf("(%s::bigint & %d)::int", s.col(s.table.columns.ID), mask)
	if !s.table.has("key") {
		return byRow
	}
	return fmt.Sprintf(`CASE WHEN %s IS NULL THEN %s ELSE hashtext(%s COLLATE "C") & %d END`,
		s.col(s.table.columns.Key), byRow, s.keyText(), mask)
}

// Our transactions that have an xid insert nothing, so no floor need wait for them. Those of other
// replicas are known by an advisory lock on the xid's lower half, which is let go with the
// transaction and, being shared and tried, keeps nobody waiting. It is seen in every database
// of the server, as xids are.
const (
	markClass = 0x6f75746d // "outm"
)

var (
	// markedXid is the xid of the transaction, which it marks as ours.
	markedXid = fmt.Sprintf(`pg_current_xact_id()::text || left(pg_try_advisory_xact_lock_shared(%d, (pg_current_xact_id()::text::bigint << 32 >> 32)::int)::text, 0)`, markClass)
	// marked are the lower halves of the xids of all transactions that are marked.
	marked = fmt.Sprintf(`(SELECT coalesce(string_agg(objid::text, ','), '') FROM pg_locks WHERE locktype = 'advisory' AND classid = %d AND objsubid = 2)`, markClass)
)

// seen is the snapshot of the statement, and where a fence is wanted that and the marks.
func (s *statements) seen() string {
	fence := "pg_current_xact_id()::text"
	if s.table.marks {
		fence = markedXid + " || ' ' || " + marked
	}
	return "pg_current_snapshot()::text || CASE WHEN $3::bool THEN ' ' || " + fence + " ELSE '' END"
}

// read builds the statement of a page. Its parameters are the floor, the limit, whether a fence is
// wanted, and then what the filter needs: the bitmap of lanes; the known ids; topics; the topics and
// keys of keys.
//
// The snapshot is the statement's own, and the fence an xid that is assigned after it was taken.
// Both are in a first row that is there when no other is. The
// branches of UNION ALL are run one after the other. Lists are searched by hash, which a
// generic plan does for a sub-select and not for an array; lanes are a bitmap. Where other replicas
// have most of the lanes, most rows end there: CASE keeps the planner from searching the
// lists first, which it takes for the cheaper part.
func (s *statements) read(f filter) string {
	c := s.table.columns
	optional := func(field, name string) string {
		if !s.table.has(field) {
			return "NULL"
		}
		return s.col(name)
	}
	n := 3
	parameter := func() int { n++; return n }
	lane := ""
	if f&byLane != 0 {
		lane = fmt.Sprintf("get_bit($%d::bytea, %s) = 1", parameter(), s.lane())
	}
	var lists []string
	if f&byKnown != 0 {
		lists = append(lists, fmt.Sprintf("%s NOT IN (SELECT unnest($%d::bigint[]))", s.col(c.ID), parameter()))
	}
	if f&byTopic != 0 {
		lists = append(lists, fmt.Sprintf(`%s::text COLLATE "C" NOT IN (SELECT unnest($%d::text[]))`, s.col(c.Topic), parameter()))
	}
	if f&byKey != 0 && s.table.has("key") {
		lists = append(lists, fmt.Sprintf(`(%s IS NULL OR (%s::text COLLATE "C", %s COLLATE "C") NOT IN (SELECT t, k FROM unnest($%d::text[], $%d::text[]) left_out(t, k)))`,
			s.col(c.Key), s.col(c.Topic), s.keyText(), parameter(), parameter()))
	}
	rest := strings.Join(lists, "\nAND ")
	switch {
	case lane != "" && rest != "":
		rest = "CASE WHEN " + lane + " THEN " + rest + " END"
	case lane != "":
		rest = lane
	}
	if rest != "" {
		rest = "\nAND " + rest
	}
	return fmt.Sprintf("SELECT NULL::bigint, NULL, NULL, NULL, NULL, NULL::timestamptz, %s\nUNION ALL\n(SELECT %s::bigint, %s::text, %s, %s, %s, %s, NULL\nFROM %s WHERE %s > $1::bigint%s\nORDER BY %s LIMIT $2::int)",
		s.seen(), s.col(c.ID), s.col(c.Topic), optional("key", c.Key), s.col(c.Payload), optional("headers", c.Headers),
		s.created(), s.table.name.sql(), s.col(c.ID), rest, s.col(c.ID))
}
