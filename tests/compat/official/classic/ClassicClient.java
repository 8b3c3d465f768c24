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
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends or receives with RocketMQ's classic client for Java; tests/compat/official/clients.py says
 * how such a program is called and what it prints. Its groups are a concurrent push consumer, an
 * orderly one, a lite pull consumer, a broadcasting one, and in version 5 one that reads by pop.
 * Ordinary messages travel in batches and are traced.
 */
public final class ClassicClient {
    private static final String[] KINDS = {"ordered", "ordinary", "delayed", "transactional"};
    private static final int LANE_COUNT = 10;
    private static final int BATCH_COUNT = 3;
    private static final int START_TRIES_MAX = 5;
    private static final long ANSWER_MS = 5_000;
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
        } else if (arguments[0].equals("request")) {
            request();
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
        DefaultMQProducer traced = new DefaultMQProducer(prefix + "-traced", null, true, null);
        traced.setNamesrvAddr(servers);
        traced.setInstanceName("traced");
        traced.start();
        say("{\"event\":\"ready\"}");
        List<Thread> lanes = new ArrayList<>();
        for (String kind : KINDS) {
            for (int lane = 0; lane < LANE_COUNT; lane++) {
                int first = lane;
                boolean isBatch = kind.equals("ordinary");
                lanes.add(
                        new Thread(
                                isBatch
                                        ? () -> sendBatches(traced, kind, first)
                                        : () -> sendLane(producer, kind, first)));
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

    private static void sendBatches(DefaultMQProducer producer, String kind, int lane) {
        for (int first = lane; first < count; first += BATCH_COUNT * LANE_COUNT) {
            List<Message> batch = new ArrayList<>();
            for (int at = 0; at < BATCH_COUNT && first + at * LANE_COUNT < count; at++) {
                int number = first + at * LANE_COUNT;
                byte[] body = (kind + ":" + number).getBytes(StandardCharsets.US_ASCII);
                batch.add(new Message(prefix + "-" + kind, "tag", "key" + number, body));
            }
            again(
                    "send " + kind + ":" + first,
                    () -> {
                        SendResult result = producer.send(batch);
                        if (result.getSendStatus() != SendStatus.SEND_OK) {
                            throw new IllegalStateException("status " + result.getSendStatus());
                        }
                    });
            for (int at = 0; at < batch.size(); at++) {
                sayAcked(kind, first + at * LANE_COUNT, 0, true);
            }
        }
    }

    /** What is done until it ends well. */
    private interface Attempt {
        void make() throws Exception;
    }

    private static void again(String what, Attempt attempt) {
        while (true) {
            try {
                attempt.make();
                return;
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            } catch (Exception error) {
                sayFailed(what, error);
            }
            try {
                Thread.sleep(50);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    /** Ask COUNT questions in lanes; a consumer of this process answers each with its own text. */
    private static void request() throws Exception {
        String topic = prefix + "-" + KINDS[1];
        DefaultMQProducer producer = new DefaultMQProducer(prefix + "-asking");
        producer.setNamesrvAddr(servers);
        producer.setInstanceName("asking");
        producer.start();
        DefaultMQProducer answering = new DefaultMQProducer(prefix + "-answering");
        answering.setNamesrvAddr(servers);
        answering.setInstanceName("answering");
        answering.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(prefix + "-answers");
        consumer.setNamesrvAddr(servers);
        consumer.setInstanceName("answers");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(
                (MessageListenerConcurrently)
                        (messages, context) -> {
                            for (MessageExt message : messages) {
                                try {
                                    byte[] body = message.getBody();
                                    answering.send(MessageUtil.createReplyMessage(message, body));
                                } catch (Exception error) {
                                    sayFailed("reply", error);
                                }
                            }
                            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                        });
        consumer.start();
        say("{\"event\":\"ready\"}");
        List<Thread> lanes = new ArrayList<>();
        for (int lane = 0; lane < LANE_COUNT; lane++) {
            int first = lane;
            lanes.add(new Thread(() -> askLane(producer, topic, first)));
        }
        lanes.forEach(Thread::start);
        for (Thread lane : lanes) {
            lane.join();
        }
        say("{\"event\":\"done\"}");
    }

    private static void askLane(DefaultMQProducer producer, String topic, int lane) {
        for (int number = lane; number < count; number += LANE_COUNT) {
            String text = "ordered:" + number;
            byte[] body = text.getBytes(StandardCharsets.US_ASCII);
            again(
                    "request " + number,
                    () -> {
                        Message answer =
                                producer.request(new Message(topic, "tag", body), ANSWER_MS);
                        String found = new String(answer.getBody(), StandardCharsets.US_ASCII);
                        if (!found.equals(text)) {
                            say("{\"event\":\"wrong\",\"body\":\"" + found + "\"}");
                        }
                    });
            sayAcked("ordered", number, 0, true);
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
        if (hasPop()) {
            started(number -> push("pop", number, false, false));
        }
        started(ClassicClient::pull);
        say("{\"event\":\"ready\"}");
    }

    private static boolean hasPop() {
        try {
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class);
            return true;
        } catch (NoSuchMethodException error) {
            return false; // A client of version 4.
        }
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
        if (group.equals("pop")) {
            var setter = DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class);
            setter.invoke(consumer, false);
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
