import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DeliverCallback;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.StringRpcServer;
import com.rabbitmq.client.TrustEverythingTrustManager;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;

/**
 * A Java service on RabbitMQ's own client: RPC with the library's server and client, a quorum queue whose poison message ends
 * in a dead-letter queue after its delivery limit, a delayed job by TTL and dead-lettering, and a broker that is killed under a
 * connection that recovers by itself, with its queue and its consumer.
 *
 * <p>Invariant: it ends normally only if every part did what it should; nothing it declared is left behind.
 */
public final class Application {
  private static final long PATIENCE_MS = 30_000;
  private static final String RUN = "java-" + ProcessHandle.current().pid() + "-";

  public static void main(String[] arguments) throws Exception {
    ConnectionFactory factory = new ConnectionFactory();
    factory.setUri(System.getenv("AMQP_URI"));
    factory.setNetworkRecoveryInterval(200);
    String parts = "rpc, retries to a delivery limit with dead-lettering, delayed job";
    String restart = System.getenv("RESTART");
    String secured = System.getenv("AMQPS_URI");
    if (secured != null) {
      nioOverTls(secured, "TLSv1.2");
      nioOverTls(secured, "TLSv1.3");
      parts += ", NIO over TLS";
    }
    try (Connection connection = factory.newConnection("application")) {
      rpc(connection);
      retries(connection);
      delayed(connection);
      if (restart != null) {
        restart((Recoverable) connection, connection, restart);
        parts += ", a killed broker";
      }
    }
    System.out.println("java: " + parts);
  }

  /** The transport that is pickiest about a server's TLS records. Whose certificate it is does not matter here. */
  private static void nioOverTls(String uri, String version) throws Exception {
    SSLContext context = SSLContext.getInstance(version);
    context.init(null, new TrustManager[] {new TrustEverythingTrustManager()}, null);
    ConnectionFactory factory = new ConnectionFactory();
    factory.setUri(uri);
    factory.useSslProtocol(context);
    factory.useNio();
    factory.setConnectionTimeout((int) PATIENCE_MS);
    byte[] body = new byte[1_000_000];
    for (int n = 0; n < 10; n++) {
      body[n] = (byte) n;
      try (Connection connection = factory.newConnection("application over " + version)) {
        Channel channel = connection.createChannel();
        String queue = channel.queueDeclare().getQueue();
        channel.basicPublish("", queue, null, body);
        same(true, Arrays.equals(body, eventually(channel, queue).getBody()));
      }
    }
  }

  private static void rpc(Connection connection) throws Exception {
    Channel serving = connection.createChannel();
    String queue = serving.queueDeclare().getQueue();
    StringRpcServer server =
        new StringRpcServer(serving, queue) {
          @Override
          public String handleStringCall(String request, BasicProperties properties) {
            return request + request;
          }
        };
    Thread loop = new Thread(() -> {
      try {
        server.mainloop();
      } catch (java.io.IOException error) {
        throw new java.io.UncheckedIOException(error);
      }
    });
    loop.start();
    Channel asking = connection.createChannel();
    RpcClient client = new RpcClient(new RpcClientParams().channel(asking).exchange("").routingKey(queue).timeout((int) PATIENCE_MS));
    for (int n = 0; n < 100; n++) {
      same(n + "" + n, client.stringCall(String.valueOf(n)));
    }
    client.close();
    server.terminateMainloop();
    loop.join(PATIENCE_MS);
    asking.close();
    serving.close();
  }

