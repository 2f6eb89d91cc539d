// Is there an order of the declares, binds and deletes that explains every answer? Porcupine looks for it.
//
// Invariant: a request without an answer may have taken effect at any moment after it was made, or never.

package check

import (
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"

	"torture/history"
)

// Outcomes of an operation.
const (
	OK       = "ok"
	Missing  = "404"
	Routed   = "routed"
	Unrouted = "unrouted"
	Unknown  = "unknown"
)

// Operations on a queue and on its binding to the exchange of the torture.
const (
	Declare = "declare"
	Delete  = "delete"
	Exists  = "exists"
	Bind    = "bind"
	Unbind  = "unbind"
	Route   = "route" // a mandatory publish: is it returned?
)

type queueState struct{ exists, bound bool }

type input struct{ queue, what string }

var model = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		byQueue := map[string][]porcupine.Operation{}
		var names []string
		for _, operation := range all {
			name := operation.Input.(input).queue
			if byQueue[name] == nil {
				names = append(names, name)
			}
			byQueue[name] = append(byQueue[name], operation)
		}
		sort.Strings(names)
		out := make([][]porcupine.Operation, 0, len(names))
		for _, name := range names {
			out = append(out, byQueue[name])
		}
		return out
	},
	Init: func() any { return queueState{} },
	Step: func(state, in, out any) (bool, any) { return step(state.(queueState), in.(input).what, out.(string)) },
	DescribeOperation: func(in, out any) string {
		return fmt.Sprintf("%s %s: %s", in.(input).what, in.(input).queue, out)
	},
}

func step(s queueState, what, outcome string) (bool, queueState) {
	switch what {
	case Declare:
		return true, queueState{true, s.bound}
	case Delete:
		// A queue that is not there is deleted without a word.
		return true, queueState{}
	case Exists:
		return (outcome == OK) == s.exists, s
	case Route:
		return (outcome == Routed) == s.bound, s
	case Bind:
		if outcome == Missing {
			return !s.exists, s
		}
		if outcome == OK && !s.exists {
			return false, s
		}
		return true, queueState{s.exists, s.exists}
	case Unbind:
		if outcome == Missing {
			return !s.exists, s
		}
		return true, queueState{s.exists, false}
	}
	return false, s
}

// Queues judges operations on queues and bindings.
type Queues struct {
	operations []porcupine.Operation
	// Violations, one for each queue whose answers nothing explains.
	Violations []Violation
	// Undecided counts queues for which the search took too long.
	Undecided int
}

// Add takes the next record.
func (q *Queues) Add(r *history.Record) {
	if r.Kind != history.Op {
		return
	}
	until := r.At
	if r.Note == Unknown {
		if r.What == Exists || r.What == Route {
			return
		}
		until = math.MaxInt64
	}
	q.operations = append(q.operations, porcupine.Operation{
		ClientId: r.Who, Input: input{r.Queue, r.What}, Call: r.Start, Output: r.Note, Return: until,
	})
}

// Finish judges them all, each queue for at most `patience`.
func (q *Queues) Finish(patience time.Duration) {
	for _, operations := range model.Partition(q.operations) {
		name := operations[0].Input.(input).queue
		switch porcupine.CheckOperationsTimeout(model, operations, patience) {
		case porcupine.Illegal:
			kind := Topology
			if porcupine.CheckOperationsTimeout(model, older(operations), patience) == porcupine.Ok {
				kind = Stale
			}
			q.Violations = append(q.Violations, Violation{kind, name + ": " + shortest(operations, patience)})
		case porcupine.Unknown:
			q.Undecided++
		}
	}
}

// older lets every publish have been routed by any earlier state than the one at the time.
func older(operations []porcupine.Operation) []porcupine.Operation {
	out := append([]porcupine.Operation(nil), operations...)
	for at := range out {
		if out[at].Input.(input).what == Route {
			out[at].Call = 0
		}
	}
	return out
}

// shortest describes the operations up to the first answer that nothing explains.
func shortest(operations []porcupine.Operation, patience time.Duration) string {
	sort.SliceStable(operations, func(a, b int) bool { return operations[a].Return < operations[b].Return })
	for length := 1; length <= len(operations); length++ {
		limit := operations[length-1].Return
		var begun []porcupine.Operation
		for at, operation := range operations {
			if at < length {
				begun = append(begun, operation)
			} else if operation.Call <= limit && operation.Input.(input).what != Exists && operation.Input.(input).what != Route {
				// It had begun, and its answer had not come yet.
				operation.Return, operation.Output = math.MaxInt64, Unknown
				begun = append(begun, operation)
			}
		}
		if porcupine.CheckOperationsTimeout(model, begun, patience) != porcupine.Illegal {
			continue
		}
		text := ""
		from := max(0, length-8)
		for _, operation := range begun[from:] {
			until := "…"
			if operation.Return != math.MaxInt64 {
				until = at(operation.Return)
			}
			text += fmt.Sprintf("[client %d %s..%s %s %s] ", operation.ClientId, at(operation.Call), until, operation.Input.(input).what, operation.Output)
		}
		return text
	}
	return "no prefix of it is illegal"
}
