import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Sends or receives with the official client for Java; tests/compat/official/clients.py says how
 * each such program is called and what it prints.
 */
public final class OfficialClient {
    private static final String[] KINDS = {"ordered", "ordinary", "delayed", "transactional"};
    private static final int LANE_COUNT = 10;
    private static final int START_TRIES_MAX = 5;
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    private static ClientConfiguration configuration;
    private static String prefix;
    private static int count;

    public static void main(String[] arguments) throws Exception {
        configuration =
                ClientConfiguration.newBuilder()
                        .setEndpoints(arguments[1])
                        .setRequestTimeout(Duration.ofSeconds(3))
                        .enableSsl(false)
                        .build();
        prefix = arguments[2];
        count = Integer.parseInt(arguments[3]);
        if (arguments[0].equals("produce")) {
            produce();
        } else {
            consume();
        }
        while (System.in.read() >= 0) {
            // The harness closes the input when it has seen enough.
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    /** Start a client, again if need be: on a busy machine its first call may take its 3 s. */
    private static <T> T started(Callable<T> builder) throws Exception {
        for (int tries = 1; ; tries++) {
            try {
                return builder.call();
            } catch (ClientException | IllegalStateException error) {
                if (tries == START_TRIES_MAX) {
                    throw error;
                }
                sayFailed("start", error);
            }
        }
    }

    private static void produce() throws Exception {
        String[] topics = new String[KINDS.length];
        for (int at = 0; at < KINDS.length; at++) {
            topics[at] = prefix + "-" + KINDS[at];
        }
        Producer producer =
                started(
                        () ->
                                PROVIDER.newProducerBuilder()
                                        .setClientConfiguration(configuration)
                                        .setTopics(topics)
                                        .setTransactionChecker(OfficialClient::fate)
                                        .build());
        say("{\"event\":\"ready\"}");
        List<Thread> lanes = new ArrayList<>();
        for (String kind : KINDS) {
            for (int lane = 0; lane < LANE_COUNT; lane++) {
                int first = lane;
                lanes.add(new Thread(() -> sendLane(producer, kind, first)));
            }
        }
        lanes.forEach(Thread::start);
        for (Thread lane : lanes) {
            lane.join();
        }
        say("{\"event\":\"done\"}");
    }

    private static TransactionResolution fate(MessageView message) {
        boolean isKept = "commit".equals(message.getProperties().get("fate"));
        return isKept ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
    }

    private static void sendLane(Producer producer, String kind, int lane) {
        for (int number = lane; number < count; number += LANE_COUNT) {
            while (!send(producer, kind, number)) {
                try {
                    Thread.sleep(50);
                } catch (InterruptedException error) {
                    return;
                }
            }
        }
    }

    private static boolean send(Producer producer, String kind, int number) {
        boolean isKept = number % 7 != 3;
        long dueMs = 0;
        MessageBuilder builder =
                PROVIDER.newMessageBuilder()
                        .setTopic(prefix + "-" + kind)
                        .setBody((kind + ":" + number).getBytes(StandardCharsets.US_ASCII));
        try {
            switch (kind) {
                case "ordered":
                    builder.setMessageGroup("g" + number % LANE_COUNT);
                    break;
                case "delayed":
                    dueMs = System.currentTimeMillis() + 1_000 * (2 + number % 5);
                    builder.setDeliveryTimestamp(dueMs);
                    break;
                case "transactional":
                    builder.addProperty("fate", isKept ? "commit" : "rollback");
                    sendTransaction(producer, builder.build(), number, isKept);
                    return true;
                default:
            }
            producer.send(builder.build());
        } catch (ClientException | RuntimeException error) {
            sayFailed("send " + kind + ":" + number, error);
            return false;
        }
        sayAcked(kind, number, dueMs, true);
        return true;
    }

    private static void sendTransaction(
            Producer producer, Message message, int number, boolean isKept) throws ClientException {
        Transaction transaction = producer.beginTransaction();
        producer.send(message, transaction);
        try {
            if (isKept) {
                transaction.commit();
            } else {
                transaction.rollback();
            }
        } catch (ClientException | RuntimeException error) {
            // The cluster asks what became of it, and the checker says so.
            sayFailed("end transactional:" + number, error);
        }
        sayAcked("transactional", number, 0, isKept);
    }

    private static void consume() throws Exception {
        Map<String, FilterExpression> topics = new HashMap<>();
        for (String kind : KINDS) {
            topics.put(prefix + "-" + kind, new FilterExpression("*", FilterExpressionType.TAG));
        }
        for (String group : new String[] {"simple", "simple-orderly"}) {
            SimpleConsumer consumer =
                    started(
                            () ->
                                    PROVIDER.newSimpleConsumerBuilder()
                                            .setClientConfiguration(configuration)
                                            .setConsumerGroup(prefix + "-" + group)
                                            // It asks for the topics in turn, also empty ones.
                                            .setAwaitDuration(Duration.ofMillis(50))
                                            .setSubscriptionExpressions(topics)
                                            .build());
            new Thread(() -> receive(consumer, group)).start();
        }
        for (String group : new String[] {"push", "push-orderly"}) {
            started(
                    () ->
                            PROVIDER.newPushConsumerBuilder()
                                    .setClientConfiguration(configuration)
                                    .setConsumerGroup(prefix + "-" + group)
                                    .setSubscriptionExpressions(topics)
                                    .setMessageListener(
                                            message -> {
                                                sayReceived(group, message);
                                                return ConsumeResult.SUCCESS;
                                            })
                                    .build());
        }
        say("{\"event\":\"ready\"}");
    }

    private static void receive(SimpleConsumer consumer, String group) {
        while (true) {
            try {
                List<CompletableFuture<Void>> acks = new ArrayList<>();
                for (MessageView message : consumer.receive(32, Duration.ofSeconds(10))) {
                    sayReceived(group, message);
                    acks.add(consumer.ackAsync(message));
                }
                CompletableFuture.allOf(acks.toArray(new CompletableFuture[0])).join();
            } catch (ClientException | RuntimeException error) {
                sayFailed(group, error);
            }
        }
    }

    // --- What is printed ---

    private static void sayAcked(String kind, int number, long dueMs, boolean isKept) {
        String form =
                "{\"event\":\"acked\",\"kind\":\"%s\",\"number\":%d,\"at_ms\":%d,\"due_ms\":%d,"
                        + "\"kept\":%b}";
        long atMs = System.nanoTime() / 1_000_000;
        say(String.format(form, kind, number, atMs, dueMs, isKept));
    }

    private static void sayReceived(String group, MessageView message) {
        ByteBuffer body = message.getBody();
        String text = StandardCharsets.US_ASCII.decode(body).toString();
        String form =
                "{\"event\":\"received\",\"group\":\"%s\",\"body\":\"%s\",\"now_ms\":%d,"
                        + "\"attempt\":%d}";
        long nowMs = System.currentTimeMillis();
        say(String.format(form, group, text, nowMs, message.getDeliveryAttempt()));
    }

    private static void sayFailed(String what, Exception error) {
        String text = String.valueOf(error).replaceAll("[^ -~]|[\"\\\\]", " ");
        say(String.format("{\"event\":\"failed\",\"what\":\"%s\",\"error\":\"%s\"}", what, text));
    }

    private static synchronized void say(String line) {
        System.out.println(line);
    }
}
