// How long did publishers wait for a confirm, and under which fault?
//
// Invariant: a pause counts for one fault, the last that had begun when it began.

package check

import (
	"sort"

	"torture/history"
)

// rhythm is longer than a publisher waits for a confirm while nothing happens: a pause that begins so shortly before a fault is its doing.
const rhythm = 250_000

// Pauses are the longest waits of one fault, or of the worst of several, in microseconds.
type Pauses struct {
	Class string
	Times int
	// All: nobody was confirmed anything. Elsewhere: a publisher on another node than the fault's. There: on that node.
	All, Elsewhere, There []int64
}

type window struct {
	class            string
	node             int
	begin, end       int64
	all              int64
	there, elsewhere int64
}

type pace struct {
	node    int
	last    int64
	nodeOld int
}

// Waits measures pauses.
type Waits struct {
	windows    []*window
	publishers map[int]*pace
	last       int64
}

// NewWaits knows of nothing yet.
func NewWaits() *Waits { return &Waits{publishers: map[int]*pace{}} }

// Add takes the next record.
func (w *Waits) Add(r *history.Record) {
	switch r.Kind {
	case history.Fault:
		w.windows = append(w.windows, &window{class: r.What, node: r.Node, begin: r.At})
	case history.Open:
		if p := w.publishers[r.Who]; p != nil {
			p.node = r.Node
		} else {
			w.publishers[r.Who] = &pace{node: r.Node, nodeOld: r.Node}
		}
	case history.Confirm:
		p := w.publishers[r.Who]
		if p == nil || r.Who >= history.Steady {
			return
		}
		if p.last > 0 {
			w.pause(p.last, r.At, p.nodeOld, false)
		}
		p.last, p.nodeOld = r.At, p.node
		if w.last > 0 {
			w.pause(w.last, r.At, 0, true)
		}
		w.last = r.At
	}
}

func (w *Waits) pause(from, until int64, node int, all bool) {
	var owner *window
	for _, each := range w.windows {
		if each.begin <= from+rhythm && each.begin <= until {
			owner = each
		}
	}
	if owner == nil {
		return
	}
	took := until - max(from, owner.begin)
	switch {
	case all:
		owner.all = max(owner.all, took)
	case owner.node == node || owner.node == 0:
		owner.there = max(owner.there, took)
	default:
		owner.elsewhere = max(owner.elsewhere, took)
	}
}

// Finish gives the pauses of each class.
func (w *Waits) Finish() []Pauses {
	byClass := map[string]*Pauses{}
	for _, each := range w.windows {
		p := byClass[each.class]
		if p == nil {
			p = &Pauses{Class: each.class}
			byClass[each.class] = p
		}
		p.Times++
		p.All, p.Elsewhere, p.There = append(p.All, each.all), append(p.Elsewhere, each.elsewhere), append(p.There, each.there)
	}
	out := make([]Pauses, 0, len(byClass))
	for _, p := range byClass {
		for _, list := range [][]int64{p.All, p.Elsewhere, p.There} {
			sort.Slice(list, func(a, b int) bool { return list[a] < list[b] })
		}
		out = append(out, *p)
	}
	sort.Slice(out, func(a, b int) bool { return out[a].Class < out[b].Class })
	return out
}
