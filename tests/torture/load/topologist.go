package load

import (
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"torture/check"
	"torture/history"
)

// TopologyExchange is what the queues that come and go are bound to, each with its name as the key.
const TopologyExchange = "torture-topology"

// generationEvery is how long the same names are used: the search for an explanation is short that way.
const generationEvery = 6 * time.Second

// Names that are used at a time. Few, so that clients of all nodes meet.
const topologyNames = 3

// Topologist declares, binds and deletes queues over one node, and looks.
type Topologist struct {
	Load  *Load
	Who   int
	Node  int
	Began time.Time
	Every time.Duration
}

// Run goes on until the load is over.
func (t *Topologist) Run() {
	defer t.Load.All.Done()
	random := rand.New(rand.NewSource(int64(t.Who)))
	operations := []string{check.Declare, check.Declare, check.Delete, check.Exists, check.Exists, check.Bind, check.Bind, check.Unbind, check.Route, check.Route}
	node := t.Node
	for !t.Load.stopped() {
		s := t.Load.connect(node, func(s *session) error { return s.listen() })
		if s == nil {
			return
		}
		for !t.Load.stopped() {
			generation := int(time.Since(t.Began) / generationEvery)
			queue := fmt.Sprintf("topology-%d-%d-%d", t.Load.Round, generation, random.Intn(topologyNames))
			what := operations[random.Intn(len(operations))]
			start := t.Load.Log.Now()
			outcome, err := t.ask(s, what, queue)
			t.Load.Log.Add(history.Record{Kind: history.Op, Who: t.Who, Node: s.node, Queue: queue, What: what, Start: start, Note: outcome})
			if err != nil {
				if code(err) == amqp.NotFound || code(err) == amqp.InternalError {
					err = s.open()
					if err == nil {
						err = s.within(s.listen)
					}
				}
				if err != nil {
					break
				}
			}
			t.Load.pause(t.Every)
		}
		s.abandon()
		// The same node again: one that is cut off has to be asked as well.
	}
}

func (t *Topologist) ask(s *session, what, queue string) (string, error) {
	if what == check.Route {
		return t.route(s, queue)
	}
	err := s.within(func() error {
		var err error
		switch what {
		case check.Declare:
			_, err = s.channel.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		case check.Delete:
			_, err = s.channel.QueueDelete(queue, false, false, false)
		case check.Exists:
			_, err = s.channel.QueueDeclarePassive(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		case check.Bind:
			err = s.channel.QueueBind(queue, queue, TopologyExchange, false, nil)
		case check.Unbind:
			err = s.channel.QueueUnbind(queue, queue, TopologyExchange, nil)
		}
		return err
	})
	switch {
	case err == nil:
		return check.OK, nil
	case code(err) == amqp.NotFound && !strings.Contains(err.Error(), "inaccessible"):
		return check.Missing, err
	default:
		return check.Unknown, err
	}
}

func (t *Topologist) route(s *session, queue string) (string, error) {
	if _, err := s.publish(TopologyExchange, queue, true, body(t.Who, 0, bodyBytesMin)); err != nil {
		return check.Unknown, err
	}
	select {
	case confirmation, more := <-s.confirms:
		if !more {
			return check.Unknown, amqp.ErrClosed
		}
		if !confirmation.Ack {
			return check.Unknown, nil
		}
	case <-time.After(patience):
		return check.Unknown, errors.New("no confirm")
	}
	// It comes before the confirm.
	select {
	case <-s.returns:
		return check.Unrouted, nil
	default:
		return check.Routed, nil
	}
}

// listen makes a channel's confirms and returns known; the library keeps a listener as long as its channel.
func (s *session) listen() error {
	s.returns = s.channel.NotifyReturn(make(chan amqp.Return, 4))
	s.confirms = s.channel.NotifyPublish(make(chan amqp.Confirmation, 4))
	return s.channel.Confirm(false)
}

// Forget deletes what is left of a round's queues that came and went.
func (l *Load) Forget(generations int) error {
	s, err := l.dial(1)
	if err != nil {
		return err
	}
	defer s.close()
	for generation := 0; generation <= generations; generation++ {
		for name := 0; name < topologyNames; name++ {
			queue := fmt.Sprintf("topology-%d-%d-%d", l.Round, generation, name)
			err := s.within(func() error { _, err := s.channel.QueueDelete(queue, false, false, false); return err })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Generations is how many there are in so long a time.
func Generations(d time.Duration) int { return int(d / generationEvery) }
