package check

import (
	"io"
	"time"

	"torture/history"
)

// searchMax is how long the search for an order of one queue's answers may take.
const searchMax = 10 * time.Second

// Verdict is what a history says.
type Verdict struct {
	Counts     Counts
	Totals     map[string]int
	Violations []Violation
	Undecided  int
	Pauses     []Pauses
}

// History judges a history.
func History(in io.Reader) (*Verdict, error) {
	messages, queues, waits := NewMessages(), &Queues{}, NewWaits()
	err := history.Read(in, func(r *history.Record) error {
		messages.Add(r)
		queues.Add(r)
		waits.Add(r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	messages.Finish()
	queues.Finish(searchMax)
	totals := messages.Totals()
	for _, violation := range queues.Violations {
		totals[violation.Kind]++
	}
	return &Verdict{
		Counts: messages.Counts, Totals: totals, Violations: append(messages.Violations, queues.Violations...),
		Undecided: queues.Undecided, Pauses: waits.Finish(),
	}, nil
}

// Broken counts the violations that no broker may show. A node that had lost the others and did not know it yet may show an older state to
// who looks: that is told and counted, and no promise.
func Broken(totals map[string]int) int {
	broken := 0
	for kind, times := range totals {
		if kind != Stale {
			broken += times
		}
	}
	return broken
}
