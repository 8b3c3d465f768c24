import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;

/**
 * RocketMQ's own store over a directory with an ordinary topic and one of inner batches: it loads,
 * reads both, and extends both.
 *
 * <p>Arguments: the first five of StoreCheck, the ordinary topic, the other one
 * (queue.type=BatchCQ), how many rounds to append; both topics have one queue. Prints "read" and
 * "put" lines of the ordinary topic as StoreCheck does; for each message within an inner batch
 * "inner QUEUE OFFSET BODY" when it was read and "wrapped QUEUE OFFSET BODY" when it was put; "done"
 * last. Every seventh round puts an ordinary message to the topic of inner batches, too; it is said
 * as the others there.
 */
public final class InnerBatchCheck {
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
        String plain = arguments[5];
        String batches = arguments[6];
        int roundCount = Integer.parseInt(arguments[7]);
        ConcurrentHashMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        topics.put(plain, new TopicConfig(plain, 1, 1));
        TopicConfig config = new TopicConfig(batches, 1, 1);
        config.getAttributes().put("queue.type", "BatchCQ");
        topics.put(batches, config);
        DefaultMessageStore store = StoreCheck.open(arguments, topics);
        if (!store.load()) {
            System.out.println("refused");
            return 2;
        }
        store.start();
        StoreCheck.read(store, plain, 0);
        readBatches(store, batches);
        for (int number = 0; number < roundCount; number++) {
            if (number % 7 == 0) {
                MessageExtBrokerInner message = new MessageExtBrokerInner();
                message.setBody(("alone-" + number).getBytes(StandardCharsets.US_ASCII));
                message.setKeys("alone");
                say("wrapped", StoreCheck.put(store, batches, 0, message), message);
            }
            appendBatch(store, batches, number, 1 + number % 6);
            StoreCheck.append(store, plain, 0, "java-" + number);
        }
        System.out.println("done");
        System.out.flush();
        store.shutdown();
        return 0;
    }

    private static void readBatches(DefaultMessageStore store, String topic) throws Exception {
        long offset = Math.max(0, store.getMinOffsetInQueue(topic, 0));
        while (true) {
            GetMessageResult found = store.getMessage("check", topic, 0, offset, 32, null);
            if (found == null || found.getStatus() != GetMessageStatus.FOUND) {
                return;
            }
            for (ByteBuffer buffer : found.getMessageBufferList()) {
                MessageExt record = MessageDecoder.decode(buffer.duplicate(), true, false);
                if (!MessageSysFlag.check(record.getSysFlag(), MessageSysFlag.INNER_BATCH_FLAG)) {
                    say("inner", record.getQueueOffset(), record);
                    continue;
                }
                long base = Long.parseLong(record.getProperty(MessageConst.PROPERTY_INNER_BASE));
                for (Message one : MessageDecoder.decodeMessages(ByteBuffer.wrap(record.getBody()))) {
                    say("inner", base++, one);
                }
            }
            offset = found.getNextBeginOffset();
            found.release();
        }
    }

    private static void appendBatch(DefaultMessageStore store, String topic, int number, int count) {
        List<Message> messages = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            String body = "inner-" + number + "-" + n;
            messages.add(new Message(topic, body.getBytes(StandardCharsets.US_ASCII)));
        }
        MessageExtBrokerInner record = new MessageExtBrokerInner();
        record.setBody(MessageDecoder.encodeMessages(messages));
        record.setSysFlag(MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG);
        record.setKeys("batch-" + number);
        MessageAccessor.putProperty(
                record, MessageConst.PROPERTY_INNER_NUM, String.valueOf(count));
        long offset = StoreCheck.put(store, topic, 0, record);
        for (Message one : messages) {
            say("wrapped", offset++, one);
        }
    }

    private static void say(String what, long offset, Message message) {
        String body = new String(message.getBody(), StandardCharsets.US_ASCII);
        System.out.println(what + " 0 " + offset + " " + body);
    }
}