  private static void retries(Connection connection) throws Exception {
    Channel channel = connection.createChannel();
    String work = RUN + "work";
    String dead = RUN + "dead";
    channel.queueDeclare(dead, true, false, false, Map.of("x-queue-type", "quorum"));
    channel.queueDeclare(work, true, false, false, Map.of(
        "x-queue-type", "quorum", "x-delivery-limit", 3,
        "x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead));
    channel.confirmSelect();
    channel.basicPublish("", work, MessageProperties.PERSISTENT_BASIC, bytes("poison"));
    channel.waitForConfirmsOrDie(PATIENCE_MS);
    BlockingQueue<Long> counts = new ArrayBlockingQueue<>(16);
    DeliverCallback fails = (tag, delivery) -> {
      Map<String, Object> headers = delivery.getProperties().getHeaders();
      Object count = headers == null ? null : headers.get("x-delivery-count");
      counts.add(count == null ? 0 : ((Number) count).longValue());
      channel.basicReject(delivery.getEnvelope().getDeliveryTag(), true);
    };
    channel.basicConsume(work, false, fails, tag -> {});
    GetResponse parked = eventually(channel, dead);
    same("poison", new String(parked.getBody(), StandardCharsets.UTF_8));
    same(List.of(0L, 1L, 2L, 3L), List.copyOf(counts));
    @SuppressWarnings("unchecked")
    Map<String, Object> death = ((List<Map<String, Object>>) parked.getProps().getHeaders().get("x-death")).get(0);
    same("delivery_limit", death.get("reason").toString());
    same(work, death.get("queue").toString());
    for (String queue : List.of(work, dead)) {
      channel.queueDelete(queue);
    }
    channel.close();
  }

  private static void delayed(Connection connection) throws Exception {
    Channel channel = connection.createChannel();
    String due = RUN + "due";
    String later = RUN + "later";
    channel.queueDeclare(due, true, false, false, null);
    channel.queueDeclare(later, true, false, false, Map.of(
        "x-message-ttl", 1000, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", due));
    long started = System.nanoTime();
    channel.basicPublish("", later, MessageProperties.PERSISTENT_TEXT_PLAIN, bytes("job"));
    same("job", new String(eventually(channel, due).getBody(), StandardCharsets.UTF_8));
    long tookMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - started);
    if (tookMs < 990) {
      throw new AssertionError("the job came after " + tookMs + " ms");
    }
    for (String queue : List.of(due, later)) {
      channel.queueDelete(queue);
    }
    channel.close();
  }

  private static void restart(Recoverable recoverable, Connection connection, String program) throws Exception {
    String queue = RUN + "durable";
    CountDownLatch recovered = new CountDownLatch(1);
    recoverable.addRecoveryListener(new RecoveryListener() {
      @Override
      public void handleRecovery(Recoverable connection) {
        recovered.countDown();
      }

      @Override
      public void handleRecoveryStarted(Recoverable connection) {}
    });
    Channel consuming = connection.createChannel();
    consuming.basicQos(10);
    consuming.queueDeclare(queue, true, false, false, Map.of("x-queue-type", "quorum"));
    Set<Integer> seen = ConcurrentHashMap.newKeySet();
    DeliverCallback takes = (tag, delivery) -> {
      seen.add(Integer.valueOf(new String(delivery.getBody(), StandardCharsets.UTF_8)));
      consuming.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
    };
    consuming.basicConsume(queue, false, takes, tag -> {});
    publish(connection, queue, 0, 100);
    same(0, new ProcessBuilder(program).inheritIO().start().waitFor());
    same(true, recovered.await(PATIENCE_MS, TimeUnit.MILLISECONDS));
    publish(connection, queue, 100, 200);
    long until = System.currentTimeMillis() + PATIENCE_MS;
    while (seen.size() < 200 && System.currentTimeMillis() < until) {
      Thread.sleep(20);
    }
    same(200, seen.size());
    consuming.queueDelete(queue);
    consuming.close();
  }

  private static void publish(Connection connection, String queue, int first, int limit) throws Exception {
    Channel channel = connection.createChannel();
    channel.confirmSelect();
    for (int n = first; n < limit; n++) {
      channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, bytes(String.valueOf(n)));
    }
    channel.waitForConfirmsOrDie(PATIENCE_MS);
    channel.close();
  }

  private static GetResponse eventually(Channel channel, String queue) throws Exception {
    long until = System.currentTimeMillis() + PATIENCE_MS;
    while (System.currentTimeMillis() < until) {
      GetResponse found = channel.basicGet(queue, true);
      if (found != null) {
        return found;
      }
      Thread.sleep(20);
    }
    throw new AssertionError("nothing came to " + queue);
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  private static void same(Object wanted, Object got) {
    if (!wanted.equals(got)) {
      throw new AssertionError("wanted " + wanted + ", got " + got);
    }
  }
}
