// A Go service on amqp091-go: RPC over direct reply-to, retries by dead-lettering to a delivery limit, a delayed job, and a broker that is
// killed under a connection that is made again.
//
// Invariant: it ends with status 0 only if every part did what it should; nothing it declared is left behind.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const patience = 60 * time.Second

func name(part string) string { return fmt.Sprintf("go-%d-%s", os.Getpid(), part) }

func must[T any](value T, err error) T {
	do(err)
	return value
}

func do(err error) {
	if err != nil {
		log.Panic(err)
	}
}

func same(wanted, got any) {
	if !reflect.DeepEqual(wanted, got) {
		log.Panicf("wanted %v, got %v", wanted, got)
	}
}

func connect() *amqp.Connection { return must(amqp.Dial(os.Getenv("AMQP_URI"))) }

func send(channel *amqp.Channel, queue, body string, message amqp.Publishing) {
	message.Body = []byte(body)
	message.DeliveryMode = amqp.Persistent
	do(channel.PublishWithContext(context.Background(), "", queue, false, false, message))
}

func rpc(connection *amqp.Connection) {
	serving, asking := must(connection.Channel()), must(connection.Channel())
	queue := must(serving.QueueDeclare("", false, false, true, false, nil))
	requests := must(serving.Consume(queue.Name, "", false, false, false, false, nil))
	go func() {
		for request := range requests {
			number := must(strconv.Atoi(string(request.Body)))
			do(request.Ack(false))
			send(serving, request.ReplyTo, strconv.Itoa(2*number), amqp.Publishing{CorrelationId: request.CorrelationId})
		}
	}()
	replyTo := "amq.rabbitmq.reply-to"
	replies := must(asking.Consume(replyTo, "", true, false, false, false, nil))
	for n := range 100 {
		send(asking, queue.Name, strconv.Itoa(n), amqp.Publishing{ReplyTo: replyTo, CorrelationId: strconv.Itoa(n)})
	}
	for range 100 {
		reply := <-replies
		same(2*must(strconv.Atoi(reply.CorrelationId)), must(strconv.Atoi(string(reply.Body))))
	}
	do(asking.Close())
	do(serving.Close())
}

func retries(connection *amqp.Connection) {
	channel := must(connection.Channel())
	work, dead := name("work"), name("dead")
	must(channel.QueueDeclare(dead, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}))
	must(channel.QueueDeclare(work, true, false, false, false, amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead,
	}))
	failing := must(channel.Consume(work, "", false, false, false, false, nil))
	send(channel, work, "poison", amqp.Publishing{})
	for failure := range 4 {
		delivery := <-failing
		same(failure > 0, delivery.Redelivered)
		do(delivery.Reject(true))
	}
	parked := eventually(channel, dead)
	same("poison", string(parked.Body))
	death := parked.Headers["x-death"].([]any)[0].(amqp.Table)
	same("delivery_limit", death["reason"])
	for _, queue := range []string{work, dead} {
		must(channel.QueueDelete(queue, false, false, false))
	}
	do(channel.Close())
}

func delayed(connection *amqp.Connection) {
	channel := must(connection.Channel())
	due, later := name("due"), name("later")
	must(channel.QueueDeclare(due, true, false, false, false, nil))
	must(channel.QueueDeclare(later, true, false, false, false, amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": due}))
	started := time.Now()
	send(channel, later, "job", amqp.Publishing{Expiration: "1000"})
	same("job", string(eventually(channel, due).Body))
	if took := time.Since(started); took < 990*time.Millisecond {
		log.Panicf("the job came after %v", took)
	}
	for _, queue := range []string{due, later} {
		must(channel.QueueDelete(queue, false, false, false))
	}
	do(channel.Close())
}

// restart has the broker killed; both connections end, and what was confirmed comes over new ones.
func restart(connection *amqp.Connection, program string) *amqp.Connection {
	queue := name("durable")
	closed := connection.NotifyClose(make(chan *amqp.Error, 1))
	must(must(connection.Channel()).QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}))
	publish := func(first, limit int) {
		channel := must(connection.Channel())
		do(channel.Confirm(false))
		for n := first; n < limit; n++ {
			message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(strconv.Itoa(n))}
			confirm := must(channel.PublishWithDeferredConfirm("", queue, false, false, message))
			if !confirm.Wait() {
				log.Panicf("%d is not confirmed", n)
			}
		}
		do(channel.Close())
	}
	publish(0, 100)
	do(exec.Command(program).Run())
	if why := <-closed; why == nil {
		log.Panic("a connection to a killed broker ends with an error")
	}
	connection = connect()
	publish(100, 200)
	channel := must(connection.Channel())
	do(channel.Qos(10, 0, false))
	deliveries := must(channel.Consume(queue, "", false, false, false, false, nil))
	for n := range 200 {
		delivery := <-deliveries
		same(strconv.Itoa(n), string(delivery.Body))
		do(delivery.Ack(false))
	}
	must(channel.QueueDelete(queue, false, false, false))
	do(channel.Close())
	return connection
}

func eventually(channel *amqp.Channel, queue string) amqp.Delivery {
	for {
		delivery, found, err := channel.Get(queue, true)
		do(err)
		if found {
			return delivery
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func main() {
	time.AfterFunc(2*patience, func() { log.Fatal("it takes too long") })
	connection := connect()
	rpc(connection)
	retries(connection)
	delayed(connection)
	parts := "rpc over direct reply-to, a delivery limit with dead-lettering, delayed job"
	if program, ok := os.LookupEnv("RESTART"); ok {
		connection = restart(connection, program)
		parts += ", a killed broker"
	}
	do(connection.Close())
	fmt.Println("go: " + parts)
}
