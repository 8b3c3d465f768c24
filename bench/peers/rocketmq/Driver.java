import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * RocketMQ's own clients, told what to do by bench/peers/remote.py.
 *
 * <p>Arguments: the control port, the name server's address. Ends with its process.
 */
public final class Driver {
    private static final String BROKER = "bench";
    private static final String PROBE = "probe";
    private static final int TIMEOUT_MS = 30_000;
    private static final int FAILOVER_TIMEOUT_MS = 3_000;
    private static final int TOPICS_AT_ONCE = 500;
    private static final int PULL_COUNT = 1_000;

    private final String nameServer;
    private final DefaultMQProducer producer = new DefaultMQProducer("bench-producer");
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt(TIMEOUT_MS);

    private Driver(String nameServer) throws Exception {
        this.nameServer = nameServer;
        producer.setNamesrvAddr(nameServer);
        // A dead master is noticed by asking the name server, half a minute apart by default.
        producer.setPollNameServerInterval(500);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        producer.setMaxMessageSize(4 << 20);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("bench-admin");
        admin.setMqClientApiTimeout(TIMEOUT_MS);
        admin.start();
    }

    public static void main(String[] arguments) throws Exception {
        Driver driver = new Driver(arguments[1]);
        ControlServer.serve(Integer.parseInt(arguments[0]), driver::answer);
    }

    private Object answer(JSONObject request) throws Exception {
        switch (request.getString("op")) {
            case "status":
                return Map.of("brokers", brokers());
            case "make_topics":
                return makeTopics(request.getIntValue("count"), request.getIntValue("queue_count"));
            case "probe":
                producer.send(new Message(PROBE, new byte[1]), FAILOVER_TIMEOUT_MS);
                return Map.of();
            case "produce":
                boolean isFailover = request.getBooleanValue("tolerates_errors");
                producer.setSendMsgTimeout(isFailover ? FAILOVER_TIMEOUT_MS : TIMEOUT_MS);
                return new Load(new ProducerSender(producer), request).run();
            case "consume":
                return consume();
            default:
                throw new IllegalArgumentException("there is no " + request.getString("op"));
        }
    }

    /** Addresses of the brokers by their number in the group, as texts; 0 is the master. */
    private Map<String, String> brokers() throws Exception {
        ClusterInfo info = admin.examineBrokerClusterInfo();
        Map<String, BrokerData> table = info.getBrokerAddrTable();
        BrokerData data = table == null ? null : table.get(BROKER);
        Map<String, String> found = new TreeMap<>();
        if (data != null) {
            data.getBrokerAddrs().forEach((id, address) -> found.put(String.valueOf(id), address));
        }
        return found;
    }

    /** On all brokers: who becomes master later must know them too. */
    private Object makeTopics(int count, int queueCount) throws Exception {
        for (String address : brokers().values()) {
            admin.createAndUpdateTopicConfig(address, new TopicConfig(PROBE, 1, 1));
            for (int lo = 0; lo < count; lo += TOPICS_AT_ONCE) {
                List<TopicConfig> configs = new ArrayList<>();
                for (int n = lo; n < Math.min(count, lo + TOPICS_AT_ONCE); n++) {
                    configs.add(new TopicConfig("bench-" + n, queueCount, queueCount));
                }
                admin.createAndUpdateTopicConfigList(address, configs);
            }
        }
        for (int n = 0; n < count; n++) {
            producer.fetchPublishMessageQueues("bench-" + n);
        }
        return Map.of();
    }

    private Object consume() throws Exception {
        long wanted = 0;
        long count = 0;
        long sizeBytes = 0;
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("bench-consumer");
        consumer.setNamesrvAddr(nameServer);
        consumer.setAutoCommit(false);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setPullBatchSize(PULL_COUNT);
        // The group has no offsets. With a seek behind `assign`, when pulls are under way, a pull of
        // 1,000 messages was missing once in 30 reads.
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.start();
        try {
            Collection<MessageQueue> queues = consumer.fetchMessageQueues("bench-0");
            for (MessageQueue queue : queues) {
                wanted += admin.maxOffset(queue) - admin.minOffset(queue);
            }
            double start = System.nanoTime() / 1e9;
            consumer.assign(queues);
            while (count < wanted) {
                List<MessageExt> messages = consumer.poll(TIMEOUT_MS);
                if (messages.isEmpty()) {
                    throw new IllegalStateException("read " + count + " messages of " + wanted);
                }
                count += messages.size();
                for (MessageExt message : messages) {
                    sizeBytes += message.getBody().length;
                }
            }
            double seconds = System.nanoTime() / 1e9 - start;
            return Map.of("message_count", count, "size_bytes", sizeBytes, "seconds", seconds);
        } finally {
            consumer.shutdown();
        }
    }
}
