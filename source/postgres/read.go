package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// Read implements lanes.Source.
func (s *Source) Read(ctx context.Context, read *source.Read) (*source.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout+callSlack)
	defer cancel()
	if s.stale.Load() {
		if err := s.describe(ctx); err != nil {
			return nil, err
		}
		s.stale.Store(false)
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connecting to PostgreSQL: %w", err)
	}
	defer conn.Release()
	page, err := s.page(ctx, conn, read)
	if err != nil && stale(err) {
		s.stale.Store(true)
		if err := conn.Conn().DeallocateAll(ctx); err != nil {
			return nil, fmt.Errorf("forgetting prepared statements: %w", err)
		}
		if err := s.describe(ctx); err != nil {
			return nil, err
		}
		s.stale.Store(false)
		page, err = s.page(ctx, conn, read)
	}
	if err != nil {
		return nil, fmt.Errorf("reading a page of %s: %w", s.Table(), err)
	}
	return page, nil
}

// callSlack is how much longer the client waits than the server lets a statement run: it only
// ends calls whose server does not answer any more.
const callSlack = 5 * time.Second

func (s *Source) page(ctx context.Context, conn *pgxpool.Conn, read *source.Read) (*source.Page, error) {
	stmts := s.stmts.Load()
	var f filter
	params := [][]byte{int8Param(read.Floor), int4Param(read.Limit), boolParam(read.Fence)}
	if read.Lanes != nil {
		f |= byLane
		params = append(params, laneBitsParam(read.Lanes, stmts.table.lanes))
	}
	if known := above(read.Known, read.Floor); len(known) > 0 {
		f |= byKnown
		params = append(params, int8ArrayParam(known))
	}
	if len(read.Topics) > 0 {
		f |= byTopic
		params = append(params, textArrayParam(read.Topics))
	}
	if len(read.Keys) > 0 && stmts.table.has("key") {
		f |= byKey
		topics, keys := make([]string, len(read.Keys)), make([]string, len(read.Keys))
		for i, k := range read.Keys {
			topics[i], keys[i] = k.Topic, k.Key
		}
		params = append(params, textArrayParam(topics), textArrayParam(keys))
	}
	sql := stmts.reads[f]
	prepared, err := conn.Conn().Prepare(ctx, sql, sql)
	if err != nil {
		return nil, err
	}
	if !stmts.fit(prepared.Fields) {
		return nil, errTableChanged
	}
	formats := make([]int16, len(params))
	for i := range formats {
		formats[i] = binaryFormat
	}
	result := conn.Conn().PgConn().ExecStatement(ctx, prepared, params, formats, stmts.formats)
	page := &source.Page{}
	d := decoder{table: stmts.table, topics: s.topics}
	size, sorted, last := 0, true, int64(lanes.Start)
	for result.NextRow() {
		row := result.Values()
		if snapshot := row[colSnapshot]; snapshot != nil {
			if err = parseSeen(page, string(snapshot)); err != nil {
				break
			}
			continue
		}
		ev := d.event(row)
		sorted = sorted && ev.ID > last
		last = ev.ID
		page.Events = append(page.Events, ev)
		if size += ev.Size(); size >= read.Bytes && len(page.Events) < read.Limit {
			// The rest of the result may be of any size. Nothing ends it but the connection.
			page.Full = true
			_ = conn.Conn().PgConn().Conn().Close()
			break
		}
	}
	if page.Full && err == nil {
		// Closed above; the pool replaces the connection.
	} else if _, cerr := result.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	page.Full = page.Full || len(page.Events) >= read.Limit
	if !sorted {
		slices.SortFunc(page.Events, func(a, b *source.Event) int { return int(min(max(a.ID-b.ID, -1), 1)) })
		for i := 1; i < len(page.Events); i++ {
			if page.Events[i].ID == page.Events[i-1].ID {
				return nil, fmt.Errorf("two rows have the id %d: give the id column a unique index", page.Events[i].ID)
			}
		}
	}
	return page, nil
}

// decoder turns rows into events. Memory is taken in small pieces, so that one slow event
// does not pin a page.
type decoder struct {
	table  *table
	topics map[string]string
	slab   []source.Event
}

// eventSlab is how many events are allocated at once.
const eventSlab = 32

func (d *decoder) event(row [][]byte) *source.Event {
	if len(d.slab) == 0 {
		d.slab = make([]source.Event, eventSlab)
	}
	ev := &d.slab[0]
	d.slab = d.slab[1:]
	ev.ID = int64(binary.BigEndian.Uint64(row[colID]))
	ev.Topic = d.topic(row[colTopic])
	key, payload := row[colKey], row[colPayload]
	data := make([]byte, len(key)+len(payload))
	if key != nil {
		n := copy(data, key)
		ev.Key = data[:n:n]
	}
	ev.Lane = laneOf(row, d.table.lanes)
	if payload != nil {
		ev.Payload = data[len(key):]
		copy(ev.Payload, payload)
	}
	if h := row[colHeaders]; h != nil {
		ev.Headers, ev.Defect = parseHeaders(h)
	}
	if c := row[colCreated]; c != nil {
		ev.Created = timestamp(int64(binary.BigEndian.Uint64(c)))
	}
	return ev
}

