// Package check judges a history: did the broker keep its word?
//
// Invariant: it knows nothing but the records. It shares no code with the clients that wrote them but the form of a record.
package check

import (
	"fmt"
	"sort"

	"torture/history"
)

// Violation is a broken promise.
type Violation struct {
	Kind string
	Text string
}

// Kinds of violations.
const (
	Lost       = "lost"       // confirmed, and delivered to nobody although its queue was read to its end
	Gap        = "gap"        // an earlier message of the same session and queue never came, and nobody refused it
	Disorder   = "disorder"   // first deliveries of one session and queue came to one consumer out of order
	Unflagged  = "unflagged"  // delivered again without saying redelivered
	Undone     = "undone"     // delivered again after a later confirm had proved its ack
	Invented   = "invented"   // nobody published it, or not there
	Damaged    = "damaged"    // its bytes are not those that were published
	Answer     = "answer"     // a confirm or a refusal of what was not published, or two answers that contradict each other
	Unanswered = "unanswered" // a connection that lives, and no answer
	Stuck      = "stuck"      // a queue that has messages and gives none
	Unread     = "unread"     // the history ends without having read a queue to its end
	Topology   = "topology"   // answers about queues and bindings that no order of events explains
	Stale      = "stale"      // the same, but for publishes that were routed by an older state: a node that had lost the others
)

type sent struct {
	session int
	queues  []string
	sum     uint32
	at      int64
	answer  string
}

type copyID struct {
	from   int
	number int64
	queue  string
}

type copyState struct {
	times    int
	held     bool // somebody acked it, at least once
	provenAt int64
}

type sessionID struct{ who, session int }

type delivery struct {
	copy  copyID
	acked bool
	gone  bool
}

// holder is a consumer's session: what it was given, what it acked, and what a confirm will prove.
type holder struct {
	given   []delivery // by tag, from 1
	settled int        // tags up to here are settled, for `multiple`
	pending []copyID   // acked, and not yet before a publish
	waiting map[int64][]copyID
	last    map[orderID]int64
}

type orderID struct {
	from, session int
	queue         string
}

// Counts sums a history up.
type Counts struct {
	Sent, Confirmed, Refused, Unknown  int
	Delivered, Redelivered, AckedAgain int
	Proven                             int
	Sessions, Cancelled, Operations    int
}

// Messages judges what was published, delivered and acknowledged.
type Messages struct {
	Counts     Counts
	Violations []Violation
	sent       map[int]map[int64]*sent
	copies     map[copyID]*copyState
	holders    map[sessionID]*holder
	queues     map[string]bool
	drained    map[string]bool
	wholly     map[string]int // violations by kind, all of them
}

// violationsMax is how many of a kind are told; all are counted.
const violationsMax = 20

// NewMessages knows of nothing yet.
func NewMessages() *Messages {
	return &Messages{
		sent: map[int]map[int64]*sent{}, copies: map[copyID]*copyState{}, holders: map[sessionID]*holder{},
		queues: map[string]bool{}, drained: map[string]bool{}, wholly: map[string]int{},
	}
}

func (m *Messages) broken(kind, format string, arguments ...any) {
	m.wholly[kind]++
	if m.wholly[kind] <= violationsMax {
		m.Violations = append(m.Violations, Violation{kind, fmt.Sprintf(format, arguments...)})
	}
}

// Totals are the violations by kind.
func (m *Messages) Totals() map[string]int { return m.wholly }

func (m *Messages) holder(r *history.Record) *holder {
	id := sessionID{r.Who, r.Session}
	if m.holders[id] == nil {
		m.holders[id] = &holder{waiting: map[int64][]copyID{}, last: map[orderID]int64{}}
	}
	return m.holders[id]
}

// Add takes the next record.
func (m *Messages) Add(r *history.Record) {
	switch r.Kind {
	case history.Open:
		m.Counts.Sessions++
	case history.Send:
		m.send(r)
	case history.Confirm, history.Refused, history.Returned:
		m.answer(r)
	case history.Deliver:
		m.deliver(r)
	case history.Ack:
		m.ack(r)
	case history.Requeue:
		h := m.holder(r)
		if int(r.Tag) <= len(h.given) && r.Tag > 0 {
			h.given[r.Tag-1].gone = true
		}
	case history.Cancelled:
		m.Counts.Cancelled++
	case history.Drained:
		m.drained[r.Queue] = true
	case history.Stuck:
		m.broken(Stuck, "%s at %s: %s", r.Queue, at(r.At), r.Note)
	case history.Silent:
		m.broken(Unanswered, "publisher %d, session %d at %s: %d messages", r.Who, r.Session, at(r.At), r.Number)
	case history.Op:
		m.Counts.Operations++
	}
}

func (m *Messages) send(r *history.Record) {
	if m.sent[r.Who] == nil {
		m.sent[r.Who] = map[int64]*sent{}
	}
	queues := r.Queues()
	m.sent[r.Who][r.Number] = &sent{session: r.Session, queues: queues, sum: r.Sum, at: r.At}
	for _, queue := range queues {
		m.queues[queue] = true
	}
	m.Counts.Sent++
	// A publisher may be a consumer as well. What it acked before this publish is proven with the confirm.
	if h := m.holders[sessionID{r.Who, r.Session}]; h != nil {
		h.waiting[r.Number] = h.pending
		h.pending = nil
	}
}

