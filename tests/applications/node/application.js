// A Node service on amqplib: RPC over direct reply-to, retries by dead-lettering through a queue with a TTL, a delayed job, and a broker
// that is killed under a connection that is made again.
//
// Invariant: it exits with 0 only if every part did what it should; nothing it declared is left behind.
'use strict';

const assert = require('node:assert');
const { execFileSync } = require('node:child_process');
const amqp = require('amqplib');

const REPLY_TO = 'amq.rabbitmq.reply-to';
const name = (part) => `node-${process.pid}-${part}`;

/** One consumer's next message, with a limit on the wait. */
function next(channel, queue, options) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`nothing came from ${queue}`)), 30_000);
    channel.consume(queue, (message) => {
      clearTimeout(timer);
      resolve(message);
    }, options).catch(reject);
  });
}

async function rpc(connection) {
  const server = await connection.createChannel();
  const client = await connection.createChannel();
  const { queue } = await server.assertQueue('', { exclusive: true });
  await server.consume(queue, (request) => {
    const answer = String(Number(request.content) * 2);
    server.sendToQueue(request.properties.replyTo, Buffer.from(answer), { correlationId: request.properties.correlationId });
    server.ack(request);
  });
  const answers = new Map();
  let done;
  const all = new Promise((resolve) => { done = resolve; });
  await client.consume(REPLY_TO, (reply) => {
    answers.set(reply.properties.correlationId, Number(reply.content));
    if (answers.size === 100) done();
  }, { noAck: true });
  for (let n = 0; n < 100; n += 1) {
    client.sendToQueue(queue, Buffer.from(String(n)), { replyTo: REPLY_TO, correlationId: String(n) });
  }
  await all;
  for (let n = 0; n < 100; n += 1) assert.strictEqual(answers.get(String(n)), 2 * n);
  await server.close();
  await client.close();
}

/** What fails waits 200 ms in a queue of its own and comes back; the third failure is for people to look at. */
async function retries(connection) {
  const channel = await connection.createConfirmChannel();
  const [work, wait, parked] = ['work', 'wait', 'parked'].map(name);
  const to = (queue) => ({ 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': queue });
  await channel.assertQueue(work, { durable: true, arguments: to(wait) });
  await channel.assertQueue(wait, { durable: true, arguments: { 'x-message-ttl': 200, ...to(work) } });
  await channel.assertQueue(parked, { durable: true });
  const tries = [];
  await channel.consume(work, async (message) => {
    if (message === null) return undefined; // The queue was deleted, which ends the consumer.
    const deaths = (message.properties.headers['x-death'] || []).find((death) => death.queue === work && death.reason === 'rejected');
    tries.push(deaths ? deaths.count : 0);
    if (tries.length < 3) return channel.nack(message, false, false);
    channel.sendToQueue(parked, message.content, { persistent: true });
    await channel.waitForConfirms();
    return channel.ack(message);
  });
  channel.sendToQueue(work, Buffer.from('poison'), { persistent: true });
  await channel.waitForConfirms();
  const message = await next(channel, parked, { noAck: true });
  assert.strictEqual(message.content.toString(), 'poison');
  assert.deepStrictEqual(tries, [0, 1, 2], 'how often it had failed, as x-death counts it');
  for (const queue of [work, wait, parked]) await channel.deleteQueue(queue);
  await channel.close();
}

async function delayed(connection) {
  const channel = await connection.createConfirmChannel();
  const [due, later] = ['due', 'later'].map(name);
  await channel.assertQueue(due, { durable: true });
  const deadLetter = { 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': due };
  await channel.assertQueue(later, { durable: true, arguments: deadLetter });
  const started = Date.now();
  channel.sendToQueue(later, Buffer.from('job'), { persistent: true, expiration: '1000' });
  await channel.waitForConfirms();
  const message = await next(channel, due, { noAck: true });
  assert.strictEqual(message.content.toString(), 'job');
  assert.ok(Date.now() - started >= 990, `it came after ${Date.now() - started} ms`);
  for (const queue of [due, later]) await channel.deleteQueue(queue);
  await channel.close();
}

/** The broker is killed: the connection says so, and what was confirmed comes over a new one. */
async function restart(connection) {
  const queue = name('durable');
  const publish = async (first, limit) => {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(queue, { durable: true, arguments: { 'x-queue-type': 'quorum' } });
    for (let n = first; n < limit; n += 1) channel.sendToQueue(queue, Buffer.from(String(n)), { persistent: true });
    await channel.waitForConfirms();
    await channel.close();
  };
  await publish(0, 100);
  connection.on('error', () => {}); // An error without a listener would end the process.
  const closed = new Promise((resolve) => { connection.once('close', resolve); });
  execFileSync(process.env.RESTART);
  await closed;
  connection = await amqp.connect(process.env.AMQP_URI);
  await publish(100, 200);
  const channel = await connection.createChannel();
  await channel.prefetch(10);
  const seen = [];
  await new Promise((resolve) => {
    channel.consume(queue, (message) => {
      if (message === null) return;
      seen.push(Number(message.content));
      channel.ack(message);
      if (seen.length === 200) resolve();
    });
  });
  assert.deepStrictEqual(seen, Array.from({ length: 200 }, (_, n) => n));
  await channel.deleteQueue(queue);
  await channel.close();
  return connection;
}

async function main() {
  let connection = await amqp.connect(process.env.AMQP_URI);
  let parts = 'rpc over direct reply-to, retries by dead-lettering, delayed job';
  await rpc(connection);
  await retries(connection);
  await delayed(connection);
  if (process.env.RESTART) {
    connection = await restart(connection);
    parts += ', a killed broker';
  }
  await connection.close();
  console.log(`node: ${parts}`);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
