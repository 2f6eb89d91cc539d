// Package history is what the clients of a torture saw, one JSON line for each thing.
//
// Invariant: a record of something a client does is written before it is done (publish, ack, the start of a request), one of something
// it saw after it was seen; so a history never promises more than the broker did.
package history

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// Kinds of records.
const (
	Open      = "open"      // client Who began Session on Node
	Gone      = "gone"      // its connection ended: Note says why
	Send      = "send"      // publisher Who: message Number goes to Queue (several with commas between) with the checksum Sum
	Confirm   = "confirm"   // message Number of publisher Who was confirmed
	Refused   = "refused"   // it was nacked
	Returned  = "returned"  // it was returned as not routable
	Deliver   = "deliver"   // consumer Who got message Number of publisher From out of Queue with delivery tag Tag
	Ack       = "ack"       // consumer Who acks Tag, with Multiple all up to it
	Requeue   = "requeue"   // consumer Who gives Tag back
	Cancelled = "cancelled" // consumer Who was cancelled by the broker
	Op        = "op"        // client Who did What to Queue between Start and At; Note is the outcome
	Fault     = "fault"     // What begins on Node
	Healed    = "healed"    // it is over
	CaughtUp  = "caughtup"  // every copy has what was committed when all nodes served again
	Drained   = "drained"   // Queue was read until it said that it is empty
	Stuck     = "stuck"     // Queue says that it has messages and gives none
	Silent    = "silent"    // publisher Who was never answered about Number messages although its connection lives
)

// Clients below Steady publish at a steady rate; others publish now and then, for a proof of what they acked.
const Steady = 1000

// Record is one line. Times are microseconds since the torture began.
type Record struct {
	At          int64  `json:"t"`
	Kind        string `json:"k"`
	Who         int    `json:"w,omitempty"`
	Session     int    `json:"s,omitempty"`
	Node        int    `json:"n,omitempty"`
	Queue       string `json:"q,omitempty"`
	From        int    `json:"p,omitempty"`
	Number      int64  `json:"m,omitempty"`
	Tag         uint64 `json:"g,omitempty"`
	Multiple    bool   `json:"u,omitempty"`
	Redelivered bool   `json:"r,omitempty"`
	Sum         uint32 `json:"c,omitempty"`
	Start       int64  `json:"a,omitempty"`
	What        string `json:"o,omitempty"`
	Note        string `json:"e,omitempty"`
}

// Queues are those that a message goes to.
func (r *Record) Queues() []string { return strings.Split(r.Queue, ",") }

// Log takes records from any goroutine.
type Log struct {
	began time.Time
	mu    sync.Mutex
	file  *os.File
	out   *bufio.Writer
	err   error
}

// Create begins a history in a new file.
func Create(path string, began time.Time) (*Log, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &Log{began: began, file: file, out: bufio.NewWriterSize(file, 1<<20)}, nil
}

// Now is the time of a record that is made now.
func (l *Log) Now() int64 { return time.Since(l.began).Microseconds() }

// Add writes a record, with the present time unless it has one.
func (l *Log) Add(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.At == 0 {
		r.At = l.Now()
	}
	line, err := json.Marshal(&r)
	if err == nil {
		_, err = l.out.Write(append(line, '\n'))
	}
	if l.err == nil {
		l.err = err
	}
}

// Close ends the history, and says whether all of it was written.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.out.Flush(); l.err == nil {
		l.err = err
	}
	if err := l.file.Close(); l.err == nil {
		l.err = err
	}
	return l.err
}

// Read calls each with every record of a history, in its order.
func Read(in io.Reader, each func(*Record) error) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 1<<16), 1<<20)
	for number := 1; lines.Scan(); number++ {
		var r Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		if err := each(&r); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	return lines.Err()
}
