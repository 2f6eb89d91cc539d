package load

import (
	"context"
	"math/rand"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"torture/history"
)

// unconfirmedMax is how many publishes a publisher leaves unanswered.
const unconfirmedMax = 100

// Publisher publishes to queues at a rate, each message once, whatever becomes of it.
type Publisher struct {
	Load   *Load
	Who    int
	Node   int // where it begins
	Queues []string
	// Fan are the queues bound to Exchange.
	Fan    string
	Every  time.Duration
	number int64
	rand   *rand.Rand
}

// Run publishes until the load is over, over one connection after the other.
func (p *Publisher) Run() {
	defer p.Load.All.Done()
	p.rand = rand.New(rand.NewSource(int64(p.Who)))
	node := p.Node
	for number := 1; ; number++ {
		s := p.Load.connect(node, func(s *session) error { return s.channel.Confirm(false) })
		if s == nil {
			return
		}
		p.Load.Log.Add(history.Record{Kind: history.Open, Who: p.Who, Session: number, Node: s.node})
		p.session(s, number)
		node = s.node%len(p.Load.Hosts) + 1
	}
}

func (p *Publisher) session(s *session, number int) {
	log := p.Load.Log
	confirms := s.channel.NotifyPublish(make(chan amqp.Confirmation, unconfirmedMax+1))
	base := p.number
	open := map[uint64]*amqp.DeferredConfirmation{}
	answer := func(c amqp.Confirmation) {
		if open[c.DeliveryTag] == nil {
			return
		}
		// The library's listeners take an ack with `multiple` for the answer to all that is open before it, also to what was refused by
		// itself a moment ago. What it keeps for each publish is right.
		kind := history.Confirm
		if !open[c.DeliveryTag].Acked() {
			kind = history.Refused
		}
		delete(open, c.DeliveryTag)
		log.Add(history.Record{Kind: kind, Who: p.Who, Session: number, Number: base + int64(c.DeliveryTag)})
	}
	gone := func(reason string) {
		log.Add(history.Record{Kind: history.Gone, Who: p.Who, Session: number, Node: s.node, Note: reason})
		s.abandon()
		// What had come before the end.
		for {
			select {
			case c, more := <-confirms:
				if more {
					answer(c)
					continue
				}
			default:
			}
			return
		}
	}
	tick := time.NewTicker(p.Every)
	defer tick.Stop()
	tag := uint64(0)
	stop := p.Load.Stop
	last := time.Now()
	for {
		select {
		case c, more := <-confirms:
			if !more {
				gone("closed")
				return
			}
			answer(c)
			last = time.Now()
			if stop == nil && len(open) == 0 {
				log.Add(history.Record{Kind: history.Gone, Who: p.Who, Session: number, Node: s.node, Note: "done"})
				s.close()
				return
			}
		case err := <-s.broken:
			if err == nil {
				gone("closed")
			} else {
				gone(err.Error())
			}
			return
		case <-stop:
			if len(open) == 0 {
				log.Add(history.Record{Kind: history.Gone, Who: p.Who, Session: number, Node: s.node, Note: "done"})
				s.close()
				return
			}
			stop, last = nil, time.Now()
		case <-tick.C:
			if len(open) > 0 && time.Since(last) > 2*patience {
				log.Add(history.Record{Kind: history.Silent, Who: p.Who, Session: number, Node: s.node, Number: int64(len(open))})
				gone("no answer")
				return
			}
			if stop == nil || len(open) >= unconfirmedMax {
				continue
			}
			tag++
			p.number++
			if len(open) == 0 {
				last = time.Now()
			}
			confirmation, err := p.publish(s, number)
			if err != nil {
				gone(why(err))
				return
			}
			open[tag] = confirmation
		}
	}
}

func (p *Publisher) publish(s *session, number int) (*amqp.DeferredConfirmation, error) {
	content := body(p.Who, p.number, p.bytes())
	queue := p.Queues[p.rand.Intn(len(p.Queues))]
	exchange, key := "", queue
	if p.Fan != "" && p.rand.Intn(5) == 0 {
		queue, exchange, key = p.Fan, Exchange, strings.SplitN(p.Fan, ",", 2)[0]
	}
	p.Load.Log.Add(history.Record{Kind: history.Send, Who: p.Who, Session: number, Queue: queue, Number: p.number, Sum: sum(content)})
	return s.publish(exchange, key, false, content)
}

// publish hands a message to the socket. A socket that takes nothing for as long as patience lasts is closed.
func (s *session) publish(exchange, key string, mandatory bool, content []byte) (*amqp.DeferredConfirmation, error) {
	watch := time.AfterFunc(patience, func() { s.socket.Close() })
	defer watch.Stop()
	message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: content}
	return s.channel.PublishWithDeferredConfirmWithContext(context.Background(), exchange, key, mandatory, false, message)
}

// bytes of the next body: most are small, a few take several frames.
func (p *Publisher) bytes() int {
	switch n := p.rand.Intn(1000); {
	case n < 2:
		return 100_000 + p.rand.Intn(200_000)
	case n < 50:
		return 1000 + p.rand.Intn(20_000)
	default:
		return bodyBytesMin + p.rand.Intn(500)
	}
}
