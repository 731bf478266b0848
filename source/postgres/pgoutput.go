package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
)

// The messages of the pgoutput plugin, protocol version 1, that matter to an outbox. Values
// share the memory of the message that they were read from.

// beginMessage starts a transaction; everything up to its commitMessage belongs to it.
type beginMessage struct {
	final pglogrepl.LSN // of the commit record
	when  time.Time
	xid   uint32 // the top-level transaction's, without its epoch
}

// commitMessage ends a transaction.
type commitMessage struct {
	commit, end pglogrepl.LSN // of the commit record, and of the byte after it
}

// relationMessage describes a table before its first row, and after every change of it.
type relationMessage struct {
	id      uint32
	name    name
	columns []relationColumn
}

type relationColumn struct {
	name string
	oid  uint32 // the type; a domain's own
}

// insertMessage is a row. Its values are good until the next message is parsed.
type insertMessage struct {
	relation uint32
	values   []tupleValue
}

// tupleValue is one column of a row: its kind, and its bytes for text and binary.
type tupleValue struct {
	kind byte
	data []byte
}

// The kinds of a tupleValue.
const (
	tupleNull      = 'n'
	tupleUnchanged = 'u' // a large value that an update left alone: never in an insert
	tupleText      = 't'
	tupleBinary    = 'b'
)

// truncateMessage says that tables were emptied.
type truncateMessage struct{ relations []uint32 }

// logicalMessage was written by pg_logical_emit_message.
type logicalMessage struct {
	transactional bool
	lsn           pglogrepl.LSN
	prefix        string
	content       []byte
}

// changeMessage is an update or a delete, which only a publication made by others sends.
type changeMessage struct{ relation uint32 }

// otherMessage is one that says nothing about an outbox: a type's name or an origin.
type otherMessage struct{}

// errCut is the error of a message that ends before its values do.
var errCut = errors.New("the message is cut short")

// parser reads pgoutput messages. It reuses memory from one insert to the next.
type parser struct {
	insert insertMessage
}

// parse returns a message as one of the types above. A message of an unknown kind is an error:
// it may mean anything.
func (p *parser) parse(data []byte) (any, error) {
	if len(data) == 0 {
		return nil, errCut
	}
	c := cursor{rest: data[1:]}
	var m any
	switch data[0] {
	case 'B':
		final := c.lsn()
		when := timestamp(int64(c.lsn()))
		m = beginMessage{final, when, c.uint32()}
	case 'C':
		c.skip(1) // flags, unused
		commit, end := c.lsn(), c.lsn()
		c.skip(8)
		m = commitMessage{commit, end}
	case 'R':
		m = parseRelation(&c)
	case 'I':
		m = p.parseInsert(&c)
	case 'U', 'D':
		m = changeMessage{c.uint32()}
		c.rest = nil
	case 'T':
		m = parseTruncate(&c)
	case 'M':
		m = parseLogical(&c)
	case 'Y', 'O':
		m = otherMessage{}
		c.rest = nil
	default:
		return nil, fmt.Errorf("unknown message %q", data[0])
	}
	if c.err == nil && len(c.rest) > 0 {
		c.err = fmt.Errorf("%d bytes follow it", len(c.rest))
	}
	if c.err != nil {
		return nil, fmt.Errorf("message %q: %w", data[0], c.err)
	}
	return m, nil
}

func parseRelation(c *cursor) relationMessage {
	r := relationMessage{id: c.uint32()}
	r.name = name{c.text(), c.text()}
	c.skip(1) // replica identity
	for range c.uint16() {
		c.skip(1) // flags: part of the key
		col := relationColumn{c.text(), c.uint32()}
		c.skip(4) // type modifier
		if c.err != nil {
			break
		}
		r.columns = append(r.columns, col)
	}
	return r
}

func (p *parser) parseInsert(c *cursor) *insertMessage {
	p.insert.relation = c.uint32()
	p.insert.values = p.insert.values[:0]
	if kind := c.byte(); kind != 'N' && c.err == nil {
		c.err = fmt.Errorf("tuple of kind %q", kind)
	}
	for range c.uint16() {
		v := tupleValue{kind: c.byte()}
		switch v.kind {
		case tupleNull, tupleUnchanged:
		case tupleText, tupleBinary:
			v.data = c.bytes(int(c.uint32()))
		default:
			c.fail(fmt.Errorf("value of kind %q", v.kind))
		}
		if c.err != nil {
			break
		}
		p.insert.values = append(p.insert.values, v)
	}
	return &p.insert
}

func parseTruncate(c *cursor) truncateMessage {
	n := c.uint32()
	c.skip(1) // options
	var t truncateMessage
	for range n {
		id := c.uint32()
		if c.err != nil {
			break
		}
		t.relations = append(t.relations, id)
	}
	return t
}

func parseLogical(c *cursor) logicalMessage {
	m := logicalMessage{transactional: c.byte()&1 == 1}
	m.lsn = c.lsn()
	m.prefix = c.text()
	m.content = c.bytes(int(c.uint32()))
	return m
}

// cursor reads a message from its start. After an error it reads zeros.
type cursor struct {
	rest []byte
	err  error
}

func (c *cursor) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.rest = nil
}

// bytes returns the next n bytes, which is not nil for none.
func (c *cursor) bytes(n int) []byte {
	if c.err != nil || n < 0 || n > len(c.rest) {
		c.fail(errCut)
		return nil
	}
	b := c.rest[:n:n]
	c.rest = c.rest[n:]
	return b
}

func (c *cursor) skip(n int) { c.bytes(n) }

func (c *cursor) byte() byte {
	if b := c.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) uint16() uint16 {
	if b := c.bytes(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) uint32() uint32 {
	if b := c.bytes(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) lsn() pglogrepl.LSN {
	if b := c.bytes(8); b != nil {
		return pglogrepl.LSN(binary.BigEndian.Uint64(b))
	}
	return 0
}

// text reads up to a zero byte.
func (c *cursor) text() string {
	n := bytes.IndexByte(c.rest, 0)
	if n < 0 {
		c.fail(errCut)
		return ""
	}
	text := string(c.rest[:n])
	c.rest = c.rest[n+1:]
	return text
}

// extendXid adds the epoch to a transaction id as the log has it. near is one that was assigned
// at most 2^31 transactions before or after.
func extendXid(xid uint32, near uint64) uint64 {
	return near + uint64(int64(int32(xid-uint32(near))))
}
