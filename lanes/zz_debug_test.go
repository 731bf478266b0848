package lanes

import (
	"fmt"
	"os"
)

func init() {
	if os.Getenv("SIMDEBUG") == "" {
		return
	}
	debugDump = func(s *simulation) {
		fmt.Printf("plan %+v\nfloor at %d top %d held %v aside %v marks %v born %v\n", s.plan, s.engine.floor.at, s.engine.floor.top, s.engine.floor.held, s.engine.floor.aside, s.engine.floor.marks, s.engine.floor.born)
		stuck := s.stuck()
		for _, r := range s.table.rows {
			fmt.Printf("row %d lane %d topic %s key %q size %d flaw %+v stuck %v known %v committed %v place %d\n", r.ID, r.Lane, r.Topic, r.Key, r.Size(), r.flaw, stuck[r], s.engine.known[r.ID], r.committed, r.place)
		}
		for p, w := range s.engine.parts {
			fmt.Printf("part %v %+v\n", p, *w)
		}
		for i := range s.engine.lanes {
			l := &s.engine.lanes[i]
			fmt.Printf("lane %d own %d waiting %d run %d left %d\n", i, l.ownership, l.waiting(), len(l.run), l.left)
		}
		fmt.Printf("stats %+v\nnow %v next %v calm %v ending %v stopping %v reading %v snapshot %+v readFails %d careful %v\n", s.engine.Stats(s.now), s.now, s.next, s.calm, s.ending, s.stopping, s.engine.reading, s.table.snapshot(), s.engine.readFails, s.engine.careful)
	}
}

var debugDump func(*simulation)
