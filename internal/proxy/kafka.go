package proxy

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// produceKey is the API key of produce requests.
	produceKey = 0
	// maxFrame is above what any client of ours sends or gets in one frame.
	maxFrame = 128 << 20
	// The bytes of a frame that are looked at: a request's API key, version and correlation
	// id, and an answer's correlation id.
	requestHeader, answerHeader = 8, 4
	// maxHeld bounds the answers of a connection that wait; a client has far fewer requests
	// in flight.
	maxHeld = 1024
)

// acks are the correlation ids of the produce requests of one connection.
type acks struct {
	mu  sync.Mutex
	ids map[uint32]struct{}
}

func (a *acks) expect(id uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ids == nil {
		a.ids = map[uint32]struct{}{}
	}
	a.ids[id] = struct{}{}
}

// take reports whether an answer is an acknowledgement.
func (a *acks) take(id uint32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.ids[id]
	delete(a.ids, id)
	return ok
}

// requests passes requests on, and notes those that produce.
func (l *link) requests(to, from net.Conn, acks *acks) {
	defer l.close()
	for {
		frame, err := readFrame(from, requestHeader)
		if err != nil {
			return
		}
		if binary.BigEndian.Uint16(frame[4:]) == produceKey {
			acks.expect(binary.BigEndian.Uint32(frame[8:]))
		}
		if !l.pass(to, frame) {
			return
		}
	}
}

// held is an answer and when it may go on.
type held struct {
	frame []byte
	due   time.Time
}

// answers passes answers on, acknowledgements after the delay.
func (l *link) answers(to, from net.Conn, acks *acks, delay *atomic.Int64) {
	defer l.close()
	queue := make(chan held, maxHeld)
	var writer sync.WaitGroup
	defer writer.Wait()
	defer close(queue)
	ended := make(chan struct{})
	defer close(ended)
	writer.Go(func() {
		defer l.close()
		for h := range queue {
			timer := time.NewTimer(time.Until(h.due))
			select {
			case <-timer.C:
			case <-ended: // nobody waits for it any more
				timer.Stop()
				return
			}
			if !l.pass(to, h.frame) {
				return
			}
		}
	})
	for {
		frame, err := readFrame(from, answerHeader)
		if err != nil {
			return
		}
		h := held{frame: frame, due: time.Now()}
		if acks.take(binary.BigEndian.Uint32(frame[4:])) {
			h.due = h.due.Add(time.Duration(delay.Load()))
		}
		select {
		case queue <- h:
		default:
			return // no client has so much in flight: end it rather than let it go wrong
		}
	}
}

// readFrame reads one frame with its length, which is at least the header's.
func readFrame(from io.Reader, header int) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if int(n) < header || n > maxFrame {
		return nil, io.ErrUnexpectedEOF
	}
	frame := make([]byte, 4+n)
	copy(frame, size[:])
	_, err := io.ReadFull(from, frame[4:])
	return frame, err
}
