package check

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"torture/history"
)

const second = 1_000_000

// good is a history in which everything is as it should be: publisher 1 sent six messages to q and lost its connection, consumer 1000 held
// some, and another one read the rest.
func good() []history.Record {
	send := func(t, n int64) history.Record {
		return history.Record{At: t, Kind: history.Send, Who: 1, Session: 1, Queue: "q", Number: n, Sum: uint32(n + 1)}
	}
	answer := func(t int64, kind string, n int64) history.Record {
		return history.Record{At: t, Kind: kind, Who: 1, Session: 1, Number: n}
	}
	deliver := func(t int64, who int, tag uint64, n int64, again bool) history.Record {
		return history.Record{At: t, Kind: history.Deliver, Who: who, Session: 1, Queue: "q", Tag: tag, From: 1, Number: n, Sum: uint32(n + 1), Redelivered: again}
	}
	operation := func(start, end int64, what, outcome string) history.Record {
		return history.Record{At: end, Kind: history.Op, Who: 3000, Queue: "t", What: what, Start: start, Note: outcome}
	}
	return []history.Record{
		{At: 1, Kind: history.Open, Who: 1, Session: 1, Node: 1},
		send(10, 1), send(11, 2), send(12, 3), send(13, 4), send(14, 5), send(15, 6),
		answer(20, history.Confirm, 1), answer(21, history.Confirm, 2), answer(22, history.Refused, 3), answer(23, history.Confirm, 4),
		deliver(30, 1000, 1, 1, false), deliver(31, 1000, 2, 2, false), deliver(32, 1000, 3, 4, false),
		{At: 40, Kind: history.Ack, Who: 1000, Session: 1, Tag: 2, Multiple: true},
		{At: 41, Kind: history.Send, Who: 1000, Session: 1, Queue: "q", Number: 1, Sum: 9},
		{At: 42, Kind: history.Confirm, Who: 1000, Session: 1, Number: 1},
		{At: 43, Kind: history.Gone, Who: 1000, Session: 1},
		deliver(50, 2000, 1, 4, true), deliver(51, 2000, 2, 5, false),
		{At: 52, Kind: history.Deliver, Who: 2000, Session: 1, Queue: "q", Tag: 3, From: 1000, Number: 1, Sum: 9},
		{At: 60, Kind: history.Drained, Queue: "q"},
		operation(1, 2, Declare, OK), operation(3, 4, Bind, OK), operation(5, 6, Route, Routed), operation(7, 8, Delete, Unknown),
		operation(9, 10, Exists, OK), operation(11, 12, Exists, Missing), operation(13, 14, Route, Unrouted), operation(15, 16, Bind, Missing),
	}
}

func verdictOf(t *testing.T, records []history.Record) *Verdict {
	t.Helper()
	var lines strings.Builder
	for _, record := range records {
		line, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(append(line, '\n'))
	}
	verdict, err := History(strings.NewReader(lines.String()))
	if err != nil {
		t.Fatal(err)
	}
	return verdict
}

func TestGoodHistoryIsGood(t *testing.T) {
	verdict := verdictOf(t, good())
	if len(verdict.Violations) > 0 {
		t.Fatal(verdict.Violations)
	}
	wanted := Counts{Sent: 7, Confirmed: 4, Refused: 1, Unknown: 2, Delivered: 6, Redelivered: 1, Proven: 2, Sessions: 1, Operations: 8}
	if verdict.Counts != wanted {
		t.Fatalf("%+v", verdict.Counts)
	}
}

