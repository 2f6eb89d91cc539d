package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"time"

	"torture/check"
	"torture/cluster"
	"torture/history"
	"torture/load"
)

// Options of a run.
type Options struct {
	Broker, Binary, Folder, Hub string
	For                         time.Duration
	Seed                        int64
	Rate, FaultsARound          int
	Only                        []string
	Keep, Clocks                bool
	// GoOn: a round after which a node does not serve any more is given up, and the next one begins with new nodes.
	GoOn bool
	// Faults is how many there are to be at most; none: as many as there is time for.
	Faults int
	// Steady: each publisher has a queue of its own, and nobody declares or breaks off. For figures of pauses.
	Steady bool
	Stop   chan os.Signal
}

const (
	publishers = 6
	// startPatience is how long the nodes may take to serve everybody again once all faults are over.
	startPatience = 6 * time.Minute
	drainPatience = 5 * time.Minute
	// endingsMax is how often nodes may end by themselves after one fault.
	endingsMax = 6
	// byHandAfter: a node that runs and does not serve for so long is killed and started.
	byHandAfter = 2 * time.Minute
)

// Total is what all rounds show, as the report keeps it.
type Total struct {
	Broker     string
	Seconds    float64
	Seed       int64
	Rounds     int
	Faults     map[string]int
	Counts     check.Counts
	Totals     map[string]int
	Violations []string
	Undecided  int
	Pauses     map[string]*check.Pauses
	Recoveries map[string][]float64 // seconds from the end of a fault until all nodes serve
	CaughtUp   []float64            // seconds from then until every copy had what was committed a second ago
	Ended      []string             // nodes that ended by themselves
	ByHand     []string             // nodes that ran, did not serve and were started again
	GivenUp    []string             // rounds that ended with nodes that did not serve any more
}

// errGivenUp: the nodes will not serve again, however long one waits.
var errGivenUp = errors.New("given up")

type preparing interface{ Prepare() error }

// A broker that says how far its copies are. Figures of pauses are of deaths out of full health: before the next one every copy has caught up.
type watched interface {
	CaughtUp(nodes []*cluster.Node, patience time.Duration) (time.Duration, error)
}

func torture(o *Options) (err error) {
	if err := os.MkdirAll(o.Folder, 0o755); err != nil {
		return err
	}
	var broker cluster.Broker
	switch o.Broker {
	case "leveret":
		broker = &cluster.Leveret{Binary: o.Binary, Folder: o.Folder}
	case "rabbitmq":
		broker = &cluster.RabbitMQ{Folder: o.Folder}
	default:
		return fmt.Errorf("there is no broker %q", o.Broker)
	}
	if err := broker.(preparing).Prepare(); err != nil {
		return err
	}
	c, err := cluster.New(broker, o.Folder, o.Hub)
	defer func() { err = errors.Join(err, c.Close()) }()
	if err != nil {
		return err
	}
	c.Clocks = o.Clocks
	t := &tormentor{o: o, c: c, began: time.Now(), rand: rand.New(rand.NewSource(o.Seed))}
	t.total = Total{
		Broker: o.Broker, Seed: o.Seed, Faults: map[string]int{}, Totals: map[string]int{}, Pauses: map[string]*check.Pauses{},
		Recoveries: map[string][]float64{},
	}
	for _, n := range c.Nodes {
		t.hosts = append(t.hosts, n.Host())
	}
	if err := t.form(); err != nil {
		return err
	}
	fmt.Printf("%s: three nodes serve; seed %d, %v\n", o.Broker, o.Seed, o.For)
	for round := 1; time.Since(t.began) < o.For && !t.enough(); round++ {
		err := t.round(round)
		if errors.Is(err, errGivenUp) && o.GoOn && !t.stopped {
			t.total.GivenUp = append(t.total.GivenUp, fmt.Sprintf("round %d: %v", round, err))
			fmt.Printf("round %d is given up, the next has new nodes: %v\n", round, err)
			err = errors.Join(c.Renew(), t.form())
		}
		if err != nil {
			return errors.Join(err, t.report())
		}
		if t.stopped {
			break
		}
	}
	if err := t.report(); err != nil {
		return err
	}
	fmt.Print(Table(&t.total))
	if check.Broken(t.total.Totals) > 0 {
		return fmt.Errorf("broken promises: %v", t.total.Totals)
	}
	return nil
}