// laneOf is the lane of a row in a store of n lanes.
func laneOf(row [][]byte, n int) source.Lane {
	if key := row[colKey]; key != nil {
		return lanes.LaneOf(key, n)
	}
	return lanes.LaneOfRow(int64(binary.BigEndian.Uint64(row[colID])), n)
}

// maxTopics bounds the topic names that are kept to be shared by events.
const maxTopics = 4096

func (d *decoder) topic(b []byte) string {
	if topic, ok := d.topics[string(b)]; ok {
		return topic
	}
	if len(d.topics) >= maxTopics {
		clear(d.topics)
	}
	topic := string(b)
	d.topics[topic] = topic
	return topic
}

// epoch is 2000-01-01, the server's own, in seconds since 1970.
const epoch = 946684800

// timestamp converts microseconds since 2000 to a time; infinities become the zero time.
func timestamp(micros int64) time.Time {
	if micros == 1<<63-1 || micros == -1<<63 {
		return time.Time{}
	}
	return time.Unix(epoch+micros/1e6, micros%1e6*1e3)
}

// parseSeen reads the first row's "snapshot", "snapshot fence" or "snapshot fence mark,mark".
func parseSeen(page *source.Page, s string) (err error) {
	snapshot, rest, fenced := strings.Cut(s, " ")
	if page.Snapshot, err = parseSnapshot(snapshot); err != nil || !fenced {
		return err
	}
	fence, marks, _ := strings.Cut(rest, " ")
	if page.Fence, err = strconv.ParseUint(fence, 10, 64); err != nil {
		return fmt.Errorf("parsing fence %q: %w", fence, err)
	}
	if marks == "" {
		return nil
	}
	for mark := range strings.SplitSeq(marks, ",") {
		low, err := strconv.ParseUint(mark, 10, 32)
		if err != nil {
			return fmt.Errorf("parsing mark %q: %w", mark, err)
		}
		page.Ours = append(page.Ours, wholeXid(uint32(low), page.Fence))
	}
	return nil
}

// wholeXid is the xid with the lower half low that is nearest to another one. Those that run at the
// same time are never 2^31 apart.
func wholeXid(low uint32, near uint64) uint64 {
	return near + uint64(int64(int32(low-uint32(near))))
}

// parseSnapshot parses "xmin:xmax:xip,xip".
func parseSnapshot(s string) (source.Snapshot, error) {
	var snap source.Snapshot
	parts := strings.SplitN(s, ":", 3)
	if len(parts) != 3 {
		return snap, fmt.Errorf("parsing snapshot %q: three parts are wanted", s)
	}
	var err error
	if snap.Xmin, err = strconv.ParseUint(parts[0], 10, 64); err != nil {
		return snap, fmt.Errorf("parsing snapshot %q: %w", s, err)
	}
	if snap.Xmax, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return snap, fmt.Errorf("parsing snapshot %q: %w", s, err)
	}
	if parts[2] == "" {
		return snap, nil
	}
	for p := range strings.SplitSeq(parts[2], ",") {
		xid, err := strconv.ParseUint(p, 10, 64)
		if err != nil {
			return snap, fmt.Errorf("parsing snapshot %q: %w", s, err)
		}
		snap.Running = append(snap.Running, xid)
	}
	slices.Sort(snap.Running)
	return snap, nil
}

// above returns the ids that the statement can meet.
func above(ids []int64, floor int64) []int64 {
	kept := make([]int64, 0, len(ids))
	for _, id := range ids {
		if id > floor {
			kept = append(kept, id)
		}
	}
	return kept
}

// Parameters in binary form.

func boolParam(v bool) []byte {
	if v {
		return []byte{1}
	}
	return []byte{0}
}

func int8Param(v int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }

func int4Param(v int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(v)) }

func arrayHeader(elem uint32, n, size int) []byte {
	b := make([]byte, 0, 20+size)
	dims := uint32(1)
	if n == 0 {
		dims = 0
	}
	b = binary.BigEndian.AppendUint32(b, dims)
	b = binary.BigEndian.AppendUint32(b, 0) // no NULL among the elements
	b = binary.BigEndian.AppendUint32(b, elem)
	if n > 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(n))
		b = binary.BigEndian.AppendUint32(b, 1)
	}
	return b
}

func int8ArrayParam(ids []int64) []byte {
	b := arrayHeader(pgtype.Int8OID, len(ids), 12*len(ids))
	for _, id := range ids {
		b = binary.BigEndian.AppendUint32(b, 8)
		b = binary.BigEndian.AppendUint64(b, uint64(id))
	}
	return b
}

// laneBitsParam sets the bit of each lane as get_bit numbers them.
func laneBitsParam(live []source.Lane, n int) []byte {
	b := make([]byte, (n+7)/8)
	for _, lane := range live {
		b[lane/8] |= 1 << (lane % 8)
	}
	return b
}

func textArrayParam(texts []string) []byte {
	size := 0
	for _, t := range texts {
		size += 4 + len(t)
	}
	b := arrayHeader(pgtype.TextOID, len(texts), size)
	for _, t := range texts {
		b = binary.BigEndian.AppendUint32(b, uint32(len(t)))
		b = append(b, t...)
	}
	return b
}
