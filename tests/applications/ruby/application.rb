# A Ruby service on Bunny: RPC over direct reply-to, retries by dead-lettering through a queue with a TTL, a delayed job, and a broker
# that is killed under a connection that recovers by itself.
#
# Invariant: it ends with status 0 only if every part did what it should; nothing it declared is left behind.
require "bunny"
require "set"
require "timeout"

PATIENCE_S = 30

def name(part) = "ruby-#{Process.pid}-#{part}"

def same(wanted, got)
  raise "wanted #{wanted.inspect}, got #{got.inspect}" unless wanted == got
end

def rpc(connection)
  serving = connection.create_channel
  queue = serving.queue("", exclusive: true)
  queue.subscribe(manual_ack: true) do |info, properties, body|
    answer = { routing_key: properties.reply_to, correlation_id: properties.correlation_id }
    serving.default_exchange.publish((body.to_i * 2).to_s, answer)
    serving.ack(info.delivery_tag)
  end
  asking = connection.create_channel
  answers = Thread::Queue.new
  consumer = Bunny::Consumer.new(asking, "amq.rabbitmq.reply-to", asking.generate_consumer_tag, true)
  consumer.on_delivery { |_, properties, body| answers << [properties.correlation_id.to_i, body.to_i] }
  asking.basic_consume_with(consumer)
  100.times do |n|
    asking.default_exchange.publish(n.to_s, routing_key: queue.name, reply_to: "amq.rabbitmq.reply-to", correlation_id: n.to_s)
  end
  same (0...100).map { |n| [n, 2 * n] }, Array.new(100) { answers.pop }.sort
  asking.close
  serving.close
end

# What fails waits 200 ms in a queue of its own and comes back; the third failure is for people to look at.
def retries(connection)
  channel = connection.create_channel
  work, wait, parked = %w[work wait parked].map { |part| name(part) }
  to = ->(queue) { { "x-dead-letter-exchange" => "", "x-dead-letter-routing-key" => queue } }
  queues = [
    channel.queue(work, durable: true, arguments: to[wait]),
    channel.queue(wait, durable: true, arguments: { "x-message-ttl" => 200, **to[work] }),
    channel.queue(parked, durable: true)
  ]
  tries = []
  queues[0].subscribe(manual_ack: true) do |info, properties, body|
    deaths = (properties.headers || {}).fetch("x-death", [])
    death = deaths.find { |one| one["queue"] == work && one["reason"] == "rejected" }
    tries << (death ? death["count"] : 0)
    if tries.size < 3
      channel.nack(info.delivery_tag)
    else
      channel.default_exchange.publish(body, routing_key: parked, persistent: true)
      channel.ack(info.delivery_tag)
    end
  end
  channel.default_exchange.publish("poison", routing_key: work, persistent: true)
  same "poison", eventually(connection, parked)
  same [0, 1, 2], tries
  queues.each(&:delete)
  channel.close
end

def delayed(connection)
  channel = connection.create_channel
  due = channel.queue(name("due"), durable: true)
  later = channel.queue(name("later"), durable: true, arguments: { "x-dead-letter-exchange" => "", "x-dead-letter-routing-key" => due.name })
  started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  channel.default_exchange.publish("job", routing_key: later.name, persistent: true, expiration: "1000")
  same "job", eventually(connection, due.name)
  took = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
  raise "the job came after #{took} s" if took < 0.99
  [due, later].each(&:delete)
  channel.close
end

# The consumer's connection recovers by itself, with its queue and its consumer; the publisher says again what was not confirmed.
def restart(connection, recovered)
  name = name("durable")
  consuming = connection.create_channel
  consuming.prefetch(10)
  queue = consuming.queue(name, durable: true, arguments: { "x-queue-type" => "quorum" })
  seen = Set.new
  queue.subscribe(manual_ack: true) do |info, _, body|
    seen << body.to_i
    consuming.ack(info.delivery_tag)
  end
  publish = lambda do |numbers|
    channel = connection.create_channel
    channel.confirm_select
    numbers.each { |n| channel.default_exchange.publish(n.to_s, routing_key: name, persistent: true) }
    raise "not confirmed" unless channel.wait_for_confirms
    channel.close
  end
  publish[0...100]
  raise "the broker was not restarted" unless system(ENV.fetch("RESTART"))
  recovered.pop
  publish[100...200]
  sleep 0.02 until seen.size == 200
  same (0...200).to_set, seen
  queue.delete
  consuming.close
end

def eventually(connection, queue)
  channel = connection.create_channel
  loop do
    _, _, body = channel.basic_get(queue)
    if body
      channel.close
      return body
    end
    sleep 0.02
  end
end

recovered = Thread::Queue.new
connection = Bunny.new(ENV.fetch("AMQP_URI"), network_recovery_interval: 0.2, log_level: :fatal)
connection.after_recovery_completed { recovered << true }
connection.start
parts = "rpc over direct reply-to, retries by dead-lettering, delayed job"
Timeout.timeout(4 * PATIENCE_S) do
  rpc(connection)
  retries(connection)
  delayed(connection)
  if ENV.key?("RESTART")
    restart(connection, recovered)
    parts += ", a killed broker"
  end
end
connection.close
puts "ruby: #{parts}"