// form starts the nodes, whose disks are empty, and waits until they are one cluster that serves.
func (t *tormentor) form() error {
	for _, n := range t.c.Nodes {
		if err := t.c.Start(n); err != nil {
			return err
		}
	}
	if err := t.c.Broker.Form(t.c.Nodes); err != nil {
		return err
	}
	_, err := t.untilAllServe(nil)
	return err
}

type tormentor struct {
	o       *Options
	c       *cluster.Cluster
	hosts   []string
	began   time.Time
	rand    *rand.Rand
	total   Total
	deck    []cluster.Fault
	victim  int
	stopped bool
}

func (t *tormentor) enough() bool {
	happened := 0
	for _, times := range t.total.Faults {
		happened += times
	}
	return t.o.Faults > 0 && happened >= t.o.Faults
}

// next gives every fault once before it gives one again, and nodes in turn.
func (t *tormentor) next() (cluster.Fault, *cluster.Node) {
	if len(t.deck) == 0 {
		for _, fault := range cluster.Faults {
			if fault.Clocks && !t.o.Clocks {
				continue
			}
			if len(t.o.Only) == 0 || strings.Contains(","+strings.Join(t.o.Only, ",")+",", ","+fault.Class+",") {
				t.deck = append(t.deck, fault)
			}
		}
		t.rand.Shuffle(len(t.deck), func(a, b int) { t.deck[a], t.deck[b] = t.deck[b], t.deck[a] })
	}
	fault := t.deck[0]
	t.deck = t.deck[1:]
	t.victim = (t.victim + 1 + t.rand.Intn(2)) % len(t.c.Nodes)
	return fault, t.c.Nodes[t.victim]
}

