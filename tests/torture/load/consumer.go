package load

import (
	"fmt"
	"math/rand"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"torture/history"
)

const (
	// barrierEvery so many acks a consumer publishes a message to its own queue. Its confirm proves the acks before it.
	barrierEvery  = 40
	consumerTag   = "torture"
	drainPrefetch = 200
	// quiet is how long a queue that says it is empty must give nothing.
	quiet = 1500 * time.Millisecond
	// stuckAfter: a queue that says that it has messages, and gives none for so long.
	stuckAfter = 45 * time.Second
)

// Consumer takes messages from a queue and acks them: one by one, several at once, or gives them back.
type Consumer struct {
	Load     *Load
	Who      int
	Node     int
	Queue    string
	Prefetch int
	// Breaks: now and then its connection ends with what it holds.
	Breaks bool
	number int64
	rand   *rand.Rand
}

// Run consumes until the load is over.
func (c *Consumer) Run() {
	defer c.Load.All.Done()
	c.rand = rand.New(rand.NewSource(int64(c.Who)))
	node := c.Node
	for number := 1; ; number++ {
		var deliveries <-chan amqp.Delivery
		s := c.Load.connect(node, func(s *session) error {
			if err := s.channel.Confirm(false); err != nil {
				return err
			}
			if err := s.channel.Qos(c.Prefetch, 0, false); err != nil {
				return err
			}
			var err error
			deliveries, err = s.channel.Consume(c.Queue, consumerTag, false, false, false, false, nil)
			return err
		})
		if s == nil {
			return
		}
		c.Load.Log.Add(history.Record{Kind: history.Open, Who: c.Who, Session: number, Node: s.node, Queue: c.Queue})
		reason := c.session(s, number, deliveries)
		c.Load.Log.Add(history.Record{Kind: history.Gone, Who: c.Who, Session: number, Node: s.node, Note: reason})
		node = s.node%len(c.Load.Hosts) + 1
	}
}

func (c *Consumer) session(s *session, number int, deliveries <-chan amqp.Delivery) string {
	log := c.Load.Log
	confirms := s.channel.NotifyPublish(make(chan amqp.Confirmation, 1024))
	cancelled := s.channel.NotifyCancel(make(chan string, 1))
	base, tag := c.number, uint64(0)
	open := map[uint64]*amqp.DeferredConfirmation{}
	acks := 0
	var unacked []uint64
	stop := c.Load.Stop
	var finish <-chan time.Time
	for {
		select {
		case err := <-s.broken:
			s.abandon()
			if err == nil {
				return "closed"
			}
			return err.Error()
		case <-cancelled:
			log.Add(history.Record{Kind: history.Cancelled, Who: c.Who, Session: number, Node: s.node, Queue: c.Queue})
			s.abandon()
			return "cancelled"
		case <-stop:
			// What it holds goes back; acks on their way get their proof.
			stop, finish = nil, time.After(3*time.Second)
		case <-finish:
			s.close()
			return "done"
		case confirmation, more := <-confirms:
			if more && open[confirmation.DeliveryTag] != nil {
				kind := history.Confirm
				if !open[confirmation.DeliveryTag].Acked() {
					kind = history.Refused
				}
				log.Add(history.Record{Kind: kind, Who: c.Who, Session: number, Number: base + int64(confirmation.DeliveryTag)})
			}
		case d, more := <-deliveries:
			if !more {
				deliveries = nil
				continue
			}
			record(log, c.Who, number, c.Queue, d)
			unacked = append(unacked, d.DeliveryTag)
			switch n := c.rand.Intn(1000); {
			case c.Breaks && n < 1:
				s.abandon()
				return "broken off"
			case n < 10:
				log.Add(history.Record{Kind: history.Requeue, Who: c.Who, Session: number, Tag: d.DeliveryTag})
				if d.Nack(false, true) != nil {
					continue
				}
				unacked = unacked[:len(unacked)-1]
			case n < 400 && len(unacked) < c.Prefetch/2:
				// Later, with others.
			default:
				tag, multiple := d.DeliveryTag, len(unacked) > 1
				log.Add(history.Record{Kind: history.Ack, Who: c.Who, Session: number, Tag: tag, Multiple: multiple})
				acks += len(unacked)
				unacked = unacked[:0]
				if d.Ack(multiple) != nil {
					continue
				}
			}
			if acks >= barrierEvery && stop != nil {
				acks = 0
				c.number++
				tag++
				content := body(c.Who, c.number, bodyBytesMin)
				log.Add(history.Record{Kind: history.Send, Who: c.Who, Session: number, Queue: c.Queue, Number: c.number, Sum: sum(content)})
				confirmation, err := s.publish("", c.Queue, false, content)
				if err != nil {
					s.abandon()
					return err.Error()
				}
				open[tag] = confirmation
			}
		}
	}
}

func record(log *history.Log, who, session int, queue string, d amqp.Delivery) {
	r := history.Record{Kind: history.Deliver, Who: who, Session: session, Queue: queue, Tag: d.DeliveryTag, Redelivered: d.Redelivered, Sum: sum(d.Body)}
	from, number, err := identify(d.Body)
	if err != nil {
		r.Note = err.Error()
	}
	r.From, r.Number = from, number
	log.Add(r)
}

// Drain reads a queue through a node until it is empty and says so. Everybody else has to be gone.
func (l *Load) Drain(who, node int, queue string, patience time.Duration) error {
	due := time.Now().Add(patience)
	for number := 1; ; number++ {
		err := l.drain(who, number, (node-1+number-1)%len(l.Hosts)+1, queue, due)
		if err == nil {
			l.Log.Add(history.Record{Kind: history.Drained, Queue: queue})
			return nil
		}
		if time.Now().After(due) {
			return err
		}
		time.Sleep(betweenDial)
	}
}

func (l *Load) drain(who, number, node int, queue string, due time.Time) error {
	s, err := l.dial(node)
	if err != nil {
		return err
	}
	defer s.close()
	looking, err := s.conn.Channel()
	if err != nil {
		return err
	}
	var deliveries <-chan amqp.Delivery
	err = s.within(func() error {
		if err := s.channel.Qos(drainPrefetch, 0, false); err != nil {
			return err
		}
		deliveries, err = s.channel.Consume(queue, consumerTag, false, false, false, false, nil)
		return err
	})
	if err != nil {
		return err
	}
	l.Log.Add(history.Record{Kind: history.Open, Who: who, Session: number, Node: node, Queue: queue})
	last := time.Now()
	for {
		select {
		case d, more := <-deliveries:
			if !more {
				return fmt.Errorf("%s: the consumer that reads it to its end is gone", queue)
			}
			last = time.Now()
			record(l.Log, who, number, queue, d)
			l.Log.Add(history.Record{Kind: history.Ack, Who: who, Session: number, Tag: d.DeliveryTag})
			if err := d.Ack(false); err != nil {
				return err
			}
		case <-time.After(quiet):
			var left int
			err := s.within(func() error {
				state, err := looking.QueueDeclarePassive(queue, true, false, false, false, nil)
				left = state.Messages
				return err
			})
			if err != nil {
				return err
			}
			if left == 0 && len(deliveries) == 0 {
				return nil
			}
			if time.Since(last) > stuckAfter {
				l.Log.Add(history.Record{Kind: history.Stuck, Queue: queue, Node: node, Note: fmt.Sprintf("%d messages, and none comes", left)})
				return fmt.Errorf("%s: %d messages, and none comes", queue, left)
			}
			if time.Now().After(due) {
				return fmt.Errorf("%s: %d messages after all that time", queue, left)
			}
		}
	}
}