func TestEachBrokenPromiseIsFoundInADoctoredHistory(t *testing.T) {
	is := func(r *history.Record, kind string, who int, number int64) bool {
		return r.Kind == kind && r.Who == who && r.Number == number
	}
	without := func(kind string, who int, number int64) func([]history.Record) []history.Record {
		return func(all []history.Record) (out []history.Record) {
			for _, r := range all {
				if !is(&r, kind, who, number) {
					out = append(out, r)
				}
			}
			return out
		}
	}
	changed := func(kind string, who int, number int64, change func(*history.Record)) func([]history.Record) []history.Record {
		return func(all []history.Record) []history.Record {
			for at := range all {
				if is(&all[at], kind, who, number) {
					change(&all[at])
				}
			}
			return all
		}
	}
	also := func(more ...history.Record) func([]history.Record) []history.Record {
		return func(all []history.Record) []history.Record { return append(all, more...) }
	}
	again := history.Record{At: 55, Kind: history.Deliver, Who: 2000, Session: 1, Queue: "q", Tag: 4, From: 1, Number: 1, Sum: 2, Redelivered: true}
	on := func(queue string, start, end int64, what, outcome string) history.Record {
		return history.Record{At: end, Kind: history.Op, Who: 3001, Queue: queue, What: what, Start: start, Note: outcome}
	}
	operation := func(start, end int64, what, outcome string) history.Record { return on("t", start, end, what, outcome) }
	for name, c := range map[string]struct {
		doctor func([]history.Record) []history.Record
		kinds  map[string]int
	}{
		"a confirmed message that nobody got": {
			func(all []history.Record) []history.Record {
				return without(history.Deliver, 1000, 4)(without(history.Deliver, 2000, 4)(all))
			}, map[string]int{Lost: 1},
		},
		"a message without an answer before one that came": {
			func(all []history.Record) []history.Record {
				return append(all,
					history.Record{At: 57, Kind: history.Deliver, Who: 2000, Session: 1, Queue: "q", Tag: 4, From: 1, Number: 6, Sum: 7},
					history.Record{At: 16, Kind: history.Send, Who: 1, Session: 1, Queue: "q", Number: 7, Sum: 8},
					history.Record{At: 16, Kind: history.Send, Who: 1, Session: 1, Queue: "q", Number: 8, Sum: 9},
					history.Record{At: 58, Kind: history.Deliver, Who: 2000, Session: 1, Queue: "q", Tag: 5, From: 1, Number: 8, Sum: 9})
			}, map[string]int{Gap: 1},
		},
		"first deliveries out of order": {
			func(all []history.Record) []history.Record {
				for at := range all {
					if all[at].Kind == history.Deliver && all[at].Who == 1000 && all[at].Number == 1 {
						all[at], all[at+1] = all[at+1], all[at]
						break
					}
				}
				return all
			}, map[string]int{Disorder: 1},
		},
		"delivered again without the flag": {
			changed(history.Deliver, 2000, 4, func(r *history.Record) { r.Redelivered = false }), map[string]int{Unflagged: 1},
		},
		"delivered again after its ack was proven": {also(again), map[string]int{Undone: 1}},
		"what nobody published": {
			also(history.Record{At: 55, Kind: history.Deliver, Who: 2000, Session: 1, Queue: "q", Tag: 4, From: 1, Number: 70, Sum: 2}), map[string]int{Invented: 1},
		},
		"out of a queue that it was not published to": {
			also(history.Record{At: 55, Kind: history.Deliver, Who: 2000, Session: 2, Queue: "other", Tag: 1, From: 1, Number: 1, Sum: 2}), map[string]int{Invented: 1},
		},
		"other bytes":                  {changed(history.Deliver, 2000, 5, func(r *history.Record) { r.Sum++ }), map[string]int{Damaged: 1}},
		"two answers":                  {also(history.Record{At: 24, Kind: history.Refused, Who: 1, Session: 1, Number: 4}), map[string]int{Answer: 1}},
		"an answer without a question": {also(history.Record{At: 24, Kind: history.Confirm, Who: 1, Session: 1, Number: 44}), map[string]int{Answer: 1}},
		"no answer":                    {also(history.Record{At: 24, Kind: history.Silent, Who: 1, Session: 1, Number: 3}), map[string]int{Unanswered: 1}},
		"a queue that gives nothing":   {also(history.Record{At: 24, Kind: history.Stuck, Queue: "q"}), map[string]int{Stuck: 1}},
		"a queue that was not read": {
			func(all []history.Record) []history.Record {
				return append(all, history.Record{At: 70, Kind: history.Send, Who: 1, Session: 1, Queue: "unread", Number: 9, Sum: 1})
			}, map[string]int{Unread: 1},
		},
		"a queue that is back after it was seen to be gone": {also(operation(17, 18, Exists, OK)), map[string]int{Topology: 1}},
		"a queue that is gone by itself":                    {also(operation(3, 4, Exists, Missing)), map[string]int{Topology: 1}},
		"a binding that another node does not know":         {also(operation(5, 6, Route, Unrouted)), map[string]int{Stale: 1}},
		"a binding of a queue that was deleted": {
			also(on("u", 1, 2, Declare, OK), on("u", 3, 4, Delete, OK), on("u", 5, 6, Bind, OK)), map[string]int{Topology: 1},
		},
		"a binding that outlives its queue":                   {also(operation(17, 18, Route, Routed)), map[string]int{Stale: 1}},
		"a queue that was declared and cannot be bound after": {also(operation(17, 18, Declare, OK), operation(19, 20, Bind, Missing)), map[string]int{Topology: 1}},
		"a queue that nobody declared is there": {
			also(history.Record{At: 18, Kind: history.Op, Who: 3001, Queue: "other", What: Exists, Start: 17, Note: OK}), map[string]int{Topology: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := verdictOf(t, c.doctor(good())); !reflect.DeepEqual(got.Totals, c.kinds) {
				t.Fatalf("%v, wanted %v: %v", got.Totals, c.kinds, got.Violations)
			}
		})
	}
}

