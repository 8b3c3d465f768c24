import java.util.List;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Does the same as OfficialUser with RocketMQ's classic client for Java. */
public final class ClassicUser {
    public static void main(String[] arguments) throws Exception {
        AclClientRPCHook hook =
                new AclClientRPCHook(new SessionCredentials(arguments[1], arguments[2]));
        DefaultMQProducer producer = new DefaultMQProducer("producers", hook);
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        for (int at = 4; at < arguments.length; at++) {
            String topic = arguments[at];
            try {
                producer.send(new Message(topic, topic.getBytes()));
                System.out.println(topic + " OK");
            } catch (Exception error) {
                String text = error + " " + error.getCause(); // The last try's.
                System.out.println(topic + " " + text.replace('\n', ' '));
            }
        }
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(arguments[3], hook);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[4], "*");
        consumer.start();
        List<MessageExt> messages = consumer.poll(15_000);
        System.out.println("received " + (messages.isEmpty() ? "nothing" : "OK"));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
