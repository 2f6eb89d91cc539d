module torture

go 1.22

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/rabbitmq/amqp091-go v1.16.0
)
