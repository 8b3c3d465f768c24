import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * RocketMQ's own store over a directory: it loads, reads every message of one topic by queue, and
 * extends it.
 *
 * <p>Arguments: directory, size of a log file, size of a file of a queue, slots and entries of a key
 * index file, topic, queue count, how many messages to append. Prints a line for each message, "read QUEUE OFFSET BODY" or "put QUEUE
 * OFFSET BODY", and "done" last. Bodies are ASCII.
 */
public final class StoreCheck {
    public static void main(String[] arguments) {
        int status = 1;
        try {
            status = check(arguments);
        } catch (Throwable error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(status);
    }

    private static int check(String[] arguments) throws Exception {
        String topic = arguments[5];
        int queueCount = Integer.parseInt(arguments[6]);
        int appendCount = Integer.parseInt(arguments[7]);
        ConcurrentHashMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        topics.put(topic, new TopicConfig(topic, queueCount, queueCount));
        DefaultMessageStore store = open(arguments, topics);
        if (!store.load()) {
            System.out.println("refused");
            return 2;
        }
        store.start();
        for (int queue = 0; queue < queueCount; queue++) {
            read(store, topic, queue);
        }
        for (int number = 0; number < appendCount; number++) {
            append(store, topic, number % queueCount, "java-" + number);
        }
        System.out.println("done");
        System.out.flush();
        store.shutdown();
        return 0;
    }

    /** Makes a store of the first five arguments; nothing is loaded yet. */
    static DefaultMessageStore open(
            String[] arguments, ConcurrentHashMap<String, TopicConfig> topics) throws Exception {
        String directory = arguments[0];
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(directory);
        config.setStorePathCommitLog(directory + "/commitlog");
        config.setMappedFileSizeCommitLog(Integer.parseInt(arguments[1]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(arguments[2]));
        config.setMapperFileSizeBatchConsumeQueue(46 * 200);
        config.setMaxHashSlotNum(Integer.parseInt(arguments[3]));
        config.setMaxIndexNum(Integer.parseInt(arguments[4]));
        config.setFlushDiskType(FlushDiskType.SYNC_FLUSH);
        config.setHaListenPort(0);
        config.setCleanFileForciblyEnable(false);
        config.setDiskMaxUsedSpaceRatio(95);
        config.setDuplicationEnable(false);
        return new DefaultMessageStore(
                config,
                new BrokerStatsManager("check", false),
                (a, b, c, d, e, f, g) -> {},
                new BrokerConfig(),
                topics);
    }

    static void read(DefaultMessageStore store, String topic, int queue) throws Exception {
        long offset = store.getMinOffsetInQueue(topic, queue);
        while (true) {
            GetMessageResult found = store.getMessage("check", topic, queue, offset, 32, null);
            if (found == null || found.getStatus() != GetMessageStatus.FOUND) {
                return;
            }
            for (ByteBuffer buffer : found.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(buffer.duplicate(), true, false);
                String body = new String(message.getBody(), StandardCharsets.US_ASCII);
                System.out.println("read " + queue + " " + message.getQueueOffset() + " " + body);
            }
            offset = found.getNextBeginOffset();
            found.release();
        }
    }

    static void append(DefaultMessageStore store, String topic, int queue, String body)
            throws Exception {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setBody(body.getBytes(StandardCharsets.US_ASCII));
        message.setKeys(body);
        long offset = put(store, topic, queue, message);
        System.out.println("put " + queue + " " + offset + " " + body);
    }

    /** Puts a message that has its body, properties and flags; returns its queue offset. */
    static long put(
            DefaultMessageStore store, String topic, int queue, MessageExtBrokerInner message) {
        message.setTopic(topic);
        message.setQueueId(queue);
        message.setBornTimestamp(System.currentTimeMillis());
        InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
        message.setBornHost(host);
        message.setStoreHost(host);
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        PutMessageResult result = store.putMessage(message);
        if (!result.isOk()) {
            throw new IllegalStateException("append: " + result.getPutMessageStatus());
        }
        return result.getAppendMessageResult().getLogicsOffset();
    }
}
