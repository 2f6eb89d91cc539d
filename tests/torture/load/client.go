// Package load is the clients of a torture: publishers, consumers, and those who declare, bind and delete. They use amqp091-go, RabbitMQ's
// own client for Go, unchanged.
//
// Invariant: a client never waits for anything without a limit, and ends when it is told to.
package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"torture/history"
)

// Clients that publish because they consume have numbers from here on, those who declare from the other.
const (
	Consumers   = history.Steady
	Drainers    = 2000
	Topologists = 3000
)

const (
	heartbeat   = 3 * time.Second
	dialling    = 3 * time.Second
	betweenDial = 200 * time.Millisecond
	// patience is how long a client waits for any answer before it takes its connection for lost.
	patience = 40 * time.Second
)

// Exchange is where some of the messages go, to Fan of the queues.
const Exchange = "torture"

// Load is what all clients share.
type Load struct {
	Hosts []string // of the nodes, with their ports
	Log   *history.Log
	Round int
	Stop  chan struct{}
	All   sync.WaitGroup
}

func (l *Load) stopped() bool {
	select {
	case <-l.Stop:
		return true
	default:
		return false
	}
}

func (l *Load) pause(d time.Duration) {
	select {
	case <-l.Stop:
	case <-time.After(d):
	}
}

// session is one connection and its channel.
type session struct {
	conn    *amqp.Connection
	channel *amqp.Channel
	socket  net.Conn
	node    int
	broken  chan *amqp.Error
	// Of who looks whether a message is routed.
	confirms chan amqp.Confirmation
	returns  chan amqp.Return
}

// Node numbers are from 1, as in the records.
func (l *Load) dial(node int) (*session, error) {
	s := &session{node: node}
	config := amqp.Config{
		Heartbeat: heartbeat,
		Locale:    "en_US",
		Dial: func(network, addr string) (net.Conn, error) {
			socket, err := net.DialTimeout(network, addr, dialling)
			if err != nil {
				return nil, err
			}
			s.socket = socket
			return socket, socket.SetDeadline(time.Now().Add(2 * dialling))
		},
	}
	conn, err := amqp.DialConfig("amqp://guest:guest@"+l.Hosts[node-1]+"/", config)
	if err != nil {
		return nil, err
	}
	s.conn = conn
	err = s.open()
	if err != nil {
		s.abandon()
		return nil, err
	}
	return s, nil
}

// open begins another channel, the last one having been closed.
func (s *session) open() error {
	return s.within(func() (err error) {
		s.channel, err = s.conn.Channel()
		if err == nil {
			s.broken = s.channel.NotifyClose(make(chan *amqp.Error, 1))
		}
		return err
	})
}

// within waits for an answer as long as patience allows: the library has no limit of its own.
func (s *session) within(ask func() error) error {
	done := make(chan error, 1)
	go func() { done <- ask() }()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		s.socket.Close()
		return errors.New("no answer in time")
	}
}

// abandon ends the connection without a word.
func (s *session) abandon() {
	s.socket.Close()
	go s.conn.Close()
}

func (s *session) close() {
	done := make(chan struct{})
	go func() { s.conn.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
	}
	s.socket.Close()
}

// connect dials `first`, then the others in turn, until one answers. Nil when the load is over.
func (l *Load) connect(first int, prepare func(*session) error) *session {
	for attempt := 0; !l.stopped(); attempt++ {
		node := (first-1+attempt)%len(l.Hosts) + 1
		s, err := l.dial(node)
		if err == nil {
			if prepare == nil {
				return s
			}
			if err = s.within(func() error { return prepare(s) }); err == nil {
				return s
			}
			s.abandon()
		}
		l.pause(betweenDial)
	}
	return nil
}

func code(err error) int {
	var e *amqp.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

func why(err error) string {
	if err == nil {
		return "closed"
	}
	return err.Error()
}

const bodyBytesMin = 12

// body is recognisable, and different at each place.
func body(from int, number int64, bytes int) []byte {
	out := make([]byte, max(bytes, bodyBytesMin))
	binary.BigEndian.PutUint32(out, uint32(from))
	binary.BigEndian.PutUint64(out[4:], uint64(number))
	rand.New(rand.NewSource(int64(from)<<40 ^ number)).Read(out[bodyBytesMin:])
	return out
}

func sum(body []byte) uint32 { return crc32.ChecksumIEEE(body) | 1 }

func identify(body []byte) (from int, number int64, err error) {
	if len(body) < bodyBytesMin {
		return 0, 0, fmt.Errorf("a body of %d bytes", len(body))
	}
	return int(binary.BigEndian.Uint32(body)), int64(binary.BigEndian.Uint64(body[4:])), nil
}

// Prepare declares the queues of a round and what they are bound to.
func (l *Load) Prepare(queues []string, single, fan []string) error {
	s, err := l.dial(1)
	if err != nil {
		return err
	}
	defer s.close()
	return s.within(func() error {
		for _, exchange := range []string{Exchange, TopologyExchange} {
			if err := s.channel.ExchangeDeclare(exchange, amqp.ExchangeDirect, true, false, false, false, nil); err != nil {
				return err
			}
		}
		for _, queue := range queues {
			arguments := amqp.Table{"x-queue-type": "quorum"}
			for _, name := range single {
				if name == queue {
					arguments["x-single-active-consumer"] = true
				}
			}
			if _, err := s.channel.QueueDeclare(queue, true, false, false, false, arguments); err != nil {
				return err
			}
		}
		for _, queue := range fan {
			if err := s.channel.QueueBind(queue, fan[0], Exchange, false, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// Clear deletes the queues of a round.
func (l *Load) Clear(queues []string) error {
	s, err := l.dial(1)
	if err != nil {
		return err
	}
	defer s.close()
	return s.within(func() error {
		for _, queue := range queues {
			if _, err := s.channel.QueueDelete(queue, false, false, false); err != nil {
				return err
			}
		}
		return nil
	})
}

// Serves is true when a node takes a client and declares something for it.
func (l *Load) Serves(node int) error {
	s, err := l.dial(node)
	if err != nil {
		return err
	}
	defer s.close()
	return s.within(func() error {
		// A queue of an attempt before may be what is broken, and not the node.
		name := fmt.Sprintf("torture-serves-%d-%d", node, time.Now().UnixNano())
		if _, err := s.channel.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			return err
		}
		if err := s.channel.Confirm(false); err != nil {
			return err
		}
		confirmation, err := s.publish("", name, false, []byte("?"))
		if err != nil {
			return err
		}
		if !confirmation.Wait() {
			return errors.New("it confirms nothing")
		}
		_, err = s.channel.QueueDelete(name, false, false, false)
		return err
	})
}