func (m *Messages) answer(r *history.Record) {
	message := m.sent[r.Who][r.Number]
	if message == nil {
		m.broken(Answer, "publisher %d, message %d at %s: %s, and it was not published", r.Who, r.Number, at(r.At), r.Kind)
		return
	}
	if r.Kind == history.Returned {
		// The confirm follows, and means nothing.
		message.answer = r.Kind
		return
	}
	if message.answer == history.Returned {
		return
	}
	if message.answer != "" {
		m.broken(Answer, "publisher %d, message %d at %s: %s after %s", r.Who, r.Number, at(r.At), r.Kind, message.answer)
	}
	message.answer = r.Kind
	h := m.holders[sessionID{r.Who, message.session}]
	if h == nil {
		return
	}
	if r.Kind == history.Confirm {
		for _, id := range h.waiting[r.Number] {
			m.copies[id].provenAt = r.At
			m.Counts.Proven++
		}
	}
	delete(h.waiting, r.Number)
}

func (m *Messages) deliver(r *history.Record) {
	m.Counts.Delivered++
	if r.Redelivered {
		m.Counts.Redelivered++
	}
	id := copyID{r.From, r.Number, r.Queue}
	h := m.holder(r)
	for len(h.given) < int(r.Tag) {
		h.given = append(h.given, delivery{gone: true})
	}
	if r.Tag > 0 {
		h.given[r.Tag-1] = delivery{copy: id}
	}
	message := m.sent[r.From][r.Number]
	if message == nil || !contains(message.queues, r.Queue) {
		m.broken(Invented, "%v at %s", id, at(r.At))
		return
	}
	if message.sum != r.Sum {
		m.broken(Damaged, "%v at %s", id, at(r.At))
	}
	state := m.copies[id]
	if state == nil {
		state = &copyState{}
		m.copies[id] = state
	}
	state.times++
	if state.times > 1 && !r.Redelivered {
		m.broken(Unflagged, "%v at %s to client %d: it was delivered %d times before", id, at(r.At), r.Who, state.times-1)
	}
	if state.provenAt > 0 {
		m.broken(Undone, "%v at %s to client %d: its ack was proven at %s", id, at(r.At), r.Who, at(state.provenAt))
	} else if state.held {
		m.Counts.AckedAgain++
	}
	if !r.Redelivered {
		order := orderID{r.From, message.session, r.Queue}
		if last, ok := h.last[order]; ok && last > r.Number {
			m.broken(Disorder, "%v at %s to client %d: %d came before", id, at(r.At), r.Who, last)
		}
		h.last[order] = r.Number
	}
}

func (m *Messages) ack(r *history.Record) {
	h := m.holder(r)
	first := int(r.Tag)
	if r.Multiple {
		first = h.settled + 1
		h.settled = int(r.Tag)
	}
	for tag := first; tag <= int(r.Tag) && tag >= 1 && tag <= len(h.given); tag++ {
		given := &h.given[tag-1]
		if given.acked || given.gone {
			continue
		}
		given.acked = true
		if state := m.copies[given.copy]; state != nil {
			state.held = true
			h.pending = append(h.pending, given.copy)
		}
	}
}

// Finish judges what can only be judged at the end.
func (m *Messages) Finish() {
	for queue := range m.queues {
		if !m.drained[queue] {
			m.broken(Unread, "%s", queue)
		}
	}
	for who, messages := range m.sent {
		numbers := make([]int64, 0, len(messages))
		for number := range messages {
			numbers = append(numbers, number)
		}
		sort.Slice(numbers, func(a, b int) bool { return numbers[a] > numbers[b] })
		// From the last to the first: whether a later one of the same session came.
		later := map[orderID]int64{}
		for _, number := range numbers {
			message := messages[number]
			switch message.answer {
			case history.Confirm:
				m.Counts.Confirmed++
			case history.Refused:
				m.Counts.Refused++
			case "":
				m.Counts.Unknown++
			}
			for _, queue := range message.queues {
				order := orderID{who, message.session, queue}
				if state := m.copies[copyID{who, number, queue}]; state != nil {
					later[order] = number
					continue
				}
				if !m.drained[queue] {
					continue
				}
				if message.answer == history.Confirm {
					m.broken(Lost, "%v, sent at %s", copyID{who, number, queue}, at(message.at))
				} else if next, came := later[order]; came && message.answer == "" {
					m.broken(Gap, "%v, sent at %s: %d of the same session came", copyID{who, number, queue}, at(message.at), next)
				}
			}
		}
	}
}

func contains(all []string, one string) bool {
	for _, each := range all {
		if each == one {
			return true
		}
	}
	return false
}

func at(microseconds int64) string { return fmt.Sprintf("%.3fs", float64(microseconds)/1e6) }
