import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** Sends through RocketMQ's producer: several bodies as a list, which is its batch. */
final class ProducerSender implements Sender {
    private final DefaultMQProducer producer;

    ProducerSender(DefaultMQProducer producer) {
        this.producer = producer;
    }

    @Override
    public void send(int topic, List<byte[]> bodies) throws Exception {
        List<Message> messages = messages(topic, bodies);
        boolean isOne = messages.size() == 1;
        Exception why =
            refusal(isOne ? producer.send(messages.get(0)) : producer.send(messages));
        if (why != null) {
            throw why;
        }
    }

    @Override
    public void send(int topic, List<byte[]> bodies, Consumer<Throwable> onEnd)
        throws Exception {
        List<Message> messages = messages(topic, bodies);
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                onEnd.accept(refusal(result));
            }

            @Override
            public void onException(Throwable error) {
                onEnd.accept(error);
            }
        };
        if (messages.size() == 1) {
            producer.send(messages.get(0), callback);
        } else {
            producer.send(messages, callback);
        }
    }

    private static List<Message> messages(int topic, List<byte[]> bodies) {
        List<Message> found = new ArrayList<>(bodies.size());
        for (byte[] body : bodies) {
            found.add(new Message("bench-" + topic, body));
        }
        return found;
    }

    private static Exception refusal(SendResult result) {
        SendStatus status = result.getSendStatus();
        return status == SendStatus.SEND_OK
            ? null
            : new IllegalStateException("the broker answered " + status);
    }
}