func (t *tormentor) round(number int) error {
	path := filepath.Join(t.o.Folder, fmt.Sprintf("history-%d.jsonl", number))
	log, err := history.Create(path, time.Now())
	if err != nil {
		return err
	}
	l := &load.Load{Hosts: t.hosts, Log: log, Round: number, Stop: make(chan struct{})}
	name := func(queue int) string { return fmt.Sprintf("torture-%d-%d", number, queue) }
	var queues []string
	for queue := range 6 {
		queues = append(queues, name(queue))
	}
	// Two with a single active consumer of several; the last is read by nobody until the end.
	single, fan := []string{name(4)}, []string{name(0), name(5)}
	if err := l.Prepare(queues, single, fan); err != nil {
		return err
	}
	began := time.Now()
	start := func(client interface{ Run() }) {
		l.All.Add(1)
		go client.Run()
	}
	for who := 1; who <= publishers; who++ {
		publisher := &load.Publisher{
			Load: l, Who: who, Node: who%len(t.hosts) + 1, Queues: queues, Fan: strings.Join(fan, ","),
			Every: time.Second * publishers / time.Duration(t.o.Rate),
		}
		if t.o.Steady {
			publisher.Queues, publisher.Fan = queues[who-1:who], ""
		}
		start(publisher)
	}
	for queue := range 5 {
		for member := range 2 {
			start(&load.Consumer{
				Load: l, Who: load.Consumers + 2*queue + member, Node: (queue+member)%len(t.hosts) + 1, Queue: queues[queue], Prefetch: 30,
				Breaks: member == 1 && !t.o.Steady,
			})
		}
	}
	if !t.o.Steady {
		for client := range 2 * len(t.hosts) {
			start(&load.Topologist{
				Load: l, Who: load.Topologists + client, Node: client%len(t.hosts) + 1, Began: began, Every: 150 * time.Millisecond,
			})
		}
	}
	t.pause(3 * time.Second)
	var happened []string
	var wrong error
	for range t.o.FaultsARound {
		if t.stopped || wrong != nil || t.enough() {
			break
		}
		fault, node := t.next()
		happened = append(happened, fmt.Sprintf("%s %d", fault.Class, node.Number))
		wrong = t.happen(log, fault, node)
	}
	close(l.Stop)
	l.All.Wait()
	if wrong == nil || errors.Is(wrong, errGivenUp) {
		// The nodes that serve may have all that there is.
		if err := t.drain(l, queues); err != nil {
			wrong = errors.Join(wrong, errGivenUp, err)
		}
	}
	generations := load.Generations(time.Since(began))
	if err := log.Close(); err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	verdict, err := check.History(file)
	if err != nil {
		return err
	}
	t.add(number, verdict)
	state := "good"
	if check.Broken(verdict.Totals) > 0 || wrong != nil {
		state = "BAD, see " + path
	} else if !t.o.Keep {
		_ = os.Remove(path)
	}
	fmt.Printf("round %d (%s): %d sent, %d confirmed, %d refused, %d unknown; %d delivered, %d flagged, %d again after an ack; %d acks proven; %d operations: %s\n",
		number, strings.Join(happened, ", "), verdict.Counts.Sent, verdict.Counts.Confirmed, verdict.Counts.Refused, verdict.Counts.Unknown,
		verdict.Counts.Delivered, verdict.Counts.Redelivered, verdict.Counts.AckedAgain, verdict.Counts.Proven, verdict.Counts.Operations, state)
	for _, violation := range verdict.Violations {
		fmt.Printf("  %s: %s\n", violation.Kind, violation.Text)
	}
	if err := t.report(); err != nil {
		return err
	}
	if wrong != nil {
		return wrong
	}
	return errors.Join(l.Clear(queues), l.Forget(generations))
}

func (t *tormentor) pause(d time.Duration) {
	select {
	case <-t.o.Stop:
		t.stopped = true
	case <-time.After(d):
	}
}

func (t *tormentor) happen(log *history.Log, fault cluster.Fault, node *cluster.Node) error {
	number := node.Number
	if fault.Everybody {
		number = 0
	}
	log.Add(history.Record{Kind: history.Fault, Node: number, What: fault.Class})
	if err := fault.Do(t.c, node, t.rand); err != nil {
		return fmt.Errorf("%s of node %d: %w", fault.Class, node.Number, err)
	}
	t.total.Faults[fault.Class]++
	log.Add(history.Record{Kind: history.Healed, Node: number, What: fault.Class})
	took, err := t.untilAllServe(&fault)
	if err != nil {
		return fmt.Errorf("%s of node %d: %w", fault.Class, node.Number, err)
	}
	t.total.Recoveries[fault.Class] = append(t.total.Recoveries[fault.Class], took.Seconds())
	if broker, is := t.c.Broker.(watched); is && t.o.Steady {
		took, err := broker.CaughtUp(t.c.Nodes, startPatience)
		if err != nil {
			return fmt.Errorf("%s of node %d: %w", fault.Class, node.Number, err)
		}
		log.Add(history.Record{Kind: history.CaughtUp, Node: number, What: fault.Class})
		t.total.CaughtUp = append(t.total.CaughtUp, took.Seconds())
	}
	t.pause(2*time.Second + time.Duration(t.rand.Int63n(int64(2*time.Second))))
	return nil
}

