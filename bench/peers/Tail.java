// An open-loop latency recorder on RabbitMQ's Java client: messages have an intended send time, latency counts from there, and
// percentiles are over the whole run. PerfTest prints none above p99 and measures from the moment it got round to sending.
//
// Invariant: a message is counted only if it was due inside the measured time, and then always, however late it comes.
//
// java -cp 'jars/*' Tail.java uri=... seconds=20 warmup=5 rate=10000 size=1000 queues=1 connections=1 type=quorum prefix=tail confirm=3000 qos=3000 ack=100

import com.rabbitmq.client.*;
import java.nio.ByteBuffer;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.HdrHistogram.ConcurrentHistogram;
import org.HdrHistogram.Histogram;

public class Tail {
  static final long LATENCY_MAX_NS = TimeUnit.MINUTES.toNanos(10);
  static volatile long from = Long.MAX_VALUE, until = Long.MAX_VALUE;
  static final Histogram endToEnd = new ConcurrentHistogram(LATENCY_MAX_NS, 3), confirms = new ConcurrentHistogram(LATENCY_MAX_NS, 3);
  static final AtomicLong sent = new AtomicLong(), received = new AtomicLong(), open = new AtomicLong(), nacked = new AtomicLong();

  static boolean counts(long due) { return due >= from && due < until; }

  static void record(Histogram histogram, long due) { if (counts(due)) histogram.recordValue(Math.min(Math.max(System.nanoTime() - due, 0), LATENCY_MAX_NS)); }

  public static void main(String[] arguments) throws Exception {
    Map<String, String> s = new HashMap<>();
    for (String a : arguments) { int at = a.indexOf('='); s.put(a.substring(0, at), a.substring(at + 1)); }
    int rate = number(s, "rate", 10000), size = Math.max(8, number(s, "size", 1000)), queues = number(s, "queues", 1), connections = number(s, "connections", 1);
    int window = number(s, "confirm", 3000), qos = number(s, "qos", 3000), ackEvery = number(s, "ack", 100);
    String prefix = s.getOrDefault("prefix", "tail"), type = s.getOrDefault("type", "quorum");
    ConnectionFactory factory = new ConnectionFactory();
    factory.setUri(s.get("uri"));
    factory.setRequestedHeartbeat(0);
    factory.setAutomaticRecoveryEnabled(false);
    if (connections > 50) factory.useNio();
    ExecutorService deliveries = Executors.newFixedThreadPool(4);
    List<Connection> all = new ArrayList<>();
    for (int n = 0; n < connections; n++) all.add(factory.newConnection(deliveries));
    try (Connection setup = factory.newConnection()) {
      Channel channel = setup.createChannel();
      for (int n = 0; n < queues; n++) channel.queueDeclare(prefix + "-" + n, true, false, false, Map.of("x-queue-type", type));
    }
    // Queue n is consumed on connection n mod connections; with more connections than queues a queue has several consumers.
    Map<Integer, Channel> consuming = new HashMap<>();
    for (int n = 0; n < Math.max(queues, connections); n++) {
      int at = n % connections;
      Channel channel = consuming.get(at);
      if (channel == null) { channel = all.get(at).createChannel(); channel.basicQos(qos); consuming.put(at, channel); }
      consume(channel, prefix + "-" + n % queues, queues == 1 ? ackEvery : 1);
    }
    List<Publisher> publishers = new ArrayList<>();
    for (Connection connection : all) publishers.add(new Publisher(connection));
    Semaphore unconfirmed = new Semaphore(window);
    for (Publisher publisher : publishers) publisher.window = unconfirmed;
    long start = System.nanoTime(), seconds = number(s, "seconds", 20), warmup = number(s, "warmup", 5);
    from = start + TimeUnit.SECONDS.toNanos(warmup);
    until = from + TimeUnit.SECONDS.toNanos(seconds);
    boolean told = false;
    for (long n = 0; ; n++) {
      long due = start + n * 1_000_000_000L / rate;
      if (due >= until) break;
      long now;
      while ((now = System.nanoTime()) < due) { if (due - now > 100_000) Thread.sleep(0, 50_000); else Thread.onSpinWait(); }
      if (!told && due >= from) { told = true; System.out.println("measuring"); System.out.flush(); }
      publishers.get((int) (n % connections)).publish(prefix + "-" + n % queues, due, size);
    }
    System.out.println("measured");
    System.out.flush();
    long patience = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
    while ((open.get() > 0 || received.get() < sent.get()) && System.nanoTime() < patience) Thread.sleep(5);
    System.out.println("{\"sent\":" + sent + ",\"received\":" + received + ",\"nacked\":" + nacked + ",\"unconfirmed\":" + open + json("e2e", endToEnd) + json("confirm", confirms) + "}");
    System.out.flush();
    Runtime.getRuntime().halt(0);
  }

  static void consume(Channel channel, String queue, int ackEvery) throws Exception {
    channel.basicConsume(queue, false, new DefaultConsumer(channel) {
      int since;
      @Override public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) throws java.io.IOException {
        long due = ByteBuffer.wrap(body).getLong();
        record(endToEnd, due);
        if (counts(due)) received.incrementAndGet();
        // Late in a burst nothing waits for the next ack: with few messages each is acked at once.
        if (++since >= ackEvery) { since = 0; getChannel().basicAck(envelope.getDeliveryTag(), true); }
        else if (ackEvery == 1) getChannel().basicAck(envelope.getDeliveryTag(), false);
      }
    });
  }

  static final class Publisher {
    final Channel channel;
    final ConcurrentSkipListMap<Long, Long> due = new ConcurrentSkipListMap<>();
    Semaphore window;

    Publisher(Connection connection) throws Exception {
      channel = connection.createChannel();
      channel.confirmSelect();
      channel.addConfirmListener((tag, multiple) -> done(tag, multiple, false), (tag, multiple) -> done(tag, multiple, true));
    }

    void publish(String queue, long at, int size) throws Exception {
      window.acquire();
      byte[] body = new byte[size];
      ByteBuffer.wrap(body).putLong(at);
      if (counts(at)) { sent.incrementAndGet(); open.incrementAndGet(); }
      due.put(channel.getNextPublishSeqNo(), at);
      channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, body);
    }

    void done(long tag, boolean multiple, boolean nack) {
      Map<Long, Long> some = multiple ? due.headMap(tag, true) : due.subMap(tag, true, tag, true);
      for (Iterator<Long> each = some.values().iterator(); each.hasNext(); ) {
        long at = each.next();
        each.remove();
        window.release();
        if (nack) nacked.incrementAndGet(); else record(confirms, at);
        if (counts(at)) open.decrementAndGet();
      }
    }
  }

  static int number(Map<String, String> settings, String name, int otherwise) { return Integer.parseInt(settings.getOrDefault(name, "" + otherwise)); }

  static String json(String name, Histogram h) {
    StringBuilder out = new StringBuilder();
    double[] at = {50, 75, 95, 99, 99.9, 99.99, 100};
    String[] names = {"p50", "p75", "p95", "p99", "p999", "p9999", "max"};
    if (h.getTotalCount() == 0) return "";
    for (int n = 0; n < at.length; n++) out.append(",\"").append(name).append('_').append(names[n]).append("_us\":").append(h.getValueAtPercentile(at[n]) / 1000.0);
    return out.toString();
  }
}
