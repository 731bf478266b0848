package main

import (
	"errors"
	"fmt"
	"io"
	"sync"
)

// output is standard output. It remembers the first write that failed, since printing
// functions ignore that, and a script that reads half an answer must see a failure.
type output struct {
	w io.Writer
	// closed: the process was started with standard output closed.
	closed bool

	mu    sync.Mutex
	err   error
	wrote bool
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wrote = true
	if err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}

// failure returns why what was written did not arrive.
func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.err != nil:
		return fmt.Errorf("writing to standard output: %w", o.err)
	case o.closed && o.wrote:
		return errors.New("writing to standard output: it is closed")
	}
	return nil
}