// untilAllServe waits until every node takes a client and has a majority for it, and says how long that took. A node that ended by itself
// is noted and started.
func (t *tormentor) untilAllServe(fault *cluster.Fault) (time.Duration, error) {
	began := time.Now()
	serves := make([]bool, len(t.hosts))
	endings, restarted := 0, time.Now()
	look := &load.Load{Hosts: t.hosts, Stop: make(chan struct{})}
	for {
		all := true
		var last error
		for at, n := range t.c.Nodes {
			if !t.c.Runs(n) {
				during := class(fault)
				t.total.Ended = append(t.total.Ended, fmt.Sprintf("node %d at %s: %s", n.Number, during, n.Tail(1)))
				fmt.Printf("node %d ended by itself at %s: %s\n", n.Number, during, n.Tail(2))
				if endings++; endings > endingsMax {
					return 0, fmt.Errorf("%w: node %d does not stay up: %s", errGivenUp, n.Number, n.Tail(5))
				}
				if err := t.c.Start(n); err != nil {
					return 0, err
				}
				serves[at] = false
			}
			if !serves[at] {
				err := look.Serves(n.Number)
				serves[at] = err == nil
				if err != nil {
					last, all = fmt.Errorf("node %d: %w", n.Number, err), false
				}
			}
		}
		if !all && time.Since(restarted) > byHandAfter {
			// Who is in charge of it would do the same.
			restarted = time.Now()
			for at, n := range t.c.Nodes {
				if serves[at] || !t.c.Runs(n) {
					continue
				}
				t.total.ByHand = append(t.total.ByHand, fmt.Sprintf("node %d at %s: %v", n.Number, class(fault), last))
				fmt.Printf("node %d runs, does not serve after %v and is started again: %v\n", n.Number, byHandAfter, last)
				if err := errors.Join(t.c.Kill(n), t.c.Start(n)); err != nil {
					return 0, err
				}
			}
		}
		took := time.Since(began)
		if all {
			return took, nil
		}
		if took > startPatience {
			return took, fmt.Errorf("%w: after %v not all nodes serve: %v", errGivenUp, took.Round(time.Second), last)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func class(fault *cluster.Fault) string {
	if fault == nil {
		return "the start"
	}
	return fault.Class
}

func (t *tormentor) drain(l *load.Load, queues []string) error {
	var wrong []error
	for at, queue := range queues {
		wrong = append(wrong, l.Drain(load.Drainers+at, at%len(t.hosts)+1, queue, drainPatience))
	}
	return errors.Join(wrong...)
}

func (t *tormentor) add(round int, v *check.Verdict) {
	t.total.Rounds++
	t.total.Seconds = time.Since(t.began).Seconds()
	t.total.Undecided += v.Undecided
	a, b := &t.total.Counts, v.Counts
	a.Sent, a.Confirmed, a.Refused, a.Unknown = a.Sent+b.Sent, a.Confirmed+b.Confirmed, a.Refused+b.Refused, a.Unknown+b.Unknown
	a.Delivered, a.Redelivered, a.AckedAgain = a.Delivered+b.Delivered, a.Redelivered+b.Redelivered, a.AckedAgain+b.AckedAgain
	a.Proven, a.Sessions, a.Cancelled, a.Operations = a.Proven+b.Proven, a.Sessions+b.Sessions, a.Cancelled+b.Cancelled, a.Operations+b.Operations
	for kind, times := range v.Totals {
		t.total.Totals[kind] += times
	}
	for _, violation := range v.Violations {
		t.total.Violations = append(t.total.Violations, fmt.Sprintf("round %d: %s: %s", round, violation.Kind, violation.Text))
	}
	for _, pauses := range v.Pauses {
		p := t.total.Pauses[pauses.Class]
		if p == nil {
			p = &check.Pauses{Class: pauses.Class}
			t.total.Pauses[pauses.Class] = p
		}
		p.Times += pauses.Times
		p.All = append(p.All, pauses.All...)
		p.Elsewhere = append(p.Elsewhere, pauses.Elsewhere...)
		p.There = append(p.There, pauses.There...)
	}
}

// report writes what is known so far: a run that is ended has lost nothing.
func (t *tormentor) report() error {
	text, err := json.MarshalIndent(&t.total, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(t.o.Folder, t.o.Broker+".json"), append(text, '\n'), 0o644)
}
