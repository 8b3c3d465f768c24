import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends or receives with RocketMQ's classic client for Java; tests/compat/official/clients.py says
 * how such a program is called and what it prints. Its groups are a concurrent push consumer, an
 * orderly one, a lite pull consumer and a broadcasting one.
 */
public final class ClassicClient {
    private static final String[] KINDS = {"ordered", "ordinary", "delayed", "transactional"};
    private static final int LANE_COUNT = 10;
    private static final int START_TRIES_MAX = 5;
    private static final int[] LEVEL_MS = {0, 1_000, 5_000};

    private static String servers;
    private static String prefix;
    private static int count;

    public static void main(String[] arguments) throws Exception {
        servers = arguments[1];
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

    private static void produce() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(prefix + "-producers");
        producer.setNamesrvAddr(servers);
        ExecutorService checks = Executors.newFixedThreadPool(2);
        producer.setExecutorService(checks);
        producer.setTransactionListener(
                new TransactionListener() {
                    @Override
                    public LocalTransactionState executeLocalTransaction(
                            Message message, Object argument) {
                        return fate(message);
                    }

                    @Override
                    public LocalTransactionState checkLocalTransaction(MessageExt message) {
                        return fate(message);
                    }
                });
        producer.start();
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

    private static LocalTransactionState fate(Message message) {
        return "commit".equals(message.getUserProperty("fate"))
                ? LocalTransactionState.COMMIT_MESSAGE
                : LocalTransactionState.ROLLBACK_MESSAGE;
    }

    private static void sendLane(DefaultMQProducer producer, String kind, int lane) {
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

    private static boolean send(DefaultMQProducer producer, String kind, int number) {
        boolean isKept = number % 7 != 3;
        long dueMs = 0;
        byte[] body = (kind + ":" + number).getBytes(StandardCharsets.US_ASCII);
        Message message = new Message(prefix + "-" + kind, "tag", "key" + number, body);
        try {
            SendResult result;
            switch (kind) {
                case "ordered":
                    result =
                            producer.send(
                                    message,
                                    (queues, m, lane) -> queues.get((Integer) lane % queues.size()),
                                    number % LANE_COUNT);
                    break;
                case "delayed":
                    int level = 1 + number % 2;
                    message.setDelayTimeLevel(level);
                    dueMs = System.currentTimeMillis() + LEVEL_MS[level];
                    result = producer.send(message);
                    break;
                case "transactional":
                    message.putUserProperty("fate", isKept ? "commit" : "rollback");
                    result = producer.sendMessageInTransaction(message, null);
                    break;
                default:
                    result = producer.send(message);
            }
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException("status " + result.getSendStatus());
            }
        } catch (Exception error) {
            sayFailed("send " + kind + ":" + number, error);
            return false;
        }
        sayAcked(kind, number, dueMs, isKept || !kind.equals("transactional"));
        return true;
    }

    /** What starts a client, with the number of the try. */
    private interface Start {
        void begin(int number) throws Exception;
    }

    /** Start a client, again if need be: it asks one name server, which may be the dead node. */
    private static void started(Start start) throws Exception {
        for (int number = 1; ; number++) {
            try {
                start.begin(number);
                return;
            } catch (Exception error) {
                if (number == START_TRIES_MAX) {
                    throw error;
                }
                sayFailed("start", error);
                Thread.sleep(500);
            }
        }
    }

    private static void consume() throws Exception {
        started(number -> push("push", number, false, false));
        started(number -> push("push-orderly", number, true, false));
        started(number -> push("broadcasting", number, false, true));
        started(ClassicClient::pull);
        say("{\"event\":\"ready\"}");
    }

    private static void pull(int number) throws Exception {
        DefaultLitePullConsumer lite = new DefaultLitePullConsumer(prefix + "-lite");
        lite.setNamesrvAddr(servers);
        lite.setInstanceName("lite-" + number);
        lite.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        for (String kind : KINDS) {
            lite.subscribe(prefix + "-" + kind, "*");
        }
        lite.start();
        new Thread(
                        () -> {
                            while (true) {
                                for (MessageExt message : lite.poll(500)) {
                                    sayReceived("lite", message);
                                }
                            }
                        })
                .start();
    }

    private static void push(String group, int number, boolean isOrderly, boolean isBroadcasting)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(prefix + "-" + group);
        consumer.setNamesrvAddr(servers);
        consumer.setInstanceName(group + "-" + number);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (isBroadcasting) {
            // The package of this type is another one in each line of the client.
            var model = consumer.getMessageModel();
            consumer.setMessageModel(Enum.valueOf(model.getDeclaringClass(), "BROADCASTING"));
        }
        for (String kind : KINDS) {
            consumer.subscribe(prefix + "-" + kind, "*");
        }
        if (isOrderly) {
            consumer.registerMessageListener(
                    (MessageListenerOrderly)
                            (messages, context) -> {
                                messages.forEach(message -> sayReceived(group, message));
                                return ConsumeOrderlyStatus.SUCCESS;
                            });
        } else {
            consumer.registerMessageListener(
                    (MessageListenerConcurrently)
                            (messages, context) -> {
                                messages.forEach(message -> sayReceived(group, message));
                                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                            });
        }
        consumer.start();
    }

    // --- What is printed ---

    private static void sayAcked(String kind, int number, long dueMs, boolean isKept) {
        String form =
                "{\"event\":\"acked\",\"kind\":\"%s\",\"number\":%d,\"at_ms\":%d,\"due_ms\":%d,"
                        + "\"kept\":%b}";
        long atMs = System.nanoTime() / 1_000_000;
        say(String.format(form, kind, number, atMs, dueMs, isKept));
    }

    private static void sayReceived(String group, MessageExt message) {
        String text = new String(message.getBody(), StandardCharsets.US_ASCII);
        String form =
                "{\"event\":\"received\",\"group\":\"%s\",\"body\":\"%s\",\"now_ms\":%d,"
                        + "\"attempt\":%d}";
        long nowMs = System.currentTimeMillis();
        say(String.format(form, group, text, nowMs, 1 + message.getReconsumeTimes()));
    }

    private static void sayFailed(String what, Exception error) {
        String text = String.valueOf(error).replaceAll("[^ -~]|[\"\\\\]", " ");
        say(String.format("{\"event\":\"failed\",\"what\":\"%s\",\"error\":\"%s\"}", what, text));
    }

    private static synchronized void say(String line) {
        System.out.println(line);
    }
}