func TestWhatWasRefusedMayComeOrNot(t *testing.T) {
	came := append(good(), history.Record{At: 55, Kind: history.Deliver, Who: 2000, Session: 1, Queue: "q", Tag: 4, From: 1, Number: 3, Sum: 4, Redelivered: true})
	if verdict := verdictOf(t, came); len(verdict.Violations) > 0 {
		t.Fatal(verdict.Violations)
	}
}

func TestAnAckWithoutProofMayBeLost(t *testing.T) {
	all := append(good(), history.Record{At: 53, Kind: history.Ack, Who: 2000, Session: 1, Tag: 2},
		history.Record{At: 55, Kind: history.Deliver, Who: 2001, Session: 1, Queue: "q", Tag: 1, From: 1, Number: 5, Sum: 6, Redelivered: true})
	verdict := verdictOf(t, all)
	if len(verdict.Violations) > 0 || verdict.Counts.AckedAgain != 1 {
		t.Fatal(verdict)
	}
}

func TestPausesAreThoseOfTheFaultTheyOverlap(t *testing.T) {
	confirm := func(t, n int64, who int) history.Record {
		return history.Record{At: t, Kind: history.Confirm, Who: who, Session: 1, Number: n}
	}
	records := []history.Record{
		{At: 1, Kind: history.Open, Who: 1, Session: 1, Node: 1}, {At: 1, Kind: history.Open, Who: 2, Session: 1, Node: 2},
		confirm(1*second, 1, 1), confirm(3*second, 1, 2), confirm(4*second-1000, 2, 1),
		{At: 4 * second, Kind: history.Fault, Node: 1, What: "kill"},
		confirm(5*second, 2, 2), confirm(6*second, 3, 2),
		{At: 7 * second, Kind: history.Healed, Node: 1, What: "kill"},
		{At: 8 * second, Kind: history.Open, Who: 1, Session: 2, Node: 2},
		confirm(9*second, 3, 1), confirm(30*second, 4, 2),
		// Its last confirm before the next fault came a moment earlier.
		confirm(40*second-1000, 5, 2),
		{At: 40 * second, Kind: history.Fault, Node: 2, What: "stop"},
		confirm(43*second, 6, 2),
	}
	waits := NewWaits()
	for at := range records {
		waits.Add(&records[at])
	}
	wanted := []Pauses{
		{Class: "kill", Times: 1, All: []int64{21 * second}, Elsewhere: []int64{24 * second}, There: []int64{5 * second}},
		{Class: "stop", Times: 1, All: []int64{3 * second}, Elsewhere: []int64{0}, There: []int64{3 * second}},
	}
	if got := waits.Finish(); !reflect.DeepEqual(got, wanted) {
		t.Fatalf("%+v", got)
	}
}
