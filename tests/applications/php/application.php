<?php
// A PHP service on php-amqplib: RPC, retries by dead-lettering through a queue with a TTL, a delayed job, and a broker that is killed under
// a connection that is made again.
//
// Invariant: it ends with status 0 only if every part did what it should; nothing it declared is left behind.
declare(strict_types=1);

require_once 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Channel\AMQPChannel;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPExceptionInterface;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

const PATIENCE_S = 30;

function name(string $part): string
{
    return 'php-' . getmypid() . '-' . $part;
}

function same(mixed $wanted, mixed $got): void
{
    if ($wanted !== $got) {
        throw new RuntimeException('wanted ' . json_encode($wanted) . ', got ' . json_encode($got));
    }
}

function connect(): AMQPStreamConnection
{
    $uri = parse_url(getenv('AMQP_URI'));
    $vhost = urldecode(substr($uri['path'] ?? '/%2f', 1));
    return new AMQPStreamConnection($uri['host'], $uri['port'] ?? 5672, $uri['user'], $uri['pass'], $vhost, read_write_timeout: PATIENCE_S);
}

function declare_queue(AMQPChannel $channel, string $queue, array $arguments = []): void
{
    $channel->queue_declare($queue, durable: true, auto_delete: false, arguments: new AMQPTable($arguments));
}

function send(AMQPChannel $channel, string $queue, string $body, array $properties = []): void
{
    $persistent = ['delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT];
    $channel->basic_publish(new AMQPMessage($body, $properties + $persistent), '', $queue);
}

/** Serves and asks in one thread: the library hands out deliveries of all channels in the order in which they come. */
function rpc(AMQPStreamConnection $connection): void
{
    $serving = $connection->channel();
    $asking = $connection->channel();
    [$queue] = $serving->queue_declare('', exclusive: true);
    $serving->basic_consume($queue, callback: function (AMQPMessage $request) use ($serving): void {
        $answer = (string) (2 * (int) $request->body);
        send($serving, $request->get('reply_to'), $answer, ['correlation_id' => $request->get('correlation_id')]);
        $request->ack();
    });
    $answers = [];
    $asking->basic_consume('amq.rabbitmq.reply-to', no_ack: true, callback: function (AMQPMessage $reply) use (&$answers): void {
        $answers[(int) $reply->get('correlation_id')] = (int) $reply->body;
    });
    for ($n = 0; $n < 100; $n++) {
        send($asking, $queue, (string) $n, ['reply_to' => 'amq.rabbitmq.reply-to', 'correlation_id' => (string) $n]);
    }
    for ($n = 0; $n < 100; $n++) {
        $serving->wait(timeout: PATIENCE_S);
    }
    while (count($answers) < 100) {
        $asking->wait(timeout: PATIENCE_S);
    }
    for ($n = 0; $n < 100; $n++) {
        same(2 * $n, $answers[$n]);
    }
    $asking->close();
    $serving->close();
}

/** What fails waits 200 ms in a queue of its own and comes back; the third failure is for people to look at. */
function retries(AMQPStreamConnection $connection): void
{
    $channel = $connection->channel();
    [$work, $wait, $parked] = array_map(name(...), ['work', 'wait', 'parked']);
    $to = fn (string $queue): array => ['x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => $queue];
    declare_queue($channel, $work, $to($wait));
    declare_queue($channel, $wait, ['x-message-ttl' => 200] + $to($work));
    declare_queue($channel, $parked);
    $tries = [];
    $channel->basic_consume($work, callback: function (AMQPMessage $message) use ($channel, $work, $parked, &$tries): void {
        $headers = $message->has('application_headers') ? $message->get('application_headers')->getNativeData() : [];
        $failed = fn (array $death): bool => $death['queue'] === $work && $death['reason'] === 'rejected';
        $deaths = array_values(array_filter($headers['x-death'] ?? [], $failed));
        $tries[] = $deaths ? $deaths[0]['count'] : 0;
        if (count($tries) < 3) {
            $message->nack();
        } else {
            send($channel, $parked, $message->body);
            $message->ack();
        }
    });
    send($channel, $work, 'poison');
    while (count($tries) < 3) {
        $channel->wait(timeout: PATIENCE_S);
    }
    same('poison', eventually($channel, $parked));
    same([0, 1, 2], $tries);
    foreach ([$work, $wait, $parked] as $queue) {
        $channel->queue_delete($queue);
    }
    $channel->close();
}

function delayed(AMQPStreamConnection $connection): void
{
    $channel = $connection->channel();
    [$due, $later] = array_map(name(...), ['due', 'later']);
    declare_queue($channel, $due);
    declare_queue($channel, $later, ['x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => $due]);
    $started = hrtime(true);
    send($channel, $later, 'job', ['expiration' => '1000']);
    same('job', eventually($channel, $due));
    $tookMs = (hrtime(true) - $started) / 1e6;
    if ($tookMs < 990) {
        throw new RuntimeException("the job came after $tookMs ms");
    }
    foreach ([$due, $later] as $queue) {
        $channel->queue_delete($queue);
    }
    $channel->close();
}

/** The broker is killed: the connection ends with an exception, and what was confirmed comes over a new one. */
function restart(AMQPStreamConnection $connection, string $program): AMQPStreamConnection
{
    $queue = name('durable');
    $publish = function (AMQPStreamConnection $connection, int $first, int $limit) use ($queue): void {
        $channel = $connection->channel();
        declare_queue($channel, $queue, ['x-queue-type' => 'quorum']);
        $channel->confirm_select();
        $channel->set_nack_handler(fn () => throw new RuntimeException('a message was refused'));
        for ($n = $first; $n < $limit; $n++) {
            send($channel, $queue, (string) $n);
        }
        $channel->wait_for_pending_acks(PATIENCE_S);
        $channel->close();
    };
    $publish($connection, 0, 100);
    exec($program, result_code: $status);
    same(0, $status);
    try {
        $connection->channel();
        throw new RuntimeException('a connection to a killed broker does not go on');
    } catch (AMQPExceptionInterface) {
        $connection = connect();
    }
    $publish($connection, 100, 200);
    $channel = $connection->channel();
    $channel->basic_qos(0, 10, false);
    $seen = [];
    $channel->basic_consume($queue, callback: function (AMQPMessage $message) use (&$seen): void {
        $seen[] = (int) $message->body;
        $message->ack();
    });
    while (count($seen) < 200) {
        $channel->wait(timeout: PATIENCE_S);
    }
    same(range(0, 199), $seen);
    $channel->queue_delete($queue);
    $channel->close();
    return $connection;
}

function eventually(AMQPChannel $channel, string $queue): string
{
    $due = hrtime(true) + PATIENCE_S * 1e9;
    while (hrtime(true) < $due) {
        $message = $channel->basic_get($queue, true);
        if ($message !== null) {
            return $message->body;
        }
        usleep(20_000);
    }
    throw new RuntimeException("nothing came to $queue");
}

$connection = connect();
rpc($connection);
retries($connection);
delayed($connection);
$parts = 'rpc over direct reply-to, retries by dead-lettering, delayed job';
if (getenv('RESTART') !== false) {
    $connection = restart($connection, getenv('RESTART'));
    $parts .= ', a killed broker';
}
$connection->close();
echo "php: $parts\n";
